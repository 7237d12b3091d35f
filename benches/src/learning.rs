//! The losses of a short training, step by step.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::{
    Failure,
    piped::{Piped, PipedLoop, PipedSettings},
    plain::{Plain, PlainLoop},
    recipe::{Classifier, ModelRecipe},
};

/// A short training by AdamW.
#[derive(Clone, Debug)]
pub struct Learning {
    /// The first weights, as PyTorch saved them.
    pub weights: PathBuf,
    pub kind: LoopKind,
    pub steps: usize,
    pub rate: f64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LoopKind {
    /// A plain Burn loop that accumulates gradients.
    Plain {
        micro_batches: usize,
    },
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
