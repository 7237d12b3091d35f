//! The configuration.

use crate::error::DecoderError;

/// The kinds of models, by the `model_type` of their `config.json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// `llama`: Llama 2 and 3, SmolLM, TinyLlama and others.
    Llama,
    /// `mistral`
    Mistral,
    /// `qwen2`: Qwen 2 and 2.5.
    Qwen2,
    /// `qwen3`
    Qwen3,
}

impl Family {
    pub(crate) const ALL: [(&'static str, Self); 4] = [
        ("llama", Self::Llama),
        ("mistral", Self::Mistral),
        ("qwen2", Self::Qwen2),
        ("qwen3", Self::Qwen3),
    ];
}

/// How the frequencies of rotary positions are stretched for long texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all: `default`.
    None,
    /// All are divided by this factor: `linear`.
    Linear(f64),
    /// Low ones are divided, high ones stay, those between are mixed: `llama3` (Grattafiori et al., "The
    /// Llama 3 Herd of Models", 2024).
    Llama3 {
        /// What low frequencies are divided by.
        factor: f64,
        /// A frequency is low if less than this many turns fit into `length`.
        low: f64,
        /// A frequency is high if more than this many do.
        high: f64,
        /// The positions that the model saw before it was stretched.
        length: usize,
    },
}

/// A decoder: an embedding, blocks of attention and a gated network, a norm and a softmax over tokens.
///
/// [`open`](Self::open) reads it from a folder as the Hugging Face Hub has it. [`new`](Self::new) makes a
/// small Llama to train from scratch.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_decoder::DecoderConfig;
/// use stovepipe_pipeline::count_parameters;
///
/// let config = DecoderConfig::new(1000, 64, 2, 4);
/// let layers = config.init(&Device::flex())?;
/// assert_eq!(layers.len(), 2 + 2); // an embedding, two blocks and a softmax over tokens
/// let block = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64;
/// let table = 1000 * 64; // counted in both layers that share it
/// assert_eq!(count_parameters(&layers), 2 * table + 2 * block + 64);
/// # Ok::<(), stovepipe_decoder::DecoderError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DecoderConfig {
    /// The kind of the model.
    pub family: Family,
    /// The number of different tokens.
    pub vocabulary: usize,
    /// The width of the states.
    pub width: usize,
    /// The width within the gated network.
    pub feed_forward: usize,
    /// The number of blocks. The model has two more layers.
    pub blocks: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Heads of keys and values, which divide the heads.
    pub keys: usize,
    /// The width of a head, an even number.
    pub head_width: usize,
    /// The maximum length of a sequence.
    pub length: usize,
    /// ε of the norms.
    pub epsilon: f64,
    /// The base of the frequencies of rotary positions.
    pub theta: f64,
    /// How these are stretched.
    pub scaling: RopeScaling,
    /// Whether queries, keys and values have biases.
    pub projection_bias: bool,
    /// Whether the output of attention has a bias.
    pub output_bias: bool,
    /// Whether the gated network has biases.
    pub mlp_bias: bool,
    /// Whether queries and keys are normalized.
    pub head_norms: bool,
    /// Whether the softmax shares the table of the embedding.
    pub tied: bool,
    /// The probability that training drops a share of attention.
    pub attention_dropout: f64,
    /// The standard deviation of initial weights.
    pub deviation: f64,
}

impl DecoderConfig {
    /// A Llama: the network three times as wide as the states, each head with its own keys, tied
    /// embeddings, 1,024 positions.
    #[must_use]
    pub fn new(vocabulary: usize, width: usize, blocks: usize, heads: usize) -> Self {
        Self {
            family: Family::Llama,
            vocabulary,
            width,
            feed_forward: width.saturating_mul(3),
            blocks,
            heads,
            keys: heads,
            head_width: width.checked_div(heads).unwrap_or(0),
            length: 1024,
            epsilon: 1e-5,
            theta: 10_000.0,
            scaling: RopeScaling::None,
            projection_bias: false,
            output_bias: false,
            mlp_bias: false,
            head_norms: false,
            tied: true,
            attention_dropout: 0.0,
            deviation: 0.02,
        }
    }

