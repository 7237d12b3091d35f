//! What is trained: its settings, and the models that they name.

use std::path::PathBuf;

use burn::{store::KeyRemapper, tensor::Device};
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_transformer::{LmConfig, LmLayer, Pool, Positions, VitConfig, VitLayer};

use stovepipe_text::Tokenizer;

use crate::{error::CliError, pretrained::Head};

/// What is trained. A setting that the model does not have is none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
#[command(next_help_heading = "Model")]
pub struct ModelSettings {
    /// Model
    #[arg(long, required = false, value_enum)]
    pub model: ModelName,
    /// Weights to begin with: a run's folder, safetensors or a .pt of PyTorch; torchgpipe's names of AmoebaNet-D and timm's of
    /// vision transformers are known
    #[arg(long, value_name = "PATH")]
    pub from: Option<PathBuf>,
    /// Whether the head begins anew [default: if those weights are for other classes]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub new_head: Option<bool>,
    /// Normal cells of AmoebaNet (its L, divisible by 3), or blocks of a Transformer
    #[arg(long, value_name = "L")]
    pub layers: Option<usize>,
    /// Filters of AmoebaNet (its D), divisible by 4
    #[arg(long, value_name = "D")]
    pub filters: Option<usize>,
    /// Whether an auxiliary head of AmoebaNet adds a loss at two thirds of the depth
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub auxiliary: Option<bool>,
    /// Probability that training drops an operation of AmoebaNet's last cell from a sample, or a branch of
    /// a vision transformer's last block; less in those before
    #[arg(long, value_name = "PROBABILITY")]
    pub drop_path: Option<f64>,
    /// Width of a Transformer, divisible by its heads
    #[arg(long, value_name = "D")]
    pub width: Option<usize>,
    /// Heads of a Transformer's attention
    #[arg(long, value_name = "N")]
    pub heads: Option<usize>,
    /// Width of a Transformer's feed-forward layers
    #[arg(long, value_name = "D")]
    pub feed_forward: Option<usize>,
    /// Probability that training drops a value, in each block of a Transformer and within its attention
    #[arg(long, value_name = "PROBABILITY")]
    pub dropout: Option<f64>,
    /// Side of a vision transformer's patches, in pixels [default: 4, and 16 where images have 96 pixels a side or more]
    #[arg(long, value_name = "N")]
    pub patch: Option<usize>,
    /// What a vision transformer's head reads
    #[arg(long, value_enum)]
    pub pool: Option<PoolSetting>,
    /// Tokens that a language model sees at once
    #[arg(long, value_name = "N")]
    pub length: Option<usize>,
    /// Tokens that a language model knows; 0 for those of the tokenizer
    #[arg(long, value_name = "N")]
    pub vocabulary: Option<usize>,
    /// Whether a language model's softmax has the weights of its embedding
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub tied: Option<bool>,
    /// How a language model knows the place of a token
    #[arg(long, value_enum)]
    pub positions: Option<PositionsSetting>,
}

/// A model by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum ModelName {
    /// AmoebaNet-D(L, D), by Real et al.
    #[value(name = "amoebanet-d")]
    #[serde(rename = "amoebanet-d")]
    AmoebaNetD,
    /// AmoebaNet-B(L, D), with separable convolutions
    #[value(name = "amoebanet-b")]
    #[serde(rename = "amoebanet-b")]
    AmoebaNetB,
    /// Vision transformer
    Vit,
    /// Language model of Transformer blocks
    TransformerLm,
}

/// What a vision transformer's head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PoolSetting {
    /// A token of its own
    ClassToken,
    /// The mean of all patches
    Mean,
}

/// How a language model knows the place of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PositionsSetting {
    /// By waves of fixed lengths
    Sinusoidal,
    /// By a learned table
    Learned,
}

/// Which models have a setting.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    AmoebaNet,
    Transformers,
    Vit,
    Lm,
    Images,
}

impl Of {
    fn has(self, model: ModelName) -> bool {
        use ModelName::*;
        match self {
            Self::AmoebaNet => matches!(model, AmoebaNetD | AmoebaNetB),
            Self::Transformers => matches!(model, Vit | TransformerLm),
            Self::Vit => model == Vit,
            Self::Lm => model == TransformerLm,
            Self::Images => model != TransformerLm,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::AmoebaNet => "amoebanet-d and amoebanet-b",
            Self::Transformers => "vit and transformer-lm",
            Self::Vit => "vit",
            Self::Lm => "transformer-lm",
            Self::Images => "amoebanet-d, amoebanet-b and vit",
        }
    }
}

impl Default for ModelSettings {
    fn default() -> Self {
        Self::bare(ModelName::AmoebaNetD)
    }
}

