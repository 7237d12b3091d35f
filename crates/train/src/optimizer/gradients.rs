//! Scales, adds and clips gradients.

use std::{collections::HashSet, sync::Arc};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_pipeline::{Layer, Pipeline, StepError, error::BoxedError};

use super::offload::{Kept, OffloadedGradients};
use crate::processes::Processes;

/// The gradients of a stage: on its device, and off it.
pub(super) type OfStage = (GradientsParams, Option<Arc<OffloadedGradients>>);

/// The common norm of all gradients, which are split by stage, and these. Squares are added in the order of
/// the layers, whatever the stages; each stage computes its own.
pub(crate) fn norm<L: Layer>(
    pipeline: &Pipeline<L>,
    gradients: Vec<OfStage>,
) -> Result<(f64, Vec<OfStage>), StepError> {
    let read = |layers: &[L], gradients| Ok((squares(layers, &gradients)?, gradients));
    let own = pipeline.read_stages(gradients, read);
    let processes = Processes::of(pipeline);
    let squares_of = |own: &Vec<Option<(Vec<f64>, _)>>| {
        let squares = own.iter().map(|found| Some(found.as_ref()?.0.clone()));
        squares.collect::<Vec<_>>()
    };
    let (own, all) = processes.tell(own, squares_of)?;
    // The squares of a stage are those of one process, in the order of its layers. Replicas have the same.
    let stages = 0..own.len();
    let of_stage = |stage: usize| {
        all.iter()
            .find_map(|process: &Vec<_>| process[stage].as_ref())
    };
    let squares = stages.filter_map(of_stage).flatten();
    let mut sum = 0.0;
    squares.for_each(|square| sum += square);
    let gradients = own
        .into_iter()
        .map(|found| found.map(|(_, own)| own).unwrap_or_default());
    Ok((f64::sqrt(sum), gradients.collect()))
}

/// The norm of the gradients of a stage alone.
pub(crate) fn norm_of_stage<L: Layer>(layers: &[L], gradients: &OfStage) -> f64 {
    // A lost device fails in the pass that follows.
    let squares = squares(layers, gradients).unwrap_or_default();
    f64::sqrt(squares.iter().sum())
}

/// The factor for gradients whose norm may be at most `largest`, like PyTorch's `clip_grad_norm_`. `None` if
/// they stay as they are.
pub(crate) fn clipped(norm: f64, largest: Option<f64>) -> Option<f64> {
    // PyTorch adds the same small number.
    let factor = largest? / (norm + 1e-6);
    (factor < 1.0).then_some(factor)
}

/// The squared norms of a stage's gradients, read from its device at once.
fn squares<L: Layer>(layers: &[L], gradients: &OfStage) -> Result<Vec<f64>, BoxedError> {
    struct Squares<'a> {
        here: &'a GradientsParams,
        visiting: GradientsParams,
        /// Layers that share a parameter share its gradient.
        seen: HashSet<ParamId>,
        sums: Vec<Tensor<1>>,
    }

    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let is_new = self.seen.insert(param.id);
            let here = || self.here.get::<D>(param.id);
            let gradient = self.visiting.remove::<D>(param.id).or_else(here);
            if let Some(gradient) = gradient.filter(|_| is_new) {
                self.sums.push(gradient.powi_scalar(2).sum());
            }
        }
    }

    let (here, away) = gradients;
    let mut visitor = Squares {
        here,
        visiting: GradientsParams::new(),
        seen: HashSet::new(),
        sums: Vec::new(),
    };
    let mut away = (away.as_ref()).map(|away| away.in_order(Kept::Gradient, layers, false));
    for layer in layers {
        if let Some(away) = &mut away {
            visitor.visiting = away.next(layer)?;
        }
        layer.visit(&mut visitor);
    }
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
