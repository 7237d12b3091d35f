//! AmoebaNet for the engine: one type of layer, one type of value between layers.

use burn::{module::Module, tensor::Tensor};
use stovepipe_pipeline::{Context, Flow, Layer, LayerError};

use crate::{cell::Cell, head::Classifier, stem::StemConvolution};

/// One layer of an AmoebaNet.
#[derive(Module, Debug)]
pub enum AmoebaLayer {
    /// From images to features.
    Stem(StemConvolution),
    /// From the two previous states to the next.
    Cell(Cell),
    /// From the last state to logits.
    Head(Classifier),
}

/// What passes between the layers of an AmoebaNet.
#[derive(Clone, Debug, Flow)]
pub enum AmoebaFlow {
    /// Images `[n, 3, h, w]`, or the stem's features, which the first cell reads as both its states.
    Single(Tensor<4>),
    /// The outputs of the last cell and of the one before, each `[n, channels, h, w]`.
    Pair(Tensor<4>, Tensor<4>),
    /// Logits `[n, classes]`.
    Logits(Tensor<2>),
}

impl AmoebaFlow {
    fn describe(&self) -> String {
        match self {
            Self::Single(x) => format!("one state {:?}", x.dims()),
            Self::Pair(last, before) => format!("states {:?} and {:?}", last.dims(), before.dims()),
            Self::Logits(logits) => format!("logits {:?}", logits.dims()),
        }
    }
}

impl Layer for AmoebaLayer {
    type Input = Tensor<4>;
    type Flow = AmoebaFlow;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(images: Tensor<4>) -> AmoebaFlow {
        AmoebaFlow::Single(images)
    }

    fn forward(
        &self,
        flow: AmoebaFlow,
        context: &mut Context<'_, Self>,
    ) -> Result<AmoebaFlow, LayerError> {
        match (self, flow) {
            (Self::Stem(stem), AmoebaFlow::Single(images)) => {
                Ok(AmoebaFlow::Single(stem.forward(images)?))
            }
            (Self::Cell(cell), AmoebaFlow::Single(x)) => run_cell(cell, x.clone(), x, context),
            (Self::Cell(cell), AmoebaFlow::Pair(last, before)) => {
                run_cell(cell, last, before, context)
            }
            (Self::Head(head), AmoebaFlow::Pair(last, _)) => {
                Ok(AmoebaFlow::Logits(head.forward(last)?))
            }
            (layer, flow) => Err(LayerError::new(layer.expects(), flow.describe())),
        }
    }

    fn leave(flow: AmoebaFlow) -> Result<Tensor<2>, LayerError> {
        match flow {
            AmoebaFlow::Logits(logits) => Ok(logits),
            other => Err(LayerError::new("logits", other.describe())),
        }
    }

    fn name(&self) -> String {
        match self {
            Self::Stem(_) => "Stem".to_owned(),
            Self::Cell(cell) => cell.name().to_owned(),
            Self::Head(_) => "Head".to_owned(),
        }
    }
}

impl AmoebaLayer {
    fn expects(&self) -> &'static str {
        match self {
            Self::Stem(_) => "images",
            Self::Cell(_) => "one or two states",
            Self::Head(_) => "two states",
        }
    }
}

fn run_cell(
    cell: &Cell,
    last: Tensor<4>,
    before: Tensor<4>,
    context: &mut Context<'_, AmoebaLayer>,
) -> Result<AmoebaFlow, LayerError> {
    let output = cell.forward(last.clone(), before, context.rng())?;
    if let Some(head) = cell.auxiliary().filter(|_| context.is_training()) {
        context.auxiliary(head.forward(output.clone()));
    }
    Ok(AmoebaFlow::Pair(output, last))
}
