//! Adapters: which layers have one, and their files' configuration.

use std::{collections::BTreeMap, fs, path::Path};

use burn::tensor::{Device, Tensor};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    block::LINEARS,
    config::DecoderConfig,
    error::DecoderError,
    layer::DecoderLayer,
    linear::{DecoderLinear, Rank},
};

/// The name of an adapter's configuration in its folder.
const FILE: &str = "adapter_config.json";
/// PEFT's name for predicting the next token.
const CAUSAL: &str = "CAUSAL_LM";

/// An adapter of linear layers: y = W x + s · B A · dropout(x) (Hu et al., "LoRA: Low-Rank Adaptation of
/// Large Language Models", 2021). W is not trained and gets no gradient.
///
/// Its fields are those of PEFT's `LoraConfig`, with the same meaning.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_decoder::{DecoderConfig, LoraConfig, Targets};
///
/// let config = DecoderConfig::new(1000, 64, 2, 4);
/// let lora = LoraConfig {
///     targets: Targets::Names(vec!["q_proj".into(), "v_proj".into()]),
///     ..LoraConfig::new(8)
/// };
/// let layers = lora.add_to(config.init(&Device::flex())?, &config, &Device::flex())?;
/// assert_eq!(layers.len(), 4);
/// # Ok::<(), stovepipe_decoder::DecoderError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LoraConfig {
    /// The rank r of B A.
    pub rank: usize,
    /// s is α / r.
    pub alpha: f64,
    /// s is α / √r instead (Kalajdzievski, "A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA",
    /// 2023).
    pub rank_stabilized: bool,
    /// The probability that training drops an input of A.
    pub dropout: f64,
    /// Which linear layers have an adapter.
    pub targets: Targets,
    /// Other ranks, by patterns that match the end of a layer's name.
    pub rank_pattern: BTreeMap<String, usize>,
    /// Other α, in the same way.
    pub alpha_pattern: BTreeMap<String, f64>,
    /// The blocks that have adapters, from 0; all if `None`.
    pub blocks: Option<Vec<usize>>,
}

/// Which linear layers have an adapter. Their names are `model.layers.0.self_attn.q_proj` and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// All of all blocks: `all-linear`.
    All,
    /// Those of these names, or whose names end with them after a point.
    Names(Vec<String>),
    /// Those whose whole name matches this regular expression.
    Pattern(String),
}

impl LoraConfig {
    /// Of all linear layers: α is twice the rank, no dropout.
    #[must_use]
    pub fn new(rank: usize) -> Self {
        Self {
            rank,
            alpha: 2.0 * rank as f64,
            rank_stabilized: false,
            dropout: 0.0,
            targets: Targets::All,
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            blocks: None,
        }
    }

    /// Freezes the layers of a model, and adds the adapter: A is drawn, B is 0. The model computes the same
    /// as before until it is trained.
    ///
    /// # Errors
    ///
    /// If a rank is 0, a probability or α is not possible, or a target matches no layer.
    pub fn add_to(
        &self,
        layers: Vec<DecoderLayer>,
        config: &DecoderConfig,
        device: &Device,
    ) -> Result<Vec<DecoderLayer>, DecoderError> {
        let ranks = self.ranks(config)?;
        let layers = layers
            .into_iter()
            .enumerate()
            .map(|(index, layer)| match layer {
                DecoderLayer::Embed(first) => DecoderLayer::Embed(first.frozen()),
                DecoderLayer::Head(last) => DecoderLayer::Head(last.frozen()),
                DecoderLayer::Block(block) => {
                    let adapted = |name: &str, linear: DecoderLinear| {
                        let place = LINEARS.iter().position(|other| *other == name);
                        let block = ranks.get(index.wrapping_sub(1));
                        let rank = place.and_then(|place| block.and_then(|ranks| ranks[place]));
                        linear.adapted(rank, device)
                    };
                    DecoderLayer::Block(block.map(&adapted, |norm| norm.frozen()))
                }
            });
        Ok(layers.collect())
    }

