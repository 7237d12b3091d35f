//! The flags that several programs have.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use serde::Serialize;

/// Flags of a benchmark; they are saved with its results.
#[derive(Args, Clone, Debug, Serialize)]
pub struct Arguments {
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    pub out: PathBuf,
    /// The model to measure
    #[arg(long, value_enum, default_value = "all")]
    pub model: ModelChoice,
    /// Small sizes and few rounds, to show that the program works
    #[arg(long)]
    pub quick: bool,
    /// Turns of each configuration
    #[arg(long, value_name = "N")]
    pub rounds: Option<usize>,
    /// Minimum length of a turn, in milliseconds
    #[arg(long, value_name = "MS")]
    pub turn: Option<u64>,
    /// Filters of AmoebaNet-D for images of 32×32 (default: depends on the program)
    #[arg(long, value_name = "D")]
    pub small_filters: Option<usize>,
    /// Samples in a micro-batch (default: depends on the model)
    #[arg(long, value_name = "N")]
    pub samples: Option<usize>,
    /// Work as one of the configurations, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub contender: Option<String>,
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
    pub fn includes(self, model: Self) -> bool {
        self == model || self == Self::All
    }
}

impl Arguments {
    /// The turns of each configuration.
    pub fn rounds(&self, usual: usize) -> usize {
        let usual = if self.quick { 2 } else { usual };
        self.rounds.unwrap_or(usual).max(1)
    }

    /// The minimum length of a turn: short steps are repeated within it.
    pub fn turn(&self) -> Duration {
        let usual = if self.quick { 1 } else { 250 };
        Duration::from_millis(self.turn.unwrap_or(usual))
    }
}

/// Flags of the benchmarks that measure with several numbers of micro-batches.
#[derive(Args, Clone, Debug, Serialize)]
pub struct SweepArguments {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub arguments: Arguments,
    /// Numbers of micro-batches
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub micro_batches: Vec<usize>,
}

impl SweepArguments {
    /// The same with the numbers of micro-batches filled in where no flag names them.
    pub fn or_micro_batches(mut self, quick: &[usize], usual: &[usize]) -> Self {
        if self.micro_batches.is_empty() {
            self.micro_batches = if self.arguments.quick { quick } else { usual }.to_vec();
        }
        self
    }
}

/// Flags of the benchmarks that measure memory in child processes.
#[derive(Args, Clone, Debug, Serialize)]
pub struct MemoryArguments {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub arguments: Arguments,
    /// Micro-batches
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub micro_batches: usize,
    /// Measure this memory, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    pub memory_of: Option<String>,
}
