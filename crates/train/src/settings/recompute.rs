//! What is recomputed.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{Recompute, error::UnknownRecompute};
use stovepipe_schedule::is_name;

use super::value::{ValueError, as_text};

/// What is recomputed, as flags and configuration files write it: always, except-last, never, by-layer,
/// or layers, as in 0-3,7-9.
///
/// ```
/// use stovepipe_pipeline::Recompute;
/// use stovepipe_train::settings::RecomputeSetting;
///
/// assert_eq!("never".parse(), Ok(RecomputeSetting::Fixed(Recompute::Never)));
/// assert_eq!("by-layer".parse(), Ok(RecomputeSetting::ByLayer));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RecomputeSetting {
    /// The layers that fit with the fastest predicted step. Needs measured layers.
    ByLayer,
    /// As it says.
    Fixed(Recompute),
}

impl RecomputeSetting {
    /// What is recomputed, if it is known before layers are measured.
    #[must_use]
    pub fn fixed(&self) -> Option<&Recompute> {
        match self {
            Self::ByLayer => None,
            Self::Fixed(recompute) => Some(recompute),
        }
    }
}

impl Default for RecomputeSetting {
    fn default() -> Self {
        Self::Fixed(Recompute::default())
    }
}

const BY_LAYER: &str = "by-layer";

impl FromStr for RecomputeSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if is_name(text, BY_LAYER) {
            return Ok(Self::ByLayer);
        }
        text.parse().map(Self::Fixed).map_err(|error| match error {
            UnknownRecompute::Segments(error) => ValueError::Segments(error),
            _ => ValueError::Recompute(text.to_owned()),
        })
    }
}

impl fmt::Display for RecomputeSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ByLayer => f.write_str(BY_LAYER),
            Self::Fixed(recompute) => recompute.fmt(f),
        }
    }
}

as_text!(RecomputeSetting);