    /// The adapters of each block's linear layers.
    fn ranks(&self, config: &DecoderConfig) -> Result<Vec<[Option<Rank>; 7]>, DecoderError> {
        self.check()?;
        let chosen = Chosen::new(&self.targets)?;
        let rank_of = Patterns::new(&self.rank_pattern)?;
        let alpha_of = Patterns::new(&self.alpha_pattern)?;
        if let Some(block) = self
            .blocks
            .iter()
            .flatten()
            .find(|block| **block >= config.blocks)
        {
            let reason = format!(
                "{block}, but the model has blocks 0 to {}",
                config.blocks - 1
            );
            return Err(DecoderError::value("layers_to_transform", reason));
        }
        let mut used = vec![false; chosen.count()];
        let blocks = (0..config.blocks).map(|block| {
            let is_chosen = self
                .blocks
                .as_ref()
                .is_none_or(|blocks| blocks.contains(&block));
            LINEARS.map(|linear| {
                let name = format!("model.layers.{block}.{linear}");
                let mut is_target = false;
                for (target, used) in used.iter_mut().enumerate() {
                    let matches = chosen.matches(target, &name);
                    *used |= matches;
                    is_target |= matches;
                }
                (is_target && is_chosen).then_some(())?;
                let rank = rank_of.find(&name).unwrap_or(self.rank);
                let alpha = alpha_of.find(&name).unwrap_or(self.alpha);
                let divisor = match self.rank_stabilized {
                    true => (rank as f64).sqrt(),
                    false => rank as f64,
                };
                Some(Rank {
                    rank,
                    scale: alpha / divisor,
                    dropout: self.dropout,
                })
            })
        });
        let blocks = blocks.collect();
        match used.iter().position(|used| !used) {
            None => Ok(blocks),
            Some(target) => Err(DecoderError::NoTarget {
                target: chosen.name(target),
                known: LINEARS.map(last_part).join(", "),
            }),
        }
    }

    fn check(&self) -> Result<(), DecoderError> {
        const MOST: usize = 1 << 16;
        let ranks = [self.rank]
            .into_iter()
            .chain(self.rank_pattern.values().copied());
        if let Some(rank) = ranks.into_iter().find(|rank| !(1..=MOST).contains(rank)) {
            return Err(DecoderError::value("r", format!("{rank}, not 1 to {MOST}")));
        }
        let mut alphas = [self.alpha]
            .into_iter()
            .chain(self.alpha_pattern.values().copied());
        if let Some(alpha) = alphas.find(|alpha| !alpha.is_finite()) {
            return Err(DecoderError::value("lora_alpha", format!("{alpha}")));
        }
        if !(0.0..1.0).contains(&self.dropout) {
            let reason = format!("{}, not from 0 to less than 1", self.dropout);
            return Err(DecoderError::value("lora_dropout", reason));
        }
        Ok(())
    }

