//! The cost of each layer, and where to cut.

use burn::{optim::GradientsParams, tensor::Tensor};
use stovepipe::{pipeline::count_parameters, prelude::*};
use stovepipe_plan::{CutError, cut_chain};

use crate::{
    Failure,
    classifier::Classifier,
    flows::{attach, bytes, detach, gradients_for, seed},
    measure::{Seconds, time},
    recipe::ModelRecipe,
};

/// The cost of one layer for one micro-batch, in seconds.
#[derive(Clone, Debug)]
pub struct LayerCost {
    /// Its name in errors and tables.
    pub name: String,
    /// The number of its parameters.
    pub parameters: usize,
    /// The bytes of its output.
    pub output_bytes: usize,
    /// Forward without a tape, as before recomputation.
    pub quiet: Seconds,
    /// Forward with a tape.
    pub taped: Seconds,
    /// Backward, with gradients of parameters and of the input.
    pub backward: Seconds,
}

impl LayerCost {
    /// Forward and backward, as in a training step that keeps its activations.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.taped.median() + self.backward.median()
    }

    /// Adds more measurements of the same layer.
    pub fn extend(&mut self, other: Self) {
        self.quiet.0.extend(other.quiet.0);
        self.taped.0.extend(other.taped.0);
        self.backward.0.extend(other.backward.0);
    }
}

/// Measures each layer on the calling thread, on the output of the layer before it.
pub fn measure_layers<L: Classifier>(
    model: &ModelRecipe<L>,
    rounds: usize,
) -> Result<Vec<LayerCost>, Failure> {
    let (input, _) = model.batch(model.samples);
    let mut flow = L::enter(input);
    let mut probes = Vec::new();
    for layer in model.layers()? {
        let (name, parameters) = (layer.name(), count_parameters(&layer));
        let probe = Probe::new(layer, flow)?;
        flow = probe.output.clone();
        let cost = LayerCost {
            name,
            parameters,
            output_bytes: bytes(flow.clone()),
            quiet: Seconds::default(),
            taped: Seconds::default(),
            backward: Seconds::default(),
        };
        probes.push((probe, cost));
    }
    for round in 0..=rounds {
        for (probe, cost) in &mut probes {
            let [quiet, taped, backward] = probe.measure()?;
            if round > 0 {
                cost.quiet.0.push(quiet);
                cost.taped.0.push(taped);
                cost.backward.0.push(backward);
            } // the first round warms up
        }
    }
    Ok(probes.into_iter().map(|(_, cost)| cost).collect())
}

/// A layer with an input and gradients of its output.
struct Probe<L: Layer> {
    trained: L,
    quiet: L,
    input: L::Flow,
    output: L::Flow,
    gradients: Vec<Tensor<1>>,
}

impl<L: Classifier> Probe<L> {
    fn new(layer: L, input: L::Flow) -> Result<Self, Failure> {
        let trained = layer.train();
        let quiet = trained.clone().no_grad();
        let output = detach(run(&quiet, attach(input.clone(), false))?);
        Ok(Self {
            trained,
            quiet,
            input,
            gradients: gradients_for(output.clone()),
            output,
        })
    }

    /// Seconds of a forward pass without a tape, one with a tape, and a backward pass.
    fn measure(&self) -> Result<[f64; 3], Failure> {
        let input = || self.input.clone();
        let (quiet, _) = time(|| run(&self.quiet, attach(input(), false)));
        let (taped, output) = time(|| run(&self.trained, attach(input(), true)));
        let output = output?;
        let (backward, ()) = time(|| {
            if let Some(seed) = seed(output, &self.gradients) {
                let _ = GradientsParams::from_grads(seed.backward(), &self.trained);
            }
        });
        Ok([quiet, taped, backward])
    }
}

fn run<L: Classifier>(layer: &L, input: L::Flow) -> Result<L::Flow, LayerError> {
    layer.forward(input, &mut Context::new(&(), true))
}

/// The layers of each of two stages, cut so that the slower stage is as fast as possible.
pub fn cut_in_two(costs: &[f64]) -> Result<Vec<usize>, CutError> {
    cut_chain(costs, costs.len().min(2))
}

/// The seconds of each layer, forward and backward.
#[must_use]
pub fn totals(costs: &[LayerCost]) -> Vec<f64> {
    costs.iter().map(LayerCost::total).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::cut_in_two;

    #[test]
    fn the_slower_stage_is_as_fast_as_possible() {
        assert_eq!(cut_in_two(&[1.0, 5.0, 1.0, 2.0, 1.0]).unwrap(), [2, 3]);
        assert_eq!(cut_in_two(&[1.0, 1.0, 1.0, 1.0]).unwrap(), [2, 2]);
        assert_eq!(cut_in_two(&[9.0, 1.0]).unwrap(), [1, 1]);
        assert_eq!(cut_in_two(&[9.0]).unwrap(), [1]);
    }
}
