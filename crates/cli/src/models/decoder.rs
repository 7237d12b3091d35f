//! Decoders: pretrained ones, from a folder of the Hugging Face Hub, and small ones from scratch.

use std::{
    fs,
    path::{Path, PathBuf, absolute},
};

use burn::{
    store::KeyRemapper,
    tensor::{Device, FloatDType, Tensor},
};
use clap::{ArgAction, Args, ValueEnum};
use serde::{Deserialize, Serialize};
use stovepipe::{pipeline::Pipeline, train::TrainSettings};
use stovepipe_decoder::{DecoderConfig, DecoderLayer, LoraConfig, Targets};
use stovepipe_transformer::{Sampling, continue_tokens};

use super::model::{Hub, LanguageModel, Model, ModelWork, Origin, Reads, Sizes, needs};
use crate::{
    error::{CliError, usage},
    files::{ADAPTER_CONFIG, HUB_CONFIG},
    memory_check,
};

/// Llama, Mistral or Qwen from a folder of the Hugging Face Hub, or a small Llama from scratch
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Decoder {
    /// Blocks
    #[arg(long, value_name = "N", default_value_t = 4)]
    layers: usize,
    /// Width, divisible by the heads
    #[arg(long, value_name = "N", default_value_t = 128)]
    width: usize,
    /// Heads of attention
    #[arg(long, value_name = "N", default_value_t = 4)]
    heads: usize,
    /// Heads of keys and values, which divide the heads; if not given, as many
    #[arg(long, value_name = "N")]
    key_heads: Option<usize>,
    /// Width of the feed-forward layers; if not given, three times the width
    #[arg(long, value_name = "N")]
    feed_forward: Option<usize>,
    /// Tokens that the model sees at once
    #[arg(long, value_name = "N", default_value_t = 128)]
    length: usize,
    /// Tokens that the model knows; 0 for those of the tokenizer
    #[arg(long, value_name = "N", default_value_t = 0)]
    vocabulary: usize,
    /// Whether the softmax has the weights of the embedding
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    tied: bool,
    /// Rank of an adapter (LoRA), which alone is trained; 0 trains all weights
    #[arg(long, value_name = "R", default_value_t = 0)]
    lora_rank: usize,
    /// What the adapter's part is multiplied by, divided by the rank; if not given, twice the rank
    #[arg(long, value_name = "ALPHA")]
    lora_alpha: Option<f64>,
    /// Whether lora-alpha is divided by the root of the rank
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false)]
    lora_rank_stabilized: bool,
    /// Probability that training drops an input of the adapter
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    lora_dropout: f64,
    /// Linear layers with an adapter: all-linear, names such as q_proj,v_proj, or a pattern of whole names
    #[arg(long, value_name = "NAMES", default_value = "all-linear")]
    lora_targets: String,
    /// Type of the weights that an adapter leaves as they are
    #[arg(long, value_enum, default_value_t = BaseType::F32)]
    base: BaseType,
    /// Whether it starts from a folder of the Hugging Face Hub
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = false, hide = true)]
    is_pretrained: bool,
    /// An adapter of peft to start from: its folder
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// The adapter_config.json of --adapter
    #[arg(long, value_name = "JSON", hide = true)]
    adapter_config: Option<String>,
    /// The config.json of the model that --from has
    #[arg(long, value_name = "JSON", hide = true)]
    architecture: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum BaseType {
    F32,
    Bf16,
    F16,
}

impl Decoder {
    fn config(&self, vocabulary: usize) -> Result<DecoderConfig, CliError> {
        if let Some(text) = &self.architecture {
            return Ok(DecoderConfig::from_json(text)?);
        }
        let usual = DecoderConfig::new(vocabulary, self.width, self.layers, self.heads);
        if !self.width.is_multiple_of(self.heads.max(1)) {
            let (width, heads) = (self.width, self.heads);
            return Err(usage!("{heads} heads cannot share a width of {width}"));
        }
        Ok(DecoderConfig {
            keys: self.key_heads.unwrap_or(usual.keys),
            feed_forward: self.feed_forward.unwrap_or(usual.feed_forward),
            length: self.length,
            tied: self.tied,
            ..usual
        })
    }

