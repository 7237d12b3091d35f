//! Places the names of curves beside their ends.

/// Moves positions in `0..=height` apart by `distance`, as little as possible, and keeps their order.
pub(super) fn apart(places: &[f64], distance: f64, height: f64) -> Vec<f64> {
    let mut order: Vec<_> = (0..places.len()).collect();
    order.sort_by(|a, b| places[*a].total_cmp(&places[*b]));
    let mut moved = places.to_vec();
    let mut lowest = 0.0_f64;
    for &index in &order {
        moved[index] = moved[index].max(lowest);
        lowest = moved[index] + distance;
    }
    let mut highest = height;
    for &index in order.iter().rev() {
        moved[index] = moved[index].min(highest);
        highest = moved[index] - distance;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_do_not_overlap() {
        let check = |places: &[f64], expected: &[f64]| {
            assert_eq!(apart(places, 10.0, 100.0), expected, "{places:?}");
        };
        check(&[], &[]);
        check(&[50.0], &[50.0]);
        check(&[50.0, 20.0], &[50.0, 20.0]);
        check(&[50.0, 52.0], &[50.0, 60.0]);
        check(&[52.0, 50.0], &[60.0, 50.0]);
        check(&[99.0, 100.0, 98.0], &[90.0, 100.0, 80.0]);
        check(&[0.0, 0.0, 0.0], &[0.0, 10.0, 20.0]);
    }
}
