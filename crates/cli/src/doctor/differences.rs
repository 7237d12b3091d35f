//! How far numbers are from what is expected.

/// The distance of two lists, relative to the length of the expected one; not finite if one of them is not, or if
/// they have unlike lengths.
pub fn relative_difference(found: &[f64], expected: &[f64]) -> f64 {
    if found.len() != expected.len() {
        return f64::INFINITY;
    }
    let length = |values: &mut dyn Iterator<Item = f64>| {
        let squares: f64 = values.map(|value| value * value).sum();
        squares.sqrt()
    };
    let pairs = found.iter().zip(expected);
    let distance = length(&mut pairs.map(|(found, expected)| found - expected));
    distance / length(&mut expected.iter().copied()).max(f64::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_are_relative_and_nothing_hides_a_nan() {
        assert_eq!(relative_difference(&[3.0, 4.0], &[3.0, 4.0]), 0.0);
        assert_eq!(relative_difference(&[3.0, 5.0], &[3.0, 4.0]), 0.2);
        assert_eq!(relative_difference(&[3.0], &[3.0, 4.0]), f64::INFINITY);
        for wrong in [f64::NAN, f64::INFINITY] {
            assert!(!relative_difference(&[3.0, wrong], &[3.0, 4.0]).is_finite());
        }
    }
}
