//! Reduces the number of points where there are more than can be seen.

use super::CurvePoint;

/// At most about `most` points: the lowest and the highest of each section, which keeps all peaks.
pub(super) fn thinned(points: &[CurvePoint], most: usize) -> Vec<CurvePoint> {
    if points.len() <= most {
        return points.to_vec();
    }
    let section = points.len().div_ceil((most / 2).max(1));
    points.chunks(section).flat_map(extremes).collect()
}

/// The lowest and the highest drawable point, in their order, or the first point if there is none.
fn extremes(points: &[CurvePoint]) -> Vec<CurvePoint> {
    let drawable = || points.iter().filter(|point| point.is_drawable());
    let by_value = |a: &&CurvePoint, b: &&CurvePoint| a.value.total_cmp(&b.value);
    match (drawable().min_by(by_value), drawable().max_by(by_value)) {
        (Some(low), Some(high)) if low.at < high.at => vec![*low, *high],
        (Some(low), Some(high)) if low.at > high.at => vec![*high, *low],
        (Some(only), _) => vec![*only],
        _ => points.first().copied().into_iter().collect(),
    }
}

/// At most `most` evenly spread indices of a list of `count`, with the first and the last.
pub(crate) fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let shown = count.min(most.max(1));
    let last = count.saturating_sub(1);
    (0..shown).map(move |place| match shown {
        1 => last,
        _ => place * last / (shown - 1),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Series;

    fn points(count: usize, value: impl Fn(usize) -> f64) -> Vec<CurvePoint> {
        let epochs = 1..=count;
        let point = |epoch| (epoch, value(epoch));
        epochs
            .map(point)
            .map(|(at, value)| CurvePoint { at, value })
            .collect()
    }

    #[test]
    fn few_points_are_kept() {
        let points = points(2, |epoch| if epoch == 2 { f64::NAN } else { 1.0 });
        assert_eq!(thinned(&points, 2).len(), 2);
        assert_eq!(thinned(&[], 2), []);
    }

    #[test]
    fn peaks_and_order_are_kept() {
        let points = points(10_000, |epoch| match epoch {
            4321 => 9.0,
            1234 => -9.0,
            _ => (epoch as f64 / 50.0).sin(),
        });
        let thin = thinned(&points, 240);
        assert!(thin.len() <= 240 && thin.len() > 200, "{}", thin.len());
        assert!(thin.is_sorted_by(|a, b| a.at < b.at));
        assert!(thin.contains(&points[4320]) && thin.contains(&points[1233]));
    }

    #[test]
    fn sections_without_numbers_are_gaps() {
        let is_gap = |epoch| (300..600).contains(&epoch);
        let points = points(1000, |epoch| if is_gap(epoch) { f64::NAN } else { 1.0 });
        let thin = thinned(&points, 100);
        assert!(thin.iter().any(|point| point.value.is_nan()));
        assert_eq!(Series::runs(&thin).count(), 2);
    }

    #[test]
    fn indices_are_spread_evenly() {
        let check = |count, most, expected: &[usize]| {
            assert_eq!(spread(count, most).collect::<Vec<_>>(), expected);
        };
        check(0, 3, &[]);
        check(1, 3, &[0]);
        check(3, 3, &[0, 1, 2]);
        check(5, 3, &[0, 2, 4]);
        check(10_000, 2, &[0, 9999]);
        check(7, 1, &[6]);
        check(7, 0, &[6]);
    }
}
