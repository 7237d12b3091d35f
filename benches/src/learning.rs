//! Losses, step by step: whether what is measured learns what it should.

use std::path::PathBuf;

use crate::{
    Failure,
    classifier::Classifier,
    piped::{Piped, PipedLoop, PipelineSettings},
    plain::{Plain, PlainLoop},
    recipe::Recipe,
};

/// A short training by AdamW.
#[derive(Clone, Debug)]
pub struct Learning {
    /// Weights to begin with, as PyTorch saved them.
    pub weights: PathBuf,
    /// Who trains.
    pub way: Way,
    /// Mini-batches, each another.
    pub steps: usize,
    /// The learning rate.
    pub rate: f64,
}

/// Who trains.
#[derive(Clone, Debug)]
pub enum Way {
    /// A plain loop over so many micro-batches.
    Plain {
        /// Micro-batches of a mini-batch.
        micro_batches: usize,
    },
    /// A pipeline.
    Piped(PipelineSettings),
}

/// The loss of each mini-batch, before the update that it leads to.
///
/// # Errors
///
/// If the weights are another model's, or a step fails.
pub fn losses<L: Classifier>(model: &Recipe<L>, learning: &Learning) -> Result<Vec<f64>, Failure> {
    let layers = model.layers_from(&learning.weights)?;
    let steps = 0..learning.steps;
    match &learning.way {
        &Way::Plain { micro_batches } => {
            let mut plain = Plain::new(model, layers, micro_batches);
            plain.add_optimizer();
            let loss = |step| {
                plain.learn(step, learning.rate);
                plain.mini_batch()
            };
            steps.map(loss).collect()
        }
        Way::Piped(plan) => {
            let mut piped = Piped::new(model, layers, plan)?;
            piped.add_optimizer();
            let loss = |step| {
                piped.learn(step, learning.rate);
                Ok(piped.step()?.loss)
            };
            steps.map(loss).collect()
        }
    }
}
