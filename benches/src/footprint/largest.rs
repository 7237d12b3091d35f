//! The search for the widest network that trains.

use std::ops::RangeInclusive;

use crate::Failure;

/// The largest multiple of `step` for which `fits` says so, if whatever fits does so with all that is less.
///
/// It asks about the multiple below `guess` first, then about its neighbours: a good guess is two questions away from
/// the answer, which is that one fits and the next does not. Beyond `bounds` nothing is asked; none if not even their
/// start fits.
///
/// ```
/// use stovepipe_benches::footprint::largest::largest;
///
/// let mut asked = Vec::new();
/// let found = largest(90, 8, 8..=1024, |filters| {
///     asked.push(filters);
///     Ok(filters <= 77)
/// });
/// assert_eq!(found.unwrap(), Some(72));
/// assert_eq!(asked, [88, 80, 72]);
/// ```
///
/// # Errors
///
/// Those of `fits`.
pub fn largest(
    guess: usize,
    step: usize,
    bounds: RangeInclusive<usize>,
    mut fits: impl FnMut(usize) -> Result<bool, Failure>,
) -> Result<Option<usize>, Failure> {
    let start = guess.clamp(*bounds.start(), *bounds.end()) / step * step;
    let mut at = start.max(step);
    if fits(at)? {
        while at + step <= *bounds.end() && fits(at + step)? {
            at += step;
        }
        return Ok(Some(at));
    }
    while at >= step + *bounds.start() {
        at -= step;
        if fits(at)? {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn whatever_the_guess_the_answer_is_the_same() {
        for guess in [0, 4, 60, 75, 80, 99, 5000] {
            let found = |most: usize| largest(guess, 4, 4..=100, |filters| Ok(filters <= most));
            assert_eq!(found(79).unwrap(), Some(76), "{guess}");
            assert_eq!(found(80).unwrap(), Some(80), "{guess}");
            assert_eq!(found(3).unwrap(), None, "{guess}");
            assert_eq!(found(1000).unwrap(), Some(100), "{guess}");
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        assert!(largest(40, 4, 4..=100, |_| Err("broken".into())).is_err());
    }
}
