//! The first and the last layer.

use burn::{
    module::{Module, Param},
    tensor::{Device, Int, Tensor, module::embedding},
};
use stovepipe_pipeline::{LayerError, TokenLogits};

use crate::{
    config::DecoderConfig,
    linear::{Values, frozen},
    logits::Logits,
    norm::DecoderNorm,
};

/// A table with a row for each token, `[vocabulary, width]`.
#[derive(Module, Debug)]
pub(crate) struct Table {
    pub(crate) weight: Param<Tensor<2>>,
}

impl Table {
    fn new(config: &DecoderConfig, values: Values, device: &Device) -> Self {
        Self {
            weight: values.weight([config.vocabulary, config.width], device),
        }
    }

    fn frozen(self) -> Self {
        Self {
            weight: frozen(self.weight),
        }
    }
}

/// The first layer: from tokens `[n, length]` to states `[n, length, width]`.
#[derive(Module, Debug)]
pub struct DecoderEmbedding {
    pub(crate) embed_tokens: Table,
    length: usize,
}

impl DecoderEmbedding {
    pub(crate) fn new(config: &DecoderConfig, values: Values, device: &Device) -> Self {
        Self {
            embed_tokens: Table::new(config, values, device),
            length: config.length,
        }
    }

    /// The maximum length of a sequence.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The number of different tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.embed_tokens.weight.shape()[0]
    }

    pub(crate) fn forward(&self, tokens: Tensor<2, Int>) -> Result<Tensor<3>, LayerError> {
        self.check(&tokens)?;
        Ok(embedding(self.embed_tokens.weight.val(), tokens))
    }

    fn check(&self, tokens: &Tensor<2, Int>) -> Result<(), LayerError> {
        let [samples, length] = tokens.dims();
        if samples == 0 || !(1..=self.length).contains(&length) {
            let expected = format!("sequences of 1 to {} tokens", self.length);
            return Err(LayerError::new(expected, format!("{:?}", tokens.dims())));
        }
        // On other devices than the CPU, reading the tokens would wait for all queued work.
        if tokens.device() != Device::flex() {
            return Ok(());
        }
        let vocabulary = self.vocabulary();
        let ends = [tokens.clone().min(), tokens.clone().max()];
        let [least, most] = ends.map(|end| end.into_scalar::<i64>());
        if least < 0 || most >= vocabulary as i64 {
            let expected = format!("tokens from 0 to {}", vocabulary - 1);
            return Err(LayerError::new(expected, format!("{least} to {most}")));
        }
        Ok(())
    }

    pub(crate) fn frozen(self) -> Self {
        Self {
            embed_tokens: self.embed_tokens.frozen(),
            ..self
        }
    }
}

/// The last layer: from states to logits `[n, length, vocabulary]`.
#[derive(Module, Debug)]
pub struct DecoderHead {
    norm: DecoderNorm,
    /// The same as the embedding's, if they are tied.
    lm_head: Table,
    is_frozen: bool,
}

impl DecoderHead {
    pub(crate) fn new(
        config: &DecoderConfig,
        first: &DecoderEmbedding,
        values: Values,
        device: &Device,
    ) -> Self {
        let tied = config.tied.then(|| first.embed_tokens.clone());
        Self {
            norm: DecoderNorm::new(config.width, config.epsilon, values, device),
            lm_head: tied.unwrap_or_else(|| Table::new(config, values, device)),
            is_frozen: false,
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>, feeds_loss: bool) -> Result<Logits, LayerError> {
        let table = self.lm_head.weight.val();
        let width = table.dims()[1];
        if x.dims()[2] != width {
            let expected = format!("states [n, length, {width}]");
            return Err(LayerError::new(expected, format!("{:?}", x.dims())));
        }
        let x = self.norm.forward(x);
        let product = Logits::product(x, table, self.is_frozen);
        Ok(match feeds_loss {
            true => product,
            false => Logits::whole(product.logits()),
        })
    }

    pub(crate) fn frozen(self) -> Self {
        Self {
            norm: self.norm.frozen(),
            lm_head: self.lm_head.frozen(),
            is_frozen: true,
        }
    }
}