impl ModelSettings {
    /// A model and nothing said of it.
    pub fn bare(model: ModelName) -> Self {
        Self {
            model,
            from: None,
            new_head: None,
            layers: None,
            filters: None,
            auxiliary: None,
            drop_path: None,
            width: None,
            heads: None,
            feed_forward: None,
            dropout: None,
            patch: None,
            pool: None,
            length: None,
            vocabulary: None,
            tied: None,
            positions: None,
        }
    }

    /// A model and its usual settings, for images of so many pixels a side if it reads images.
    pub fn usual(model: ModelName, image: usize) -> Self {
        let mut settings = Self::bare(model);
        settings.fill_in(image);
        settings
    }

    /// Whether it reads text, not images.
    pub fn is_language(&self) -> bool {
        self.model == ModelName::TransformerLm
    }

    /// Refuses settings that the model does not have, and fills in those that it has, for images of so many pixels a
    /// side if it reads images.
    pub fn settle(&mut self, image: usize) -> Result<(), CliError> {
        let given = [
            ("new-head", self.new_head.is_some(), Of::Images),
            ("filters", self.filters.is_some(), Of::AmoebaNet),
            ("auxiliary", self.auxiliary.is_some(), Of::AmoebaNet),
            ("drop-path", self.drop_path.is_some(), Of::Images),
            ("width", self.width.is_some(), Of::Transformers),
            ("heads", self.heads.is_some(), Of::Transformers),
            (
                "feed-forward",
                self.feed_forward.is_some(),
                Of::Transformers,
            ),
            ("dropout", self.dropout.is_some(), Of::Transformers),
            ("patch", self.patch.is_some(), Of::Vit),
            ("pool", self.pool.is_some(), Of::Vit),
            ("length", self.length.is_some(), Of::Lm),
            ("vocabulary", self.vocabulary.is_some(), Of::Lm),
            ("tied", self.tied.is_some(), Of::Lm),
            ("positions", self.positions.is_some(), Of::Lm),
        ];
        let foreign = (given.into_iter()).find(|&(_, given, of)| given && !of.has(self.model));
        if let Some((setting, _, of)) = foreign {
            return Err(CliError::NotOfModel {
                setting,
                of: of.name(),
                model: self.name(),
            });
        }
        // An empty path, as a configuration may have it, is none.
        self.from = self.from.take().filter(|path| !path.as_os_str().is_empty());
        self.fill_in(image);
        Ok(())
    }

    /// The usual settings of the model, where none were given.
    fn fill_in(&mut self, image: usize) {
        match self.model {
            ModelName::AmoebaNetD | ModelName::AmoebaNetB => {
                self.layers.get_or_insert(3);
                self.filters.get_or_insert(16);
                self.auxiliary.get_or_insert(false);
                self.drop_path.get_or_insert(0.0);
            }
            ModelName::Vit => {
                self.layers.get_or_insert(4);
                let width = *self.width.get_or_insert(96);
                self.heads.get_or_insert(4);
                self.feed_forward.get_or_insert(width.saturating_mul(4));
                self.dropout.get_or_insert(0.0);
                self.drop_path.get_or_insert(0.0);
                // Attention takes time by the square of the number of patches.
                self.patch
                    .get_or_insert(if is_small(image) { 4 } else { 16 });
                self.pool.get_or_insert(PoolSetting::Mean);
            }
            ModelName::TransformerLm => {
                self.layers.get_or_insert(4);
                let width = *self.width.get_or_insert(128);
                self.heads.get_or_insert(4);
                self.feed_forward.get_or_insert(width.saturating_mul(4));
                self.dropout.get_or_insert(0.05);
                self.length.get_or_insert(128);
                self.vocabulary.get_or_insert(0);
                self.tied.get_or_insert(true);
                self.positions.get_or_insert(PositionsSetting::Learned);
            }
        }
    }