    /// Reads `adapter_config.json` of a folder of PEFT.
    ///
    /// # Errors
    ///
    /// If there is none, it is not valid, or the adapter has parts that are not supported, such as DoRA or
    /// `modules_to_save`: the error names them.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, DecoderError> {
        let understood = Self::understood(PeftConfig::open(folder.as_ref())?);
        understood.map_err(|error| error.in_file(&folder.as_ref().join(FILE)))
    }

    /// What the adapter in a folder was trained above, as its `adapter_config.json` names it: a model of the
    /// Hub, or a folder.
    ///
    /// # Errors
    ///
    /// Like [`open`](Self::open).
    pub fn base_of(folder: impl AsRef<Path>) -> Result<Option<String>, DecoderError> {
        Ok(PeftConfig::open(folder.as_ref())?.base_model_name_or_path)
    }

    /// Reads the text of an `adapter_config.json`.
    ///
    /// ```
    /// use stovepipe_decoder::{LoraConfig, Targets};
    ///
    /// let text = r#"{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": "all-linear"}"#;
    /// let lora = LoraConfig::from_json(text)?;
    /// assert_eq!((lora.rank, lora.alpha, lora.targets), (4, 8.0, Targets::All));
    /// # Ok::<(), stovepipe_decoder::DecoderError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`open`](Self::open).
    pub fn from_json(text: &str) -> Result<Self, DecoderError> {
        Self::understood(PeftConfig::parse(text)?)
    }

    /// Writes `adapter_config.json` into a folder, for the model that was loaded from `base`.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn save(&self, folder: impl AsRef<Path>, base: Option<&str>) -> Result<(), DecoderError> {
        let path = folder.as_ref().join(FILE);
        let peft = PeftConfig {
            base_model_name_or_path: base.map(str::to_owned),
            target_modules: Some(match &self.targets {
                Targets::All => {
                    PeftTargets::Names(LINEARS.map(|name| last_part(name).to_owned()).into())
                }
                Targets::Names(names) => PeftTargets::Names(names.clone()),
                Targets::Pattern(pattern) => PeftTargets::One(pattern.clone()),
            }),
            r: Some(self.rank),
            lora_alpha: Some(self.alpha),
            lora_dropout: self.dropout,
            use_rslora: self.rank_stabilized,
            rank_pattern: Some(self.rank_pattern.clone()),
            alpha_pattern: Some(self.alpha_pattern.clone()),
            layers_to_transform: self.blocks.clone().map(PeftBlocks::Many),
            ..PeftConfig::default()
        };
        let text = serde_json::to_string_pretty(&peft).map_err(|source| DecoderError::Json {
            what: FILE.to_owned(),
            source,
        })?;
        fs::write(&path, text + "\n").map_err(|source| DecoderError::File { path, source })
    }

    fn understood(peft: PeftConfig) -> Result<Self, DecoderError> {
        if peft.peft_type != "LORA" {
            return Err(DecoderError::unknown(
                "peft_type",
                &peft.peft_type,
                ["LORA"],
            ));
        }
        let mut others = peft.other.iter();
        if let Some((key, found)) = others.find(|(key, value)| is_unknown(key, value)) {
            return Err(DecoderError::value(
                key,
                format!("{found}, which is not supported"),
            ));
        }
        if let Some(task) = peft.task_type.as_deref().filter(|task| *task != CAUSAL) {
            return Err(DecoderError::unknown("task_type", task, [CAUSAL]));
        }
        if peft.bias != "none" {
            return Err(DecoderError::unknown("bias", &peft.bias, ["none"]));
        }
        let targets = match peft.target_modules {
            Some(PeftTargets::One(name)) if name == "all-linear" => Targets::All,
            Some(PeftTargets::One(pattern)) => Targets::Pattern(pattern),
            Some(PeftTargets::Names(names)) => Targets::Names(names),
            None => return Err(DecoderError::value("target_modules", "missing")),
        };
        let lora = Self {
            rank: peft.r.unwrap_or(8),
            alpha: peft.lora_alpha.unwrap_or(8.0),
            rank_stabilized: peft.use_rslora,
            dropout: peft.lora_dropout,
            targets,
            rank_pattern: peft.rank_pattern.unwrap_or_default(),
            alpha_pattern: peft.alpha_pattern.unwrap_or_default(),
            blocks: match peft.layers_to_transform {
                Some(PeftBlocks::One(block)) => Some(vec![block]),
                Some(PeftBlocks::Many(blocks)) => Some(blocks).filter(|blocks| !blocks.is_empty()),
                None => None,
            },
        };
        lora.check()?;
        Ok(lora)
    }
}

impl DecoderLayer {
    /// What the adapter of a linear layer adds to its weight: s · B A in f32, `[out, in]`. `name` is its
    /// name in the block, such as `mlp.up_proj`. `None` if it has no adapter.
    #[must_use]
    pub fn lora_delta(&self, name: &str) -> Option<Tensor<2>> {
        let Self::Block(block) = self else {
            return None;
        };
        let mut linears = block.linears().into_iter();
        linears.find(|(own, _)| *own == name)?.1.delta()
    }
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// Targets, ready to be compared with names.
enum Chosen<'a> {
    All,
    Names(&'a [String]),
    Pattern(Regex, &'a str),
}

impl<'a> Chosen<'a> {
    fn new(targets: &'a Targets) -> Result<Self, DecoderError> {
        Ok(match targets {
            Targets::All => Self::All,
            Targets::Names(names) if names.is_empty() => {
                return Err(DecoderError::value("target_modules", "empty"));
            }
            Targets::Names(names) => Self::Names(names),
            Targets::Pattern(text) => Self::Pattern(pattern(&format!("^(?:{text})$"), text)?, text),
        })
    }

    fn count(&self) -> usize {
        match self {
            Self::Names(names) => names.len(),
            Self::All | Self::Pattern(..) => 1,
        }
    }

    fn name(&self, target: usize) -> String {
        match self {
            Self::All => String::new(),
            Self::Names(names) => names[target].clone(),
            Self::Pattern(_, text) => (*text).to_owned(),
        }
    }

    /// Whether a target matches a layer's name.
    fn matches(&self, target: usize, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Names(names) => ends_with(name, &names[target]),
            Self::Pattern(regex, _) => regex.is_match(name),
        }
    }
}

fn ends_with(name: &str, end: &str) -> bool {
    let before = name.strip_suffix(end);
    before.is_some_and(|before| before.is_empty() || before.ends_with('.'))
}

/// Values by patterns that match the end of a name.
struct Patterns<T>(Vec<(Regex, T)>);

impl<T: Copy> Patterns<T> {
    fn new(patterns: &BTreeMap<String, T>) -> Result<Self, DecoderError> {
        let compiled = patterns.iter().map(|(text, value)| {
            let regex = pattern(&format!(r"^(?:.*\.)?(?:{text})$"), text)?;
            Ok((regex, *value))
        });
        Ok(Self(compiled.collect::<Result<_, DecoderError>>()?))
    }

