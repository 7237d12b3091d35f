//! A custom model in two stages, with `Layer` written out: a struct passes between layers, one
//! layer's output skips over the others, and every layer reads a side input.

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    optim::AdamConfig,
    tensor::{Device, Int, Tensor, activation::relu},
};
use stovepipe::prelude::*;

/// A layer is a Burn module; a model of different layers is an enum of them.
#[derive(Module, Debug)]
enum Net {
    Embed(Linear),
    Block(Linear),
    Head(Linear),
}

/// What passes between layers.
#[derive(Clone, Debug, Flow)]
struct State {
    hidden: Tensor<2>,
    /// The embedding, kept for the head.
    embedding: Option<Tensor<2>>,
}

/// What every layer reads.
#[derive(Clone, Debug, Flow)]
struct Side {
    /// A factor for each sample `[n, 1]`.
    scale: Tensor<2>,
    /// A bias for all samples `[1, 16]`.
    bias: Replicated<Tensor<2>>,
}

impl Layer for Net {
    type Input = Tensor<2>;
    type Flow = State;
    type Output = Tensor<2>;
    type Side = Side;

    fn enter(input: Tensor<2>) -> State {
        State {
            hidden: input,
            embedding: None,
        }
    }

    fn forward(&self, state: State, context: &mut Context<'_, Self>) -> Result<State, LayerError> {
        let Side { scale, bias } = context.side().clone();
        Ok(match self {
            Self::Embed(linear) => {
                let hidden = relu(linear.forward(state.hidden) + bias.0);
                State {
                    embedding: Some(hidden.clone()),
                    hidden,
                }
            }
            Self::Block(linear) => State {
                hidden: relu(linear.forward(state.hidden) * scale),
                ..state
            },
            Self::Head(linear) => {
                let skipped = state.embedding;
                let embedding = skipped.ok_or_else(|| LayerError::new("an embedding", "none"))?;
                State {
                    hidden: linear.forward(state.hidden + embedding),
                    embedding: None,
                }
            }
        })
    }

    fn leave(state: State) -> Result<Tensor<2>, LayerError> {
        Ok(state.hidden)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    train().map(|loss| println!("final loss {loss:.4}"))
}

/// Trains a model that finds the quarter of the plane in which a point lies. Returns the last loss.
fn train() -> Result<f64, Box<dyn std::error::Error>> {
    let device = Device::flex();
    let linear = |from, to| LinearConfig::new(from, to).init(&device);
    let layers = vec![
        Net::Embed(linear(2, 16)),
        Net::Block(linear(16, 16)),
        Net::Block(linear(16, 16)),
        Net::Head(linear(16, 4)),
    ];
    let side = |samples| Side {
        scale: Tensor::ones([samples, 1], &device),
        bias: Replicated(Tensor::zeros([1, 16], &device)),
    };
    let mut pipeline = Pipeline::builder(layers)
        .devices([device.clone(), device.clone()])
        .micro_batches(4)
        .sample(Tensor::zeros([1, 2], &device), side(1)) // finds wiring errors now
        .build()?;
    let mut optimizer = AdamConfig::new().init();

    let samples = 256;
    let angle = Tensor::<1, Int>::arange(0..samples as i64, &device).float() * 2.399_963;
    let points = Tensor::stack::<2>(vec![angle.clone().cos(), angle.sin()], 1);
    let signs = points.clone().greater_elem(0.0).int();
    let quarters = (signs.clone().narrow(1, 0, 1) * 2 + signs.narrow(1, 1, 1)).squeeze_dim::<1>(1);

    let mut loss = f64::NAN;
    for _ in 0..60 {
        let batch = Batch::from((points.clone(), quarters.clone(), side(samples)));
        let step = pipeline.train_step(batch, &CrossEntropy::new())?;
        loss = step.loss;
        pipeline = optimizer.step(1e-2, pipeline, step.gradients);
    }
    Ok(loss)
}

#[cfg(test)]
mod tests {
    #[test]
    fn it_learns() -> Result<(), Box<dyn std::error::Error>> {
        assert!(super::train()? < 0.2);
        Ok(())
    }
}
