//! The losses of a short training, step by step.

use std::path::PathBuf;

use crate::{
    Failure,
    classifier::Classifier,
    piped::{Piped, PipedLoop, PipedSettings},
    plain::{Plain, PlainLoop},
    recipe::ModelRecipe,
};

/// A short training by AdamW.
#[derive(Clone, Debug)]
pub struct Learning {
    /// The first weights, as PyTorch saved them.
    pub weights: PathBuf,
    /// The loop that trains.
    pub kind: LoopKind,
    /// The number of steps, each with another mini-batch.
    pub steps: usize,
    /// The learning rate.
    pub rate: f64,
}

/// A loop that trains.
#[derive(Clone, Debug)]
pub enum LoopKind {
    /// A plain loop.
    Plain {
        /// Micro-batches of a mini-batch.
        micro_batches: usize,
    },
    /// A pipeline.
    Piped(PipedSettings),
}

/// The loss of each mini-batch, before its update.
pub fn losses<L: Classifier>(
    model: &ModelRecipe<L>,
    learning: &Learning,
) -> Result<Vec<f64>, Failure> {
    let layers = model.layers_from(&learning.weights)?;
    let loss: Box<dyn FnMut(usize) -> Result<f64, Failure>> = match &learning.kind {
        &LoopKind::Plain { micro_batches } => {
            let mut plain = Plain::new(model, layers, micro_batches);
            plain.add_optimizer();
            Box::new(move |step| {
                plain.learn(step, learning.rate);
                plain.mini_batch()
            })
        }
        LoopKind::Piped(plan) => {
            let mut piped = Piped::new(model, layers, plan)?;
            piped.add_optimizer();
            Box::new(move |step| {
                piped.learn(step, learning.rate);
                Ok(piped.step()?.loss)
            })
        }
    };
    (0..learning.steps).map(loss).collect()
}