    fn find(&self, name: &str) -> Option<T> {
        let mut all = self.0.iter();
        all.find(|(regex, _)| regex.is_match(name))
            .map(|(_, value)| *value)
    }
}

fn pattern(whole: &str, text: &str) -> Result<Regex, DecoderError> {
    Regex::new(whole).map_err(|source| DecoderError::Pattern {
        pattern: text.to_owned(),
        source: Box::new(source),
    })
}

/// `adapter_config.json`.
#[derive(Serialize, Deserialize)]
struct PeftConfig {
    peft_type: String,
    #[serde(default)]
    task_type: Option<String>,
    #[serde(default)]
    base_model_name_or_path: Option<String>,
    target_modules: Option<PeftTargets>,
    r: Option<usize>,
    lora_alpha: Option<f64>,
    #[serde(default)]
    lora_dropout: f64,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    rank_pattern: Option<BTreeMap<String, usize>>,
    #[serde(default)]
    alpha_pattern: Option<BTreeMap<String, f64>>,
    #[serde(default)]
    layers_to_transform: Option<PeftBlocks>,
    #[serde(default = "no_bias")]
    bias: String,
    #[serde(default)]
    inference_mode: bool,
    #[serde(flatten)]
    other: BTreeMap<String, Value>,
}

impl PeftConfig {
    fn open(folder: &Path) -> Result<Self, DecoderError> {
        let path = folder.join(FILE);
        let text = fs::read_to_string(&path).map_err(|source| DecoderError::File {
            path: path.clone(),
            source,
        })?;
        Self::parse(&text).map_err(|error| error.in_file(&path))
    }

    fn parse(text: &str) -> Result<Self, DecoderError> {
        serde_json::from_str(text).map_err(|source| DecoderError::Json {
            what: "the configuration of the adapter".to_owned(),
            source,
        })
    }
}

impl Default for PeftConfig {
    fn default() -> Self {
        Self {
            peft_type: "LORA".to_owned(),
            task_type: Some(CAUSAL.to_owned()),
            base_model_name_or_path: None,
            target_modules: None,
            r: None,
            lora_alpha: None,
            lora_dropout: 0.0,
            use_rslora: false,
            rank_pattern: None,
            alpha_pattern: None,
            layers_to_transform: None,
            bias: no_bias(),
            inference_mode: true,
            other: BTreeMap::new(),
        }
    }
}

fn no_bias() -> String {
    "none".to_owned()
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PeftTargets {
    One(String),
    Names(Vec<String>),
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PeftBlocks {
    One(usize),
    Many(Vec<usize>),
}

/// Settings of PEFT that change nothing in what an adapter computes.
const HARMLESS: [&str; 7] = [
    "auto_mapping",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "use_cache",
];

/// Whether a setting is in use that this crate does not know. Most change what is computed.
fn is_unknown(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) if items.is_empty() => false,
        Value::Object(items) if items.is_empty() => false,
        // How a new adapter is drawn: others than these change the base.
        Value::Bool(true) if key == "init_lora_weights" => false,
        Value::String(name) if key == "init_lora_weights" => {
            !["gaussian", "orthogonal"].contains(&name.as_str())
        }
        _ => !HARMLESS.contains(&key),
    }
}
