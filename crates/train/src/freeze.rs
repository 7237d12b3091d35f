//! Layers that are not trained.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{Layer, Pipeline};

use crate::error::TrainError;

/// Which layers are not trained, as flags and configurations write it: `body`, or how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum FreezeSetting {
    /// So many, from the first on.
    Layers(usize),
    /// All but the last one, the head.
    Body,
}

impl FreezeSetting {
    /// How many of so many layers are not trained.
    ///
    /// ```
    /// use stovepipe_train::FreezeSetting;
    ///
    /// assert_eq!(FreezeSetting::Body.layers(9)?, 8);
    /// assert_eq!(FreezeSetting::Layers(3).layers(9)?, 3);
    /// assert!(FreezeSetting::Layers(9).layers(9).is_err());
    /// # Ok::<(), stovepipe_train::TrainError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If none would be left to train.
    pub fn layers(self, layers: usize) -> Result<usize, TrainError> {
        let frozen = match self {
            Self::Layers(frozen) => frozen,
            Self::Body => layers.saturating_sub(1),
        };
        match frozen == 0 || frozen < layers {
            true => Ok(frozen),
            false => Err(TrainError::AllFrozen { frozen, layers }),
        }
    }
}

impl FreezeSetting {
    /// Freezes layers before a pipeline is built of them, so that it is cut knowing what each costs.
    ///
    /// # Errors
    ///
    /// If none would be left to train.
    pub fn apply<L: Layer>(self, layers: Vec<L>) -> Result<Vec<L>, TrainError> {
        let frozen = self.layers(layers.len())?;
        Ok(freeze(layers, frozen))
    }

    /// Freezes layers of a pipeline.
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
            (freeze(layers, frozen), frozen)
        })?;
        Ok(())
    }
}

/// Freezes the first layers, so many of them: their parameters get no gradient, and what they would do in training
/// alone, such as a batch norm's statistics, they do not.
fn freeze<L: Layer>(layers: Vec<L>, frozen: usize) -> Vec<L> {
    let freeze = |(index, layer): (usize, L)| match index < frozen {
        true => layer.freeze(),
        false => layer,
    };
    layers.into_iter().enumerate().map(freeze).collect()
}

impl Default for FreezeSetting {
    fn default() -> Self {
        Self::Layers(0)
    }
}

impl FromStr for FreezeSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "body" => Ok(Self::Body),
            number => (number.parse().map(Self::Layers))
                .map_err(|_| "write a number of layers, or body for all but the last".to_owned()),
        }
    }
}

impl TryFrom<String> for FreezeSetting {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FreezeSetting> for String {
    fn from(freeze: FreezeSetting) -> Self {
        match freeze {
            FreezeSetting::Layers(layers) => layers.to_string(),
            FreezeSetting::Body => "body".to_owned(),
        }
    }
}
