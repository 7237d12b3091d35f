//! Settings that are written as text.

use stovepipe_pipeline::error::SegmentsError;
use thiserror::Error;

/// Text that is no value of its setting.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ValueError {
    /// For [`BalanceSetting`](super::BalanceSetting).
    #[error("write auto, time, size or even, or the layers of each stage, such as 5,4")]
    Balance,
    /// For [`FreezeSetting`](super::FreezeSetting).
    #[error("write a number of layers, or body for all but the last")]
    Freeze,
    /// For [`RateSetting`](super::RateSetting).
    #[error(
        "`{0}` is not a learning rate of parameters: write names of parameters, with * for any part, and a number, as in head.*=10"
    )]
    Rate(String),
    /// For [`RecomputeSetting`](super::RecomputeSetting): no mode.
    #[error(
        "`{0}` is not a recompute mode: use always, except-last, never, by-layer or layers, as in 0-3,7-9"
    )]
    Recompute(String),
    /// For [`RecomputeSetting`](super::RecomputeSetting): layers with a fault.
    #[error(transparent)]
    Segments(SegmentsError),
    /// For [`ScheduleSetting`](super::ScheduleSetting): neither a name nor a file; and all names.
    #[error("`{0}` is no schedule: use {1}, or the path of a .csv file")]
    Schedule(String, String),
}

/// Lets serde read and write a setting by its `FromStr` and `Display`.
macro_rules! as_text {
    ($setting:ty) => {
        impl TryFrom<String> for $setting {
            type Error = crate::settings::value::ValueError;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                text.parse()
            }
        }

        impl From<$setting> for String {
            fn from(setting: $setting) -> Self {
                setting.to_string()
            }
        }
    };
}

pub(super) use as_text;
