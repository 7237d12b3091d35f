//! The names of tensors: in a pipeline, and in files of the Hugging Face Hub.

use burn::store::KeyRemapper;

use crate::config::DecoderConfig;

/// What PEFT writes before the name of a module.
const PEFT: &str = "base_model.model.";

impl DecoderConfig {
    /// The name in a folder of the Hub of a tensor of a pipeline, if it is there: parts of an adapter are
    /// not, nor is the softmax's table if it is tied.
    ///
    /// | pipeline | Hub |
    /// |---|---|
    /// | `layers.0.embed_tokens.weight` | `model.embed_tokens.weight` |
    /// | `layers.{i + 1}.self_attn.q_proj.weight` and so on | `model.layers.{i}.self_attn.q_proj.weight` |
    /// | `layers.{blocks + 1}.norm.weight` | `model.norm.weight` |
    /// | `layers.{blocks + 1}.lm_head.weight` | `lm_head.weight` |
    ///
    /// ```
    /// use stovepipe_decoder::DecoderConfig;
    ///
    /// let config = DecoderConfig::new(100, 16, 2, 2);
    /// let name = config.hub_name("layers.2.mlp.up_proj.weight");
    /// assert_eq!(name.as_deref(), Some("model.layers.1.mlp.up_proj.weight"));
    /// assert_eq!(config.hub_name("layers.3.norm.weight").as_deref(), Some("model.norm.weight"));
    /// assert_eq!(config.hub_name("layers.3.lm_head.weight"), None); // tied
    /// ```
    #[must_use]
    pub fn hub_name(&self, name: &str) -> Option<String> {
        let (layer, rest) = self.layer(name)?;
        match layer {
            _ if rest.contains(".lora.") => None,
            0 => Some(format!("model.{rest}")),
            last if last == self.blocks + 1 => match rest.starts_with("lm_head.") {
                true => (!self.tied).then(|| rest.to_owned()),
                false => Some(format!("model.{rest}")),
            },
            block => Some(format!("model.layers.{}.{rest}", block - 1)),
        }
    }

    /// The name in a file of PEFT of a tensor of a pipeline, if it is part of an adapter.
    ///
    /// ```
    /// use stovepipe_decoder::DecoderConfig;
    ///
    /// let config = DecoderConfig::new(100, 16, 2, 2);
    /// assert_eq!(
    ///     config.peft_name("layers.1.self_attn.q_proj.lora.a").as_deref(),
    ///     Some("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight")
    /// );
    /// assert_eq!(config.peft_name("layers.1.self_attn.q_proj.weight"), None);
    /// ```
    #[must_use]
    pub fn peft_name(&self, name: &str) -> Option<String> {
        let (layer, rest) = self.layer(name)?;
        let (linear, factor) = rest.split_once(".lora.")?;
        let block = layer.checked_sub(1).filter(|block| *block < self.blocks)?;
        let factor = factor.to_uppercase();
        Some(format!(
            "{PEFT}model.layers.{block}.{linear}.lora_{factor}.weight"
        ))
    }

    /// Renames the tensors of a folder of the Hub, and those of an adapter of PEFT, to those of a
    /// pipeline. For `stovepipe_train::Weights`.
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "the patterns hold only names and numbers"
    )]
    pub fn hub_keys(&self) -> KeyRemapper {
        let last = self.blocks + 1;
        let mut patterns = vec![
            (
                r"^model\.embed_tokens\.".to_owned(),
                "layers.0.embed_tokens.".to_owned(),
            ),
            (r"^model\.norm\.".to_owned(), format!("layers.{last}.norm.")),
            (r"^lm_head\.".to_owned(), format!("layers.{last}.lm_head.")),
            (r"\.lora_A\.weight$".to_owned(), ".lora.a".to_owned()),
            (r"\.lora_B\.weight$".to_owned(), ".lora.b".to_owned()),
        ];
        for block in 0..self.blocks {
            let theirs = format!(r"^(?:base_model\.model\.)?model\.layers\.{block}\.");
            patterns.push((theirs, format!("layers.{}.", block + 1)));
        }
        KeyRemapper::from_patterns(patterns).expect("valid patterns")
    }

    /// The index of a tensor's layer in a pipeline, and the rest of its name.
    fn layer<'a>(&self, name: &'a str) -> Option<(usize, &'a str)> {
        let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
        let layer = layer.parse().ok()?;
        (layer <= self.blocks + 1).then_some((layer, rest))
    }
}
