//! The ranges of numbers.

use std::fmt::Debug;

use crate::error::TrainError;

/// Numbers that a setting accepts, and how an error describes them.
pub(super) type Range<N> = (fn(N) -> bool, &'static str);

pub(super) const AT_LEAST_ONE: Range<usize> = (|value| value > 0, "at least 1");
pub(super) const ABOVE_ZERO: Range<f64> =
    (|value| value.is_finite() && value > 0.0, "greater than 0");
pub(super) const ZERO_OR_MORE: Range<f64> =
    (|value| value.is_finite() && value >= 0.0, "at least 0");
pub(super) const BELOW_ONE: Range<f64> = (
    |value| (0.0..1.0).contains(&value),
    "at least 0 and less than 1",
);
pub(super) const UP_TO_ONE: Range<f64> = (
    |value| value > 0.0 && value <= 1.0,
    "greater than 0 and at most 1",
);

/// An error for the first setting that is out of its range.
pub(super) fn check<N: Copy + Debug>(
    settings: impl IntoIterator<Item = (&'static str, N, Range<N>)>,
) -> Result<(), TrainError> {
    for (setting, value, (is_valid, range)) in settings {
        if !is_valid(value) {
            return Err(TrainError::Setting {
                setting,
                // Debug writes 1e308 so, and Display in 309 digits.
                value: format!("{value:?}").trim_end_matches(".0").to_owned(),
                range,
            });
        }
    }
    Ok(())
}