    pub(crate) fn check(&self) -> Result<(), DecoderError> {
        const MOST: usize = 1 << 24;
        let sizes = [
            ("vocab_size", self.vocabulary),
            ("hidden_size", self.width),
            ("intermediate_size", self.feed_forward),
            ("num_hidden_layers", self.blocks),
            ("num_attention_heads", self.heads),
            ("num_key_value_heads", self.keys),
            ("head_dim", self.head_width),
            ("max_position_embeddings", self.length),
        ];
        let wrong = sizes
            .into_iter()
            .find(|(_, size)| !(1..=MOST).contains(size));
        if let Some((name, size)) = wrong {
            return Err(DecoderError::value(
                name,
                format!("{size}, not 1 to {MOST}"),
            ));
        }
        if !self.heads.is_multiple_of(self.keys) {
            let (heads, keys) = (self.heads, self.keys);
            let reason = format!("{keys}, which does not divide {heads} heads");
            return Err(DecoderError::value("num_key_value_heads", reason));
        }
        if !self.head_width.is_multiple_of(2) {
            let reason = format!("{}, but halves of a head are rotated", self.head_width);
            return Err(DecoderError::value("head_dim", reason));
        }
        if self.heads * self.head_width > MOST {
            return Err(DecoderError::value(
                "head_dim",
                "too large for so many heads",
            ));
        }
        let positive = [
            ("rms_norm_eps", self.epsilon),
            ("rope_theta", self.theta),
            ("initializer_range", self.deviation),
        ];
        let wrong = positive
            .into_iter()
            .find(|(_, x)| !(*x > 0.0 && x.is_finite()));
        if let Some((name, found)) = wrong {
            return Err(DecoderError::value(
                name,
                format!("{found}, not a positive number"),
            ));
        }
        if !(0.0..1.0).contains(&self.attention_dropout) {
            let reason = format!("{}, not from 0 to less than 1", self.attention_dropout);
            return Err(DecoderError::value("attention_dropout", reason));
        }
        self.scaling.check()
    }

    /// The frequencies of rotary positions, from high to low, in radians a position. In f32, as models
    /// were trained.
    pub(crate) fn frequencies(&self) -> Vec<f32> {
        let half = self.head_width / 2;
        let plain = (0..half).map(|i| {
            let exponent = (2 * i) as f32 / self.head_width as f32;
            1.0 / (self.theta as f32).powf(exponent)
        });
        plain.map(|frequency| self.scaling.of(frequency)).collect()
    }
}

impl RopeScaling {
    fn check(self) -> Result<(), DecoderError> {
        let positive = |name, x: f64| match x > 0.0 && x.is_finite() {
            true => Ok(()),
            false => Err(DecoderError::value(
                name,
                format!("{x}, not a positive number"),
            )),
        };
        match self {
            Self::None => Ok(()),
            Self::Linear(factor) => positive("factor", factor),
            Self::Llama3 {
                factor,
                low,
                high,
                length,
            } => {
                positive("factor", factor)?;
                positive("low_freq_factor", low)?;
                positive("original_max_position_embeddings", length as f64)?;
                match high > low && high.is_finite() {
                    true => Ok(()),
                    false => {
                        let reason = format!("{high}, not more than low_freq_factor, {low}");
                        Err(DecoderError::value("high_freq_factor", reason))
                    }
                }
            }
        }
    }

    fn of(self, frequency: f32) -> f32 {
        match self {
            Self::None => frequency,
            Self::Linear(factor) => frequency / factor as f32,
            Self::Llama3 {
                factor,
                low,
                high,
                length,
            } => {
                let turns = length as f32 * frequency / std::f32::consts::TAU;
                let (low, high) = (low as f32, high as f32);
                let share = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                frequency * share + frequency / factor as f32 * (1.0 - share)
            }
        }
    }
}