    fn lora(&self) -> Result<Option<LoraConfig>, CliError> {
        if let Some(text) = &self.adapter_config {
            return Ok(Some(LoraConfig::from_json(text)?));
        }
        let targets = self.lora_targets.as_str();
        let is_name = |c: char| c.is_ascii_alphanumeric() || "._, ".contains(c);
        let names = || {
            targets
                .split(',')
                .map(|name| name.trim().to_owned())
                .collect()
        };
        let usual = LoraConfig::new(self.lora_rank);
        Ok((self.lora_rank > 0).then(|| LoraConfig {
            alpha: self.lora_alpha.unwrap_or(usual.alpha),
            rank_stabilized: self.lora_rank_stabilized,
            dropout: self.lora_dropout,
            targets: match targets {
                "all-linear" => Targets::All,
                names_only if names_only.chars().all(is_name) => Targets::Names(names()),
                pattern => Targets::Pattern(pattern.to_owned()),
            },
            ..usual
        }))
    }

    fn layers_of(&self, config: &DecoderConfig) -> Result<Vec<DecoderLayer>, CliError> {
        let device = Device::flex();
        let dtype = match self.base {
            BaseType::F32 => FloatDType::F32,
            BaseType::Bf16 => FloatDType::BF16,
            BaseType::F16 => FloatDType::F16,
        };
        let layers = match self.architecture {
            Some(_) => config.init_to_load(dtype, &device)?,
            None => config.init(&device)?,
        };
        match self.lora()? {
            Some(lora) => Ok(lora.add_to(layers, config, &device)?),
            None => Ok(layers),
        }
    }
}

impl LanguageModel for DecoderLayer {
    fn generate(
        pipeline: &Pipeline<Self>,
        prompt: &[u32],
        tokens: usize,
        sampling: &Sampling,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Vec<u32>, CliError> {
        let Some(Self::Embed(first)) = pipeline.layers().first() else {
            return Err(stovepipe_transformer::GenerationError::NoEmbedding.into());
        };
        let limits @ [length, _] = [first.length(), first.vocabulary()];
        if prompt.len() > length {
            let found = prompt.len();
            return Err(usage!(
                "the prompt has {found} tokens, but the model has {length} positions: shorten it"
            ));
        }
        Ok(continue_tokens(
            pipeline, limits, prompt, tokens, sampling, each,
        )?)
    }

    fn delta(&self, linear: &str) -> Option<Tensor<2>> {
        self.lora_delta(linear)
    }
}

impl Model for Decoder {
    fn reads(&self) -> Reads {
        Reads::Text
    }

    fn training(&self) -> TrainSettings {
        let usual = TrainSettings {
            epochs: 12,
            batch_size: 16,
            lr: 3e-3,
            warmup_epochs: 0.5,
            weight_decay: 0.1,
            label_smoothing: 0.0,
            clip: 1.0,
            ..TrainSettings::default()
        };
        let has_lora = self.lora_rank > 0 || self.adapter.is_some();
        let (epochs, lr, weight_decay) = match (has_lora, self.is_pretrained) {
            (false, false) => return usual,
            (false, true) => (3, 2e-5, 0.0),
            (true, false) => (30, 1e-3, 0.0),
            (true, true) => (3, 2e-4, 0.0),
        };
        TrainSettings {
            epochs,
            lr,
            weight_decay,
            warmup_epochs: 0.1,
            ..usual
        }
    }

    fn settle(&mut self, _: usize) {
        self.key_heads.get_or_insert(self.heads);
        self.feed_forward
            .get_or_insert(self.width.saturating_mul(3));
    }

    fn set_vocabulary(&mut self, tokens: usize) {
        if self.vocabulary == 0 {
            self.vocabulary = tokens;
        }
    }

    fn window(&self) -> usize {
        self.length
    }

