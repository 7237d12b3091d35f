//! A language model of Transformer blocks.

use burn::tensor::Device;
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe::{pipeline::Pipeline, train::TrainSettings};
use stovepipe_transformer::{LmConfig, LmLayer, Positions, Sampling, continue_text_with};

use super::model::{LanguageModel, Model, ModelWork, Reads, Sizes, needs};
use crate::{error::CliError, memory_check};

/// Language model of Transformer blocks
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct TransformerLm {
    /// Blocks
    #[arg(long, value_name = "N", default_value_t = 4)]
    layers: usize,
    /// Width, divisible by the heads
    #[arg(long, value_name = "N", default_value_t = 128)]
    width: usize,
    /// Heads of attention
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,
    /// Width of the feed-forward layers; if not given, four times the width
    #[arg(long, value_name = "N")]
    feed_forward: Option<usize>,
    /// Probability that training drops a value, in each block and within its attention
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    dropout: f64,
    /// Tokens that the model sees at once
    #[arg(long, value_name = "N", default_value_t = 128)]
    length: usize,
    /// Tokens that the model knows; 0 for those of the tokenizer
    #[arg(long, value_name = "N", default_value_t = 0)]
    vocabulary: usize,
    /// Whether the softmax has the weights of the embedding
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    tied: bool,
    /// How the model encodes the position of a token
    #[arg(long, value_enum, default_value_t = PositionsSetting::Learned)]
    positions: PositionsSetting,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum PositionsSetting {
    /// Fixed sines and cosines
    Sinusoidal,
    /// By a learned table
    Learned,
}

impl LanguageModel for LmLayer {
    fn generate(
        pipeline: &Pipeline<Self>,
        prompt: &[u32],
        tokens: usize,
        sampling: &Sampling,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Vec<u32>, CliError> {
        Ok(continue_text_with(
            pipeline, prompt, tokens, sampling, each,
        )?)
    }
}

impl Model for TransformerLm {
    fn reads(&self) -> Reads {
        Reads::Text
    }

    fn training(&self) -> TrainSettings {
        TrainSettings {
            epochs: 12,
            batch_size: 16,
            lr: 3e-3,
            warmup_epochs: 0.5,
            weight_decay: 0.1,
            label_smoothing: 0.0,
            clip: 1.0,
            ..TrainSettings::default()
        }
    }

    fn settle(&mut self, _: usize) {
        self.feed_forward
            .get_or_insert(self.width.saturating_mul(4));
    }

    fn set_vocabulary(&mut self, tokens: usize) {
        if self.vocabulary == 0 {
            self.vocabulary = tokens;
        }
    }

    fn window(&self) -> usize {
        self.length
    }

    fn sample_needs(&self, sizes: &Sizes) -> u64 {
        let weights = needs([self.heads, self.length, self.length]);
        weights.max(needs([self.length, sizes.tokenizer.vocabulary()]))
    }

    fn to_verify() -> Self {
        Self {
            layers: 2,
            width: 16,
            dropout: 0.2,
            length: 12,
            ..Self::default()
        }
    }

    fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError> {
        let vocabulary = match self.vocabulary {
            0 => sizes.tokenizer.vocabulary(),
            vocabulary => vocabulary,
        };
        sizes.tokenizer.check_vocabulary(vocabulary)?;
        let positions = match self.positions {
            PositionsSetting::Sinusoidal => Positions::Sinusoidal,
            PositionsSetting::Learned => Positions::Learned,
        };
        let layers = memory_check::of_layers(self.layers, |layers| {
            LmConfig::new(vocabulary, self.length, layers, self.width, self.heads)
                .with_d_ff(self.feed_forward)
                .with_dropout(self.dropout)
                .with_tied(self.tied)
                .with_positions(positions)
                .init(&Device::flex())
        })?;
        work.predict_text(layers)
    }
}
