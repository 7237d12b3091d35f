//! `config.json` as the Hugging Face Hub has it.

use std::{fs, path::Path};

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::{
    config::{DecoderConfig, Family, RopeScaling},
    error::DecoderError,
};

impl DecoderConfig {
    /// Reads the `config.json` of a folder.
    ///
    /// # Errors
    ///
    /// [`DecoderError`] if there is none, it is not valid, or the model is of an unknown kind or has parts
    /// that are not supported: the error names them.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, DecoderError> {
        let path = folder.as_ref().join("config.json");
        let text = fs::read_to_string(&path).map_err(|source| DecoderError::File {
            path: path.clone(),
            source,
        })?;
        Self::from_json(&text).map_err(|error| error.in_file(&path))
    }

    /// Reads the text of a `config.json`, as `transformers` 4 or 5 writes it.
    ///
    /// ```
    /// use stovepipe_decoder::{DecoderConfig, Family};
    ///
    /// let config = DecoderConfig::from_json(r#"{
    ///     "model_type": "qwen2", "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128,
    ///     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 1e6,
    ///     "max_position_embeddings": 512
    /// }"#)?;
    /// assert_eq!((config.family, config.head_width, config.theta), (Family::Qwen2, 16, 1e6));
    ///
    /// let error = DecoderConfig::from_json(r#"{"model_type": "gpt2"}"#).unwrap_err();
    /// assert!(error.to_string().contains("gpt2: known are llama, mistral, qwen2, qwen3"));
    /// # Ok::<(), stovepipe_decoder::DecoderError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Like [`open`](Self::open).
    pub fn from_json(text: &str) -> Result<Self, DecoderError> {
        let config = HubConfig::parse(text)?.understood()?;
        config.check()?;
        Ok(config)
    }

    /// The text of a `config.json` of such a model, as `transformers` 5 reads it.
    ///
    /// ```
    /// use stovepipe_decoder::DecoderConfig;
    ///
    /// let config = DecoderConfig::new(1000, 64, 2, 4);
    /// assert_eq!(DecoderConfig::from_json(&config.to_json())?, config);
    /// # Ok::<(), stovepipe_decoder::DecoderError>(())
    /// ```
    #[must_use]
    pub fn to_json(&self) -> String {
        let names = Family::ALL
            .into_iter()
            .find(|(_, family)| *family == self.family);
        let name = names.map_or("llama", |(name, _)| name);
        let class = match self.family {
            Family::Llama => "LlamaForCausalLM",
            Family::Mistral => "MistralForCausalLM",
            Family::Qwen2 => "Qwen2ForCausalLM",
            Family::Qwen3 => "Qwen3ForCausalLM",
        };
        let rope = match self.scaling {
            RopeScaling::None => json!({ "rope_type": "default", "rope_theta": self.theta }),
            RopeScaling::Linear(factor) => {
                json!({ "rope_type": "linear", "rope_theta": self.theta, "factor": factor })
            }
            RopeScaling::Llama3 {
                factor,
                low,
                high,
                length,
            } => json!({
                "rope_type": "llama3",
                "rope_theta": self.theta,
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": length,
            }),
        };
        let config = json!({
            "architectures": [class],
            "model_type": name,
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.feed_forward,
            "num_hidden_layers": self.blocks,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.keys,
            "head_dim": self.head_width,
            "max_position_embeddings": self.length,
            "hidden_act": "silu",
            "rms_norm_eps": self.epsilon,
            "rope_parameters": rope,
            "attention_bias": self.output_bias,
            "mlp_bias": self.mlp_bias,
            "tie_word_embeddings": self.tied,
            "attention_dropout": self.attention_dropout,
            "initializer_range": self.deviation,
            "dtype": "float32",
            "sliding_window": null,
        });
        format!("{config:#}\n")
    }
}

/// The keys that decide what is computed. Others, such as those of generation, are ignored.
#[derive(Deserialize)]
struct HubConfig {
    model_type: Option<String>,
    vocab_size: Option<usize>,
    hidden_size: Option<usize>,
    intermediate_size: Option<usize>,
    num_hidden_layers: Option<usize>,
    num_attention_heads: Option<usize>,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    max_position_embeddings: Option<usize>,
    hidden_act: Option<String>,
    rms_norm_eps: Option<f64>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
    /// Of `transformers` 4.
    rope_scaling: Option<Map<String, Value>>,
    /// Of `transformers` 5.
    rope_parameters: Option<Map<String, Value>>,
    attention_bias: Option<bool>,
    mlp_bias: Option<bool>,
    tie_word_embeddings: Option<bool>,
    attention_dropout: Option<f64>,
    initializer_range: Option<f64>,
    /// Absent, `null`, or a number.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    use_sliding_window: Option<bool>,
    /// The first layers attend to all positions.
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
    quantization_config: Option<Value>,
}

fn partial_rotation() -> DecoderError {
    let reason = "a part of a head only, which is not supported";
    DecoderError::value("partial_rotary_factor", reason)
}

/// A value that is there, which may be `null`.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(value).map(Some)
}

impl HubConfig {
    fn parse(text: &str) -> Result<Self, DecoderError> {
        serde_json::from_str(text).map_err(|source| DecoderError::Json {
            what: "the configuration".to_owned(),
            source,
        })
    }

