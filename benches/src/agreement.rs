//! The results of other devices next to those of the CPU.

use burn::{
    module::{ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use stovepipe::pipeline::Precision;

use crate::{
    Failure,
    piped::{Piped, PipedSettings},
    recipe::{Classifier, ModelRecipe},
};

/// The difference of a step from the CPU's, from the same weights.
#[derive(Clone, Copy, Debug, Default)]
pub struct Agreement {
    /// The difference of the losses, as a share of the CPU's.
    pub loss: f64,
    /// The norm of the difference of a gradient, as a share of the norm of the CPU's, for the
    /// parameter where it is largest.
    pub gradient: f64,
}

/// Runs a mini-batch on the CPU in f32, and then through the pipeline.
pub fn agreement<L: Classifier>(
    model: &ModelRecipe<L>,
    plan: &PipedSettings,
) -> Result<Agreement, Failure> {
    let on_cpu = PipedSettings {
        devices: Vec::new(),
        precision: Precision::F32,
        ..plan.clone()
    };
    let reference = Piped::new(model, model.layers()?, &on_cpu)?;
    let expected = reference.passes()?;
    let placed = Piped::new(model, reference.into_layers(), plan)?;
    let found = placed.passes()?;
    let mut differences = Differences {
        expected: expected.gradients,
        found: found.gradients,
        largest: 0.0,
    };
    for layer in placed.layers() {
        layer.visit(&mut differences);
    }
    Ok(Agreement {
        loss: (found.loss - expected.loss).abs() / expected.loss.abs(),
        gradient: differences.largest,
    })
}

struct Differences {
    expected: GradientsParams,
    found: GradientsParams,
    largest: f64,
}

impl ModuleVisitor for Differences {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(expected) = self.expected.remove::<D>(param.id) else {
            return; // running statistics have no gradient
        };
        let here = Device::flex();
        let share = match self.found.remove::<D>(param.id) {
            Some(found) => {
                let difference = found.to_device(&here) - expected.clone();
                norm(difference) / norm(expected).max(f64::MIN_POSITIVE)
            }
            None => f64::INFINITY,
        };
        // `f64::max` would skip NaN.
        if share.is_nan() || share > self.largest {
            self.largest = share;
        }
    }
}

fn norm<const D: usize>(tensor: Tensor<D>) -> f64 {
    let data = tensor.into_data();
    let squares = data.iter::<f32>().map(|value| f64::from(value).powi(2));
    squares.sum::<f64>().sqrt()
}
