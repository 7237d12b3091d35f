//! Fewer points, where there are more than anyone can see.

use super::Point;

/// At most about `most` points that look the same: of each stretch of the curve the lowest and the
/// highest, so that no peak is lost.
pub(super) fn thinned(points: &[Point], most: usize) -> Vec<Point> {
    if points.len() <= most {
        return points.to_vec();
    }
    let stretch = points.len().div_ceil((most / 2).max(1));
    points.chunks(stretch).flat_map(extremes).collect()
}

/// The lowest and the highest of some points, in their order; if none can be drawn, one of them.
fn extremes(points: &[Point]) -> Vec<Point> {
    let drawable = || points.iter().filter(|point| point.is_drawable());
    let by_value = |a: &&Point, b: &&Point| a.value.total_cmp(&b.value);
    match (drawable().min_by(by_value), drawable().max_by(by_value)) {
        (Some(low), Some(high)) if low.epoch < high.epoch => vec![*low, *high],
        (Some(low), Some(high)) if low.epoch > high.epoch => vec![*high, *low],
        (Some(only), _) => vec![*only],
        _ => points.first().copied().into_iter().collect(),
    }
}

/// Places in a list of `count`, evenly spread, at most `most`, with the first and the last.
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

    #[test]
    fn few_points_stay() {
        let points = [(1, 1.0), (2, f64::NAN)].map(|(epoch, value)| Point { epoch, value });
        assert_eq!(thinned(&points, 2).len(), 2);
        assert_eq!(thinned(&[], 2), []);
    }

    #[test]
    fn peaks_stay_and_order_too() {
        let value = |epoch| match epoch {
            4321 => 9.0,
            1234 => -9.0,
            _ => (epoch as f64 / 50.0).sin(),
        };
        let points: Vec<_> = (1..=10_000)
            .map(|epoch| Point {
                epoch,
                value: value(epoch),
            })
            .collect();
        let thin = thinned(&points, 240);
        assert!(thin.len() <= 240 && thin.len() > 200, "{}", thin.len());
        assert!(thin.is_sorted_by(|a, b| a.epoch < b.epoch));
        assert!(thin.contains(&points[4320]) && thin.contains(&points[1233]));
    }

    #[test]
    fn stretches_without_numbers_leave_gaps() {
        let value = |epoch| {
            if (300..600).contains(&epoch) {
                f64::NAN
            } else {
                1.0
            }
        };
        let points: Vec<_> = (0..1000)
            .map(|epoch| Point {
                epoch,
                value: value(epoch),
            })
            .collect();
        let thin = thinned(&points, 100);
        assert!(thin.iter().any(|point| point.value.is_nan()));
        assert_eq!(super::super::Series::runs(&thin).count(), 2);
    }

    #[test]
    fn places_are_spread_evenly() {
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
