//! Scales, adds and clips gradients.

use std::{collections::HashSet, error::Error};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

/// Scales all gradients by one factor so that their common norm is at most `largest`, like PyTorch's
/// `clip_grad_norm_`. Squares are added in the order of the layers, whatever the stages.
pub(crate) fn clip<L: Layer>(
    pipeline: &Pipeline<L>,
    gradients: GradientsParams,
    largest: f64,
) -> Result<GradientsParams, StepError> {
    // Layers that share a parameter share its gradient.
    let mut seen = HashSet::new();
    let mut sum = 0.0;
    for (stage, layers) in pipeline.stage_layers().enumerate() {
        let squares = squares(layers, &gradients, &mut seen);
        let squares = squares.map_err(|cause| StepError::Device {
            stage,
            device: pipeline.stages()[stage].device_name.clone(),
            source: cause,
        })?;
        squares.iter().for_each(|square| sum += square);
    }
    // PyTorch adds the same small number.
    let factor = largest / (sum.sqrt() + 1e-6);
    if factor < 1.0 {
        return Ok(scaled(pipeline, gradients, factor));
    }
    Ok(gradients)
}

/// The squared norms of a stage's gradients that were not seen before, read from its device at once.
fn squares<L: Layer>(
    layers: &[L],
    gradients: &GradientsParams,
    seen: &mut HashSet<ParamId>,
) -> Result<Vec<f64>, Box<dyn Error + Send + Sync>> {
    struct Squares<'a> {
        gradients: &'a GradientsParams,
        seen: &'a mut HashSet<ParamId>,
        sums: Vec<Tensor<1>>,
    }

    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let is_new = self.seen.insert(param.id);
            if let Some(gradient) = self.gradients.get::<D>(param.id).filter(|_| is_new) {
                self.sums.push(gradient.powi_scalar(2).sum());
            }
        }
    }

    let mut visitor = Squares {
        gradients,
        seen,
        sums: Vec::new(),
    };
    layers.iter().for_each(|layer| layer.visit(&mut visitor));
    if visitor.sums.is_empty() {
        return Ok(Vec::new());
    }
    let sums = Tensor::cat(visitor.sums, 0).try_into_data()?;
    Ok(sums.iter::<f64>().collect())
}

/// Multiplies all gradients by a factor.
pub(super) fn scaled<L: Layer>(
    pipeline: &Pipeline<L>,
    gradients: GradientsParams,
    factor: f64,
) -> GradientsParams {
    let mut sum = GradientsParams::new();
    add_scaled(pipeline, &mut sum, gradients, factor);
    sum
}

/// Adds gradients times a factor to sums.
pub(super) fn add_scaled<L: Layer>(
    pipeline: &Pipeline<L>,
    sum: &mut GradientsParams,
    gradients: GradientsParams,
    factor: f64,
) {
    struct Add<'a> {
        sum: &'a mut GradientsParams,
        gradients: GradientsParams,
        factor: f64,
    }

    impl ModuleVisitor for Add<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // The first visit takes the gradient of a parameter in several layers.
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let gradient = gradient.mul_scalar(self.factor);
                let sum = match self.sum.remove::<D>(param.id) {
                    Some(sum) => sum + gradient,
                    None => gradient,
                };
                self.sum.register(param.id, sum);
            }
        }
    }

    pipeline.visit(&mut Add {
        sum,
        gradients,
        factor,
    });
}
