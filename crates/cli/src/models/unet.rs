//! U-Net, which `verify` verifies.

use burn::tensor::Device;
use clap::Args;
use serde::{Deserialize, Serialize};
use stovepipe_unet::UNetConfig;

use super::model::{Model, ModelWork, Sizes};
use crate::error::CliError;

/// U-Net(B, C), with long skips
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct UNet {
    /// Convolutions of each level
    #[arg(long, value_name = "N", default_value_t = 1)]
    layers: usize,
    /// Channels of the first level
    #[arg(long, value_name = "N", default_value_t = 4)]
    filters: usize,
    /// Probability that training drops a channel
    #[arg(long, value_name = "P", default_value_t = 0.2)]
    drop_path: f64,
}

impl Model for UNet {
    fn is_trained(&self) -> bool {
        false
    }

    fn build<W: ModelWork>(&self, _: &Sizes, work: W) -> Result<W::Done, CliError> {
        let config = UNetConfig::new(self.layers, self.filters)
            .with_depth(3)
            .with_dropout(self.drop_path);
        work.segment(config.init(&Device::flex())?)
    }
}
