//! Layers that are not trained.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{Layer, Pipeline};

use super::value::{ValueError, as_text};
use crate::error::TrainError;

/// Which layers are not trained, as flags and configuration files write it: a number, or `body`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FreezeSetting {
    /// The first layers, this many.
    Layers(usize),
    /// All but the last one, the head.
    Body,
}

impl FreezeSetting {
    /// How many of a model's `layers` are not trained.
    ///
    /// ```
    /// use stovepipe_train::settings::FreezeSetting;
    ///
    /// assert_eq!(FreezeSetting::Body.layers(9)?, 8);
    /// assert_eq!(FreezeSetting::Layers(3).layers(9)?, 3);
    /// assert!(FreezeSetting::Layers(9).layers(9).is_err());
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If no layer would be trained.
    pub fn layers(self, layers: usize) -> Result<usize, TrainError> {
        let frozen = match self {
            Self::Layers(frozen) => frozen,
            Self::Body => layers.saturating_sub(1),
        };
        if frozen > 0 && frozen >= layers {
            return Err(TrainError::AllFrozen { frozen, layers });
        }
        Ok(frozen)
    }

    /// Freezes layers before a pipeline is built of them, so that the cut accounts for it.
    ///
    /// # Errors
    ///
    /// If no layer would be trained.
    pub fn apply<L: Layer>(self, layers: Vec<L>) -> Result<Vec<L>, TrainError> {
        let frozen = self.layers(layers.len())?;
        Ok(freeze(layers, frozen))
    }

    pub(crate) fn apply_to<L: Layer>(self, pipeline: &mut Pipeline<L>) -> Result<(), TrainError> {
        let frozen = self.layers(pipeline.layers().len())?;
        if frozen == 0 {
            return Ok(());
        }
        let stages = pipeline.stages().into_iter();
        let of_stages = stages
            .map(|stage| frozen.saturating_sub(stage.layers.start))
            .collect();
        pipeline.change_stages(of_stages, |_, layers, frozen| {
            Ok((freeze(layers, frozen), frozen))
        })?;
        Ok(())
    }
}

/// Freezes the first layers: their parameters get no gradients, and they run as in evaluation.
fn freeze<L: Layer>(mut layers: Vec<L>, frozen: usize) -> Vec<L> {
    let rest = layers.split_off(frozen.min(layers.len()));
    layers.into_iter().map(L::freeze).chain(rest).collect()
}

impl FromStr for FreezeSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if text.eq_ignore_ascii_case("body") {
            return Ok(Self::Body);
        }
        (text.parse().map(Self::Layers)).map_err(|_| ValueError::Freeze)
    }
}

impl fmt::Display for FreezeSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Layers(layers) => layers.fmt(f),
            Self::Body => f.write_str("body"),
        }
    }
}

as_text!(FreezeSetting);