    fn understood(self) -> Result<DecoderConfig, DecoderError> {
        let family = self.family()?;
        self.refuse_what_is_unknown(family)?;
        let needed = |name: &'static str, size: Option<usize>| {
            size.ok_or_else(|| DecoderError::value(name, "missing"))
        };
        let width = needed("hidden_size", self.hidden_size)?;
        let heads = needed("num_attention_heads", self.num_attention_heads)?;
        // What `transformers` takes where a file says nothing.
        let (usual_keys, usual_head) = match family {
            Family::Llama => (heads, None),
            Family::Mistral => (8, None),
            Family::Qwen2 => (32, None),
            Family::Qwen3 => (32, Some(128)),
        };
        let (theta, scaling) = self.rope()?;
        let attention_bias = self.attention_bias.unwrap_or(false);
        let has_bias = matches!(family, Family::Llama | Family::Qwen3) && attention_bias;
        Ok(DecoderConfig {
            family,
            vocabulary: needed("vocab_size", self.vocab_size)?,
            width,
            feed_forward: needed("intermediate_size", self.intermediate_size)?,
            blocks: needed("num_hidden_layers", self.num_hidden_layers)?,
            heads,
            keys: self.num_key_value_heads.unwrap_or(usual_keys),
            head_width: (self.head_dim.or(usual_head))
                .unwrap_or_else(|| width.checked_div(heads).unwrap_or(0)),
            length: needed("max_position_embeddings", self.max_position_embeddings).or_else(
                |error| {
                    if family == Family::Llama {
                        Ok(2048)
                    } else {
                        Err(error)
                    }
                },
            )?,
            epsilon: self.rms_norm_eps.unwrap_or(1e-6),
            theta,
            scaling,
            projection_bias: has_bias || family == Family::Qwen2,
            output_bias: has_bias,
            mlp_bias: family == Family::Llama && self.mlp_bias.unwrap_or(false),
            head_norms: family == Family::Qwen3,
            tied: self.tie_word_embeddings.unwrap_or(false),
            attention_dropout: self.attention_dropout.unwrap_or(0.0),
            deviation: self.initializer_range.unwrap_or(0.02),
        })
    }

    fn family(&self) -> Result<Family, DecoderError> {
        let name = self.model_type.as_deref().unwrap_or("none");
        let known = Family::ALL.iter().find(|(known, _)| *known == name);
        let unknown =
            || DecoderError::unknown("model_type", name, Family::ALL.map(|known| known.0));
        known.map(|known| known.1).ok_or_else(unknown)
    }

    fn refuse_what_is_unknown(&self, family: Family) -> Result<(), DecoderError> {
        if let Some(found) = self.hidden_act.as_deref().filter(|found| *found != "silu") {
            return Err(DecoderError::unknown("hidden_act", found, ["silu"]));
        }
        let quantized = self.quantization_config.as_ref();
        if let Some(found) = quantized.filter(|found| !found.is_null()) {
            let method = found.get("quant_method").and_then(Value::as_str);
            let method = method.unwrap_or("an unknown method");
            let reason = format!("{method}: only weights in f32, bf16 or f16 can be read");
            return Err(DecoderError::value("quantization_config", reason));
        }
        let other = self
            .layer_types
            .iter()
            .flatten()
            .find(|kind| *kind != "full_attention");
        if let Some(found) = other {
            return Err(DecoderError::unknown(
                "layer_types",
                found,
                ["full_attention"],
            ));
        }
        let is_used = match family {
            Family::Mistral => true,
            Family::Qwen2 | Family::Qwen3 => {
                let blocks = self.num_hidden_layers.unwrap_or(0);
                // `transformers` takes 28 where a file says nothing.
                let full = self.max_window_layers.unwrap_or(28);
                self.use_sliding_window.unwrap_or(false) && full < blocks
            }
            Family::Llama => false,
        };
        let most = self.max_position_embeddings.unwrap_or(usize::MAX);
        // What `transformers` takes for Mistral where a file says nothing.
        let window = self.sliding_window.unwrap_or(Some(4096));
        if let Some(window) = window.filter(|window| is_used && *window < most) {
            let reason = format!("{window}: only attention to all positions before is supported");
            return Err(DecoderError::value("sliding_window", reason));
        }
        Ok(())
    }

    /// The base, and the scaling.
    fn rope(&self) -> Result<(f64, RopeScaling), DecoderError> {
        if self
            .partial_rotary_factor
            .is_some_and(|factor| factor != 1.0)
        {
            return Err(partial_rotation());
        }
        let usual = self.rope_theta.unwrap_or(10_000.0);
        let Some(parameters) = self.rope_parameters.as_ref().or(self.rope_scaling.as_ref()) else {
            return Ok((usual, RopeScaling::None));
        };
        let number = |name: &str| parameters.get(name).and_then(Value::as_f64);
        let needed = |name: &'static str| {
            number(name).ok_or_else(|| DecoderError::value(name, "missing in the rope's settings"))
        };
        let theta = number("rope_theta").unwrap_or(usual);
        if number("partial_rotary_factor").is_some_and(|factor| factor != 1.0) {
            return Err(partial_rotation());
        }
        let kind = parameters
            .get("rope_type")
            .or_else(|| parameters.get("type"));
        let kind = kind.filter(|kind| !kind.is_null());
        let name = match kind {
            Some(kind) => kind.as_str().map_or(kind.to_string(), str::to_owned),
            None if number("factor").is_some() => "missing, although there is a factor".to_owned(),
            None => "default".to_owned(),
        };
        let scaling = match name.as_str() {
            "default" => RopeScaling::None,
            "linear" => RopeScaling::Linear(needed("factor")?),
            "llama3" => RopeScaling::Llama3 {
                factor: needed("factor")?,
                low: needed("low_freq_factor")?,
                high: needed("high_freq_factor")?,
                length: needed("original_max_position_embeddings")? as usize,
            },
            other => {
                let known = ["default", "linear", "llama3"];
                return Err(DecoderError::unknown("rope_type", other, known));
            }
        };
        Ok((theta, scaling))
    }
}
