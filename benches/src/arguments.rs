//! The flags that all programs have.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Flags of every benchmark; they are saved with its figures.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Arguments {
    /// Folder for the figures, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    pub out: PathBuf,
    /// What to measure with
    #[arg(long, value_enum, default_value = "all")]
    pub model: ModelChoice,
    /// Small sizes and few rounds, to show that the program works
    #[arg(long)]
    pub quick: bool,
    /// Times that each configuration takes its turn
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Least length of a turn, in milliseconds
    #[arg(long, value_name = "MS")]
    pub turn: Option<u64>,
    /// Filters of AmoebaNet-D for images of 32×32; by default the program's own number
    #[arg(long, value_name = "D")]
    pub small_filters: Option<usize>,
    /// Samples in a micro-batch; by default the model's own number
    #[arg(long, value_name = "N")]
    pub samples: Option<usize>,
}

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ModelChoice {
    /// AmoebaNet-D for images of 32×32
    #[value(name = "amoebanet-32")]
    Amoebanet32,
    /// AmoebaNet-D for images of 224×224
    #[value(name = "amoebanet-224")]
    Amoebanet224,
    /// Equal Transformer layers
    Transformer,
    /// One after the other
    All,
}

impl ModelChoice {
    /// Whether `model` is chosen.
    #[must_use]
    pub fn includes(self, model: Self) -> bool {
        self == model || self == Self::All
    }
}

impl Arguments {
    /// How often each configuration takes its turn.
    #[must_use]
    pub fn rounds(&self, usual: usize) -> usize {
        let usual = if self.quick { 2 } else { usual };
        self.rounds.unwrap_or(usual).max(1)
    }

    /// The least length of a turn: short steps are repeated within it.
    #[must_use]
    pub fn turn(&self) -> Duration {
        let usual = if self.quick { 1 } else { 250 };
        Duration::from_millis(self.turn.unwrap_or(usual))
    }
}