    fn adopt(&mut self, origin: Origin<'_>) -> Result<&'static [&'static str], CliError> {
        let config = match origin {
            Origin::Folder(folder) => {
                let path = folder.join(HUB_CONFIG);
                let text = fs::read_to_string(&path).map_err(CliError::file(&path))?;
                (self.architecture, self.is_pretrained) = (Some(text), true);
                let config = DecoderConfig::open(folder)?;
                self.length = self.length.min(config.length);
                config
            }
            Origin::Run { hub, window } => {
                self.length = window;
                self.architecture = Some(hub.config.to_json());
                hub.config
            }
        };
        (self.layers, self.width, self.heads) = (config.blocks, config.width, config.heads);
        (self.key_heads, self.feed_forward) = (Some(config.keys), Some(config.feed_forward));
        (self.vocabulary, self.tied) = (config.vocabulary, config.tied);
        Ok(&[
            "layers",
            "width",
            "heads",
            "key-heads",
            "feed-forward",
            "vocabulary",
            "tied",
        ])
    }

    fn adopt_adapter(&mut self) -> Result<(), CliError> {
        let Some(folder) = &self.adapter else {
            return Ok(());
        };
        if self.lora_rank > 0 {
            return Err(usage!("lora-rank is what --adapter has: leave it out"));
        }
        let path = folder.join(ADAPTER_CONFIG);
        LoraConfig::open(folder)?;
        let text = fs::read_to_string(&path).map_err(CliError::file(&path))?;
        self.adapter_config = Some(text);
        Ok(())
    }

    fn locate(&mut self) {
        let adapter = self.adapter.take();
        self.adapter = adapter.map(|path| absolute(&path).unwrap_or(path));
    }

    fn adapter(&self) -> Option<&Path> {
        self.adapter.as_deref()
    }

    fn names_elsewhere(&self) -> Option<KeyRemapper> {
        let config = self.config(self.vocabulary.max(1)).ok()?;
        Some(config.hub_keys())
    }

    fn has_frozen_base(&self) -> bool {
        matches!(self.lora(), Ok(Some(_)))
    }

    fn has_bf16(&self) -> bool {
        self.base == BaseType::Bf16
    }

    fn avoid_bf16(&mut self, has_f16: bool) {
        self.base = if has_f16 {
            BaseType::F16
        } else {
            BaseType::F32
        };
    }

    fn may_lack(&self) -> Box<dyn Fn(&str) -> bool> {
        let tied = self.tied;
        Box::new(move |name| name.contains(".lora.") || tied && name.ends_with(".lm_head.weight"))
    }

    fn twins(&self) -> Option<[String; 2]> {
        let last = self.layers + 1;
        let names = || {
            [
                "layers.0.embed_tokens".to_owned(),
                format!("layers.{last}.lm_head"),
            ]
        };
        self.tied.then(|| names().map(|name| name + ".weight"))
    }

    fn hub(&self) -> Option<Hub> {
        let config = self.config(self.vocabulary).ok()?;
        let lora = self.lora().ok()?;
        Some(Hub { config, lora })
    }

    fn sample_needs(&self, sizes: &Sizes) -> u64 {
        needs([
            self.length,
            sizes.tokenizer.vocabulary().max(self.vocabulary),
        ])
    }

    fn to_verify() -> Self {
        Self {
            layers: 2,
            width: 16,
            key_heads: Some(2),
            length: 12,
            ..Self::default()
        }
    }

    fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError> {
        let vocabulary = match self.vocabulary {
            0 => sizes.tokenizer.vocabulary(),
            vocabulary => vocabulary,
        };
        let config = self.config(vocabulary)?;
        sizes.tokenizer.check_vocabulary(config.vocabulary)?;
        if self.length > config.length {
            let (length, positions) = (self.length, config.length);
            return Err(usage!(
                "length is {length}, but the model has {positions} positions"
            ));
        }
        let is_frozen = self.lora()?.is_some() && self.architecture.is_some();
        if self.base != BaseType::F32 && !is_frozen {
            return Err(usage!(
                "base is for weights of --from that an adapter leaves as they are: give --from and \
                 --lora-rank, or leave it out"
            ));
        }
        let layers = match self.architecture {
            Some(_) => self.layers_of(&config)?,
            None => memory_check::of_layers(config.blocks, |blocks| {
                let config = DecoderConfig {
                    blocks,
                    ..config.clone()
                };
                self.layers_of(&config)
            })?,
        };
        work.predict_text(layers)
    }
}
