//! Scales, adds and clips gradients.

use std::{collections::HashSet, error::Error};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

use crate::processes::Processes;

/// The common norm of all gradients. Squares are added in the order of the layers, whatever the stages.
pub(crate) fn norm<L: Layer>(
    pipeline: &Pipeline<L>,
    gradients: &GradientsParams,
) -> Result<f64, StepError> {
    // Layers that share a parameter share its gradient.
    let mut seen = HashSet::new();
    let of_stage = |(stage, layers)| {
        let squares = squares(layers, gradients, &mut seen);
        let squares = squares.map_err(|cause| StepError::Device {
            stage,
            device: pipeline.stages()[stage].device_name.clone(),
            source: cause,
        })?;
        Ok((stage, squares))
    };
    let of_stages = pipeline.stage_layers().enumerate().map(of_stage);
    let own = of_stages.collect::<Result<Vec<_>, StepError>>();
    let processes = Processes::of(pipeline);
    let (_, all) = processes.tell(own, Clone::clone)?;
    let mut all = all.concat();
    // The squares of a stage are those of one process, in the order of its layers. Replicas have the same.
    all.retain(|(_, squares)| !squares.is_empty());
    all.sort_by_key(|(stage, _)| *stage);
    all.dedup_by_key(|(stage, _)| *stage);
    let mut sum = 0.0;
    let squares = all.iter().flat_map(|(_, squares)| squares);
    squares.for_each(|square| sum += square);
    Ok(f64::sqrt(sum))
}

/// The norm of the gradients of a stage alone.
pub(crate) fn norm_of_stage<L: Layer>(layers: &[L], gradients: &GradientsParams) -> f64 {
    // A lost device fails in the pass that follows.
    let squares = squares(layers, gradients, &mut HashSet::new()).unwrap_or_default();
    f64::sqrt(squares.iter().sum())
}

/// Scales all gradients by one factor so that their `norm` is at most `largest`, like PyTorch's
/// `clip_grad_norm_`.
pub(crate) fn clip<M: Module>(
    module: &M,
    gradients: GradientsParams,
    norm: f64,
    largest: f64,
) -> GradientsParams {
    // PyTorch adds the same small number.
    let factor = largest / (norm + 1e-6);
    if factor < 1.0 {
        return scaled(module, gradients, factor);
    }
    gradients
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

pub(super) fn scaled<M: Module>(
    module: &M,
    gradients: GradientsParams,
    factor: f64,
) -> GradientsParams {
    let mut sum = GradientsParams::new();
    add_scaled(module, &mut sum, gradients, factor);
    sum
}

/// Adds gradients times a factor to sums.
pub(super) fn add_scaled<M: Module>(
    module: &M,
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

    module.visit(&mut Add {
        sum,
        gradients,
        factor,
    });
}
