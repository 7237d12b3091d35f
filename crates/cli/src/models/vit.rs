//! The vision transformer.

use burn::{store::KeyRemapper, tensor::Device};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe::train::{TrainError, TrainSettings, Weights, weights::NameAndShape};
use stovepipe_transformer::{Pool, VitConfig};

use super::model::{Model, ModelWork, Sizes, needs};
use crate::{error::CliError, memory_check, pretrained::Head};

/// Vision transformer
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Vit {
    /// Blocks
    #[arg(long, value_name = "N", default_value_t = 4)]
    layers: usize,
    /// Probability that training drops a branch of the last cell or block; less in those before
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop_path: f64,
    /// Width, divisible by the heads
    #[arg(long, value_name = "N", default_value_t = 96)]
    width: usize,
    /// Heads of attention
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,
    /// Width of the feed-forward layers; if not given, four times the width
    #[arg(long, value_name = "N")]
    feed_forward: Option<usize>,
    /// Probability that training drops a value, in each block and within its attention
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    dropout: f64,
    /// Side of a patch, in pixels; if not given, 16 for images of 96 pixels or more
    #[arg(long, value_name = "N")]
    patch: Option<usize>,
    /// What the head reads
    #[arg(long, value_enum, default_value_t = PoolSetting::Mean)]
    pool: PoolSetting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum PoolSetting {
    /// A class token
    ClassToken,
    /// The mean of all patches
    Mean,
}

impl Vit {
    fn config(&self, image: usize, classes: usize) -> VitConfig {
        // Attention takes time by the square of the number of patches.
        let patch = self.patch.unwrap_or(if image < 96 { 4 } else { 16 });
        let pool = match self.pool {
            PoolSetting::ClassToken => Pool::ClassToken,
            PoolSetting::Mean => Pool::Mean,
        };
        VitConfig::new(image, patch, self.layers, self.width, self.heads, classes)
            .with_d_ff(self.feed_forward)
            .with_pool(pool)
            .with_dropout(self.dropout)
            .with_attention_dropout(self.dropout)
            .with_drop_path(self.drop_path)
    }
}

impl Model for Vit {
    fn training(&self) -> TrainSettings {
        TrainSettings {
            epochs: 30,
            batch_size: 32,
            lr: 1e-3,
            warmup_epochs: 3.0,
            weight_decay: 0.05,
            clip: 1.0,
            ..TrainSettings::default()
        }
    }

    fn settle(&mut self, image: usize) {
        self.feed_forward
            .get_or_insert(self.width.saturating_mul(4));
        self.patch = Some(self.config(image, 1).patch);
    }

    fn head(&self) -> Option<Head> {
        Some(Head::new(self.config(32, 1).classifier(), None))
    }

    fn names_elsewhere(&self) -> Option<KeyRemapper> {
        Some(self.config(32, 1).timm_keys())
    }

    fn resize(&self, image: usize, weights: &mut Weights) -> Result<bool, TrainError> {
        let config = self.config(image, 1);
        let shape = [config.tokens(), self.width];
        weights.resize("layers.0.positions", &shape, |own| {
            config.resized_positions(own)
        })
    }

    fn name_elsewhere(&self, image: usize, tensors: &mut [NameAndShape]) {
        self.config(image, 1).to_timm(tensors);
    }

    fn sample_needs(&self, sizes: &Sizes) -> u64 {
        let tokens = self.config(sizes.image, 1).tokens();
        needs([self.heads, tokens, tokens])
    }

    fn to_verify() -> Self {
        Self {
            layers: 2,
            drop_path: 0.2,
            width: 16,
            dropout: 0.2,
            patch: Some(8),
            pool: PoolSetting::ClassToken,
            ..Self::default()
        }
    }

    fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError> {
        let layers = memory_check::of_layers(self.layers, |layers| {
            let own = Self {
                layers,
                ..self.clone()
            };
            own.config(sizes.image, sizes.classes).init(&Device::flex())
        })?;
        work.classify(layers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_grow_with_images() {
        for (image, patch) in [(32, 4), (64, 4), (96, 16), (224, 16)] {
            let mut usual = Vit::default();
            usual.settle(image);
            assert_eq!(usual.patch, Some(patch));
        }
        let mut given = Vit {
            patch: Some(8),
            ..Vit::default()
        };
        given.settle(224);
        assert_eq!(given.patch, Some(8));
    }
}
