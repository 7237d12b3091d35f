//! What each layer costs, and where to cut.

use burn::{optim::GradientsParams, tensor::Tensor};
use stovepipe::{pipeline::count_parameters, prelude::*};
use stovepipe_plan::{CutError, cut_chain};

use crate::{
    Failure,
    classifier::Classifier,
    flows::{attach, bytes, detach, gradients_for, seed},
    measure::{Seconds, time},
    recipe::Recipe,
};

/// What one layer costs for one micro-batch, in seconds.
#[derive(Clone, Debug)]
pub struct LayerCost {
    /// What errors and tables call the layer.
    pub name: String,
    /// Its parameters.
    pub parameters: usize,
    /// The bytes of what it passes on.
    pub output_bytes: usize,
    /// Forward without a tape, as before a recomputation.
    pub quiet: Seconds,
    /// Forward with a tape.
    pub taped: Seconds,
    /// Backward, gradients of parameters and of the input collected.
    pub backward: Seconds,
}

impl LayerCost {
    /// Forward and backward, as in a training step that keeps its activations.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.taped.median() + self.backward.median()
    }
}

/// Measures each layer on the calling thread, on what the layers before it make of a micro-batch.
///
/// # Errors
///
/// If a layer fails.
pub fn measure_layers<L: Classifier>(
    model: &Recipe<L>,
    rounds: usize,
) -> Result<Vec<LayerCost>, Failure> {
    let (input, _) = model.batch(model.samples);
    let mut flow = L::enter(input);
    let mut probes = Vec::new();
    for layer in model.layers()? {
        let probe = Probe::new(layer, flow)?;
        flow = probe.output.clone();
        probes.push(probe);
    }
    for probe in &mut probes {
        probe.measure()?; // warms up
        probe.cost.clear();
    }
    for _ in 0..rounds {
        for probe in &mut probes {
            probe.measure()?;
        }
    }
    Ok(probes.into_iter().map(|probe| probe.cost).collect())
}

/// A layer between what it is given and what comes back.
struct Probe<L: Layer> {
    trained: L,
    quiet: L,
    input: L::Flow,
    output: L::Flow,
    gradients: Vec<Tensor<1>>,
    cost: LayerCost,
}

impl<L: Classifier> Probe<L> {
    fn new(layer: L, input: L::Flow) -> Result<Self, Failure> {
        let (name, parameters) = (layer.name(), count_parameters(&layer));
        let trained = layer.train();
        let quiet = trained.clone().no_grad();
        let output = detach(run(&quiet, attach(input.clone(), false))?);
        Ok(Self {
            trained,
            quiet,
            input,
            gradients: gradients_for(output.clone()),
            cost: LayerCost {
                name,
                parameters,
                output_bytes: bytes(output.clone()),
                quiet: Seconds::default(),
                taped: Seconds::default(),
                backward: Seconds::default(),
            },
            output,
        })
    }

    fn measure(&mut self) -> Result<(), Failure> {
        let input = || self.input.clone();
        let (quiet, _) = time(|| run(&self.quiet, attach(input(), false)));
        let (taped, output) = time(|| run(&self.trained, attach(input(), true)));
        let output = output?;
        let (backward, ()) = time(|| {
            if let Some(seed) = seed(output, &self.gradients) {
                let _ = GradientsParams::from_grads(seed.backward(), &self.trained);
            }
        });
        self.cost.quiet.0.push(quiet);
        self.cost.taped.0.push(taped);
        self.cost.backward.0.push(backward);
        Ok(())
    }
}

impl LayerCost {
    /// Adds further measurements of the same layer.
    pub fn extend(&mut self, other: Self) {
        self.quiet.0.extend(other.quiet.0);
        self.taped.0.extend(other.taped.0);
        self.backward.0.extend(other.backward.0);
    }

    fn clear(&mut self) {
        for seconds in [&mut self.quiet, &mut self.taped, &mut self.backward] {
            seconds.0.clear();
        }
    }
}

fn run<L: Classifier>(layer: &L, input: L::Flow) -> Result<L::Flow, LayerError> {
    layer.forward(input, &mut Context::new(&(), true))
}

/// Where to cut in two so that the slower stage is as fast as can be: the layers of each stage.
///
/// # Errors
///
/// If there is no layer, or a cost is NaN or infinite.
pub fn cut_in_two(costs: &[f64]) -> Result<Vec<usize>, CutError> {
    cut_chain(costs, costs.len().min(2))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::cut_in_two;

    #[test]
    fn the_slower_stage_is_as_fast_as_can_be() {
        assert_eq!(cut_in_two(&[1.0, 5.0, 1.0, 2.0, 1.0]).unwrap(), [2, 3]);
        assert_eq!(cut_in_two(&[1.0, 1.0, 1.0, 1.0]).unwrap(), [2, 2]);
        assert_eq!(cut_in_two(&[9.0, 1.0]).unwrap(), [1, 1]);
        assert_eq!(cut_in_two(&[9.0]).unwrap(), [1]);
    }
}
