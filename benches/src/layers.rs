//! The cost of each layer, where to cut, and what crosses a cut.

use std::hint::black_box;

use burn::{
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use stovepipe::{
    pipeline::{
        count_parameters,
        flows::{attach, detach, to_device},
    },
    prelude::*,
};
use stovepipe_plan::{CutError, cut_chain};

use crate::{
    Failure,
    flows::{bytes, gradients_for, seed},
    measure::{Seconds, time},
    recipe::{Classifier, ModelRecipe},
};

/// The cost of one layer for one micro-batch, in seconds.
#[derive(Clone, Debug)]
pub struct LayerCost {
    pub name: String,
    pub parameters: usize,
    pub output_bytes: usize,
    /// Forward without a tape, as before recomputation.
    pub quiet: Seconds,
    pub taped: Seconds,
    /// Backward, with gradients of parameters and of the input.
    pub backward: Seconds,
}

impl LayerCost {
    /// Forward and backward, as in a training step that keeps its activations.
    pub fn total(&self) -> f64 {
        self.taped.median() + self.backward.median()
    }

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
pub fn totals(costs: &[LayerCost]) -> Vec<f64> {
    costs.iter().map(LayerCost::total).collect()
}

/// A transfer is so short that it is repeated.
const REPEATS: usize = 100;

/// A micro-batch between two stages on one device.
#[derive(Clone, Copy, Debug)]
pub struct Boundary {
    pub bytes: usize,
    /// Seconds of its transfer.
    pub transfer: f64,
    /// Seconds of a copy of as many bytes.
    pub copy: f64,
}

pub fn boundary<L: Classifier>(model: &ModelRecipe<L>, after: usize) -> Result<Boundary, Failure> {
    let (input, _) = model.batch(model.samples);
    let mut flow = attach(L::enter(input), false);
    for layer in &model.layers()?[..after] {
        flow = layer.forward(flow, &mut Context::new(&(), true))?;
    }
    let flow = detach(flow);
    let (bytes, device) = (bytes(flow.clone()), Device::flex());
    let (transfer, ()) = time(|| {
        for _ in 0..REPEATS {
            black_box(to_device(flow.clone(), &device));
        }
    });
    let values = vec![1_u8; bytes];
    let (copy, ()) = time(|| (0..REPEATS).for_each(|_| drop(black_box(values.clone()))));
    let [transfer, copy] = [transfer, copy].map(|seconds| seconds / REPEATS as f64);
    Ok(Boundary {
        bytes,
        transfer,
        copy,
    })
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
