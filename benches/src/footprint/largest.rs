//! The search for the widest network that trains.

use std::ops::RangeInclusive;

use crate::Failure;

/// The largest multiple of `step` that fits, if everything smaller than what fits also fits.
///
/// The search starts at the multiple below `guess` and goes up or down from there, so a good guess
/// needs two trials: one fits and the next does not. It stays within `bounds`. `None` if not even
/// their start fits.
///
/// ```
/// use stovepipe_benches::footprint::largest::largest;
///
/// let mut tried = Vec::new();
/// let found = largest(90, 8, 8..=1024, |filters| {
///     tried.push(filters);
///     Ok(filters <= 77)
/// });
/// assert_eq!(found.unwrap(), Some(72));
/// assert_eq!(tried, [88, 80, 72]);
/// ```
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
    fn the_answer_does_not_depend_on_the_guess() {
        for guess in [0, 4, 60, 75, 80, 99, 5000] {
            let found = |most: usize| largest(guess, 4, 4..=100, |filters| Ok(filters <= most));
            assert_eq!(found(79).unwrap(), Some(76), "{guess}");
            assert_eq!(found(80).unwrap(), Some(80), "{guess}");
            assert_eq!(found(3).unwrap(), None, "{guess}");
            assert_eq!(found(1000).unwrap(), Some(100), "{guess}");
        }
    }

    #[test]
    fn an_error_stops_the_search() {
        assert!(largest(40, 4, 4..=100, |_| Err("broken".into())).is_err());
    }
}
