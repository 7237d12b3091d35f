//! The model for the engine.

use burn::{
    module::Module,
    tensor::{Device, FloatDType, Int, Tensor},
};
use stovepipe_kernels::Rotation;
use stovepipe_pipeline::{Context, Flow, Layer, LayerError};

use crate::{
    block::DecoderBlock,
    config::DecoderConfig,
    ends::{DecoderEmbedding, DecoderHead},
    error::DecoderError,
    linear::Values,
    logits::Logits,
};

/// One layer of a decoder.
#[derive(Module, Debug)]
pub enum DecoderLayer {
    /// From tokens to states.
    Embed(DecoderEmbedding),
    /// Attention and a gated network.
    Block(DecoderBlock),
    /// From states to logits.
    Head(DecoderHead),
}

/// What passes between the layers of a decoder.
#[derive(Clone, Debug, Flow)]
pub enum DecoderFlow {
    /// Tokens `[n, length]`.
    Tokens(Tensor<2, Int>),
    /// States `[n, length, width]`.
    States(Tensor<3>),
    /// Logits of `[n, length, vocabulary]`.
    Logits(Logits),
}

impl DecoderConfig {
    /// Makes the layers with random weights. Each parameter is allocated on `device` on first use.
    ///
    /// # Errors
    ///
    /// [`DecoderError::Value`] if a size is 0 or too large, or sizes do not fit to each other.
    pub fn init(&self, device: &Device) -> Result<Vec<DecoderLayer>, DecoderError> {
        self.build(Values::Drawn(self.deviation), device)
    }

    /// Makes the layers for weights that a file will give: they are zeros until it does, and no number is
    /// drawn. Weights and biases of linear layers and tables have this type, norms have f32. Blocks
    /// compute in f32, or in that of a pipeline's [`Precision`](stovepipe_pipeline::Precision).
    ///
    /// # Errors
    ///
    /// Like [`init`](Self::init).
    pub fn init_to_load(
        &self,
        dtype: FloatDType,
        device: &Device,
    ) -> Result<Vec<DecoderLayer>, DecoderError> {
        self.build(Values::Loaded(dtype), device)
    }

    fn build(&self, values: Values, device: &Device) -> Result<Vec<DecoderLayer>, DecoderError> {
        self.check()?;
        let rotation = Rotation::new(&self.frequencies(), 1.0, self.length);
        let first = DecoderEmbedding::new(self, values, device);
        let last = DecoderHead::new(self, &first, values, device);
        let block = |_| DecoderLayer::Block(DecoderBlock::new(self, &rotation, values, device));
        let mut layers = vec![DecoderLayer::Embed(first)];
        layers.extend((0..self.blocks).map(block));
        layers.push(DecoderLayer::Head(last));
        Ok(layers)
    }
}

impl DecoderFlow {
    fn describe(&self) -> String {
        match self {
            Self::Tokens(tokens) => format!("tokens {:?}", tokens.dims()),
            Self::States(states) => format!("states {:?}", states.dims()),
            Self::Logits(logits) => logits.describe(),
        }
    }
}

impl Layer for DecoderLayer {
    type Input = Tensor<2, Int>;
    type Flow = DecoderFlow;
    type Output = Logits;
    type Side = ();

    fn enter(tokens: Tensor<2, Int>) -> DecoderFlow {
        DecoderFlow::Tokens(tokens)
    }

    fn forward(
        &self,
        flow: DecoderFlow,
        context: &mut Context<'_, Self>,
    ) -> Result<DecoderFlow, LayerError> {
        match (self, flow) {
            (Self::Embed(embedding), DecoderFlow::Tokens(tokens)) => {
                Ok(DecoderFlow::States(embedding.forward(tokens)?))
            }
            (Self::Block(block), DecoderFlow::States(x)) => {
                Ok(DecoderFlow::States(block.forward(x, context.rng())?))
            }
            (Self::Head(head), DecoderFlow::States(x)) => {
                let logits = head.forward(x, context.feeds_loss())?;
                Ok(DecoderFlow::Logits(logits))
            }
            (Self::Embed(_), flow) => Err(LayerError::new("tokens", flow.describe())),
            (_, flow) => Err(LayerError::new("states", flow.describe())),
        }
    }

    const MEASURED_LOSS: Option<fn(Logits) -> Tensor<1>> = Some(Logits::measured_loss);

    fn leave(flow: DecoderFlow) -> Result<Logits, LayerError> {
        match flow {
            DecoderFlow::Logits(logits) => Ok(logits),
            other => Err(LayerError::new("logits", other.describe())),
        }
    }
}