    /// The model as flags call it.
    pub fn name(&self) -> String {
        let value = self.model.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Tokens that a language model sees at once.
    pub fn window(&self) -> usize {
        self.length.unwrap_or(1)
    }

    /// What is for the classes alone, of a model that tells classes.
    pub fn head(&self) -> Option<Head> {
        let (cells, filters) = (self.layers.unwrap_or(0), self.filters.unwrap_or(0));
        let (classifier, auxiliary) = match self.model {
            ModelName::AmoebaNetD => (
                AmoebaNetDConfig::new(cells, filters, 1).classifier(),
                Some(".auxiliary."),
            ),
            ModelName::AmoebaNetB => (
                AmoebaNetBConfig::new(cells, filters, 1).classifier(),
                Some(".auxiliary."),
            ),
            ModelName::Vit => (self.vit_config(32, 1).classifier(), None),
            ModelName::TransformerLm => return None,
        };
        Some(Head {
            prefix: classifier + ".",
            auxiliary,
        })
    }

    /// What others call the tensors of such a model, if that is known.
    pub fn names_elsewhere(&self) -> Option<KeyRemapper> {
        // Images and classes have no part in names.
        let (cells, filters) = (self.layers.unwrap_or(0), self.filters.unwrap_or(0));
        match self.model {
            ModelName::AmoebaNetD => Some(AmoebaNetDConfig::new(cells, filters, 1).torch_keys()),
            ModelName::AmoebaNetB => Some(AmoebaNetBConfig::new(cells, filters, 1).torch_keys()),
            ModelName::Vit => Some(self.vit_config(32, 1).timm_keys()),
            ModelName::TransformerLm => None,
        }
    }

    /// AmoebaNet's layers for images of so many pixels a side, nothing allocated.
    pub fn amoebanet(&self, image: usize, classes: usize) -> Result<Vec<AmoebaLayer>, CliError> {
        let (cells, filters) = (self.layers.unwrap_or(0), self.filters.unwrap_or(0));
        let auxiliary = self.auxiliary.unwrap_or(false);
        let drop_path = self.drop_path.unwrap_or(0.0);
        let device = Device::flex();
        // What ImageNet's stem leaves of a small image is too small for the cells.
        let stem = if is_small(image) {
            Stem::Small
        } else {
            Stem::ImageNet
        };
        Ok(match self.model {
            ModelName::AmoebaNetB => AmoebaNetBConfig::new(cells, filters, classes)
                .with_stem(stem)
                .with_auxiliary(auxiliary)
                .with_drop_path(drop_path)
                .init(&device)?,
            _ => AmoebaNetDConfig::new(cells, filters, classes)
                .with_stem(stem)
                .with_auxiliary(auxiliary)
                .with_drop_path(drop_path)
                .init(&device)?,
        })
    }

    /// A vision transformer's layers for images of so many pixels a side, nothing allocated.
    pub fn vit(&self, image: usize, classes: usize) -> Result<Vec<VitLayer>, CliError> {
        Ok(self.vit_config(image, classes).init(&Device::flex())?)
    }

    fn vit_config(&self, image: usize, classes: usize) -> VitConfig {
        let [layers, width, heads, patch, d_ff] = [
            self.layers,
            self.width,
            self.heads,
            self.patch,
            self.feed_forward,
        ]
        .map(Option::unwrap_or_default);
        let pool = match self.pool {
            Some(PoolSetting::Mean) => Pool::Mean,
            _ => Pool::ClassToken,
        };
        let dropout = self.dropout.unwrap_or(0.0);
        VitConfig::new(image, patch, layers, width, heads, classes)
            .with_d_ff(Some(d_ff))
            .with_pool(pool)
            .with_dropout(dropout)
            .with_attention_dropout(dropout)
            .with_drop_path(self.drop_path.unwrap_or(0.0))
    }

    /// A language model's layers for the tokens of a tokenizer, nothing allocated.
    pub fn language_model(&self, tokenizer: &Tokenizer) -> Result<Vec<LmLayer>, CliError> {
        let [layers, width, heads, d_ff] =
            [self.layers, self.width, self.heads, self.feed_forward].map(Option::unwrap_or_default);
        let vocabulary = match self.vocabulary {
            None | Some(0) => tokenizer.vocabulary(),
            Some(vocabulary) => vocabulary,
        };
        tokenizer.check_vocabulary(vocabulary)?;
        let positions = match self.positions {
            Some(PositionsSetting::Sinusoidal) => Positions::Sinusoidal,
            _ => Positions::Learned,
        };
        Ok(
            LmConfig::new(vocabulary, self.window(), layers, width, heads)
                .with_d_ff(Some(d_ff))
                .with_dropout(self.dropout.unwrap_or(0.0))
                .with_tied(self.tied.unwrap_or(true))
                .with_positions(positions)
                .init(&Device::flex())?,
        )
    }
}

/// Whether images of so many pixels a side are small, as CIFAR's are and ImageNet's are not.
fn is_small(image: usize) -> bool {
    image < 96
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_grow_with_images() {
        for (image, patch) in [(32, 4), (64, 4), (96, 16), (224, 16)] {
            assert_eq!(
                ModelSettings::usual(ModelName::Vit, image).patch,
                Some(patch)
            );
        }
        let mut given = ModelSettings {
            patch: Some(8),
            ..ModelSettings::bare(ModelName::Vit)
        };
        assert!(given.settle(224).is_ok());
        assert_eq!(given.patch, Some(8));
    }
}
