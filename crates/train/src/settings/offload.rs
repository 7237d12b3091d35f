//! What lies off its device while it is not used.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// The memory of the host, as `offload-to` writes it.
pub(crate) const HOST: &str = "host";

/// What lies off its device while it is not used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OffloadSetting {
    /// Nothing
    #[default]
    None,
    /// What the optimizer keeps of each parameter, gradients, and averages of weights
    Optimizer,
}
