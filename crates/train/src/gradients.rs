//! What is done to gradients between a step and an update.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::{GradientsParams, StateSink},
    tensor::{Tensor, TensorData},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

use crate::{checkpoint::TrainerState, optimizer::Names};

/// The gradients of mini-batches that wait for an update together.
#[derive(Default)]
pub(crate) struct GradientAccumulator {
    /// Those of the mean loss of each mini-batch, times its weight, added up.
    sum: GradientsParams,
    weight: f64,
    mini_batches: usize,
    /// Whether those of a mini-batch were not finite, so that none of the window's count.
    spoiled: bool,
}

impl GradientAccumulator {
    /// Counts a mini-batch whose gradients were not finite.
    pub(crate) fn spoil(&mut self, weight: f64) {
        self.sum = GradientsParams::new();
        self.weight += weight;
        self.mini_batches += 1;
        self.spoiled = true;
    }

    /// Adds the gradients of a mini-batch's mean loss over `weight` samples or tokens.
    pub(crate) fn add<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
        gradients: GradientsParams,
        weight: f64,
    ) {
        struct Add<'a> {
            sum: &'a mut GradientsParams,
            gradients: GradientsParams,
            weight: f64,
        }

        if self.spoiled {
            return self.spoil(weight);
        }

        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                // A parameter in several places has one gradient, which the first visit takes.
                if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                    let gradient = gradient.mul_scalar(self.weight);
                    let sum = match self.sum.remove::<D>(param.id) {
                        Some(sum) => sum + gradient,
                        None => gradient,
                    };
                    self.sum.register(param.id, sum);
                }
            }
        }

        pipeline.visit(&mut Add {
            sum: &mut self.sum,
            gradients,
            weight,
        });
        self.weight += weight;
        self.mini_batches += 1;
    }

    pub(crate) fn mini_batches(&self) -> usize {
        self.mini_batches
    }

    pub(crate) fn weight(&self) -> f64 {
        self.weight
    }

    pub(crate) fn is_spoiled(&self) -> bool {
        self.spoiled
    }

    /// What has been added up for each parameter, by its name.
    pub(crate) fn sums<L: Layer>(&self, pipeline: &Pipeline<L>, names: &Names) -> StateSink {
        struct Read<'a> {
            sum: &'a GradientsParams,
            names: &'a Names,
            seen: HashSet<ParamId>,
            read: StateSink,
        }

        impl ModuleVisitor for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let is_new = self.seen.insert(param.id);
                let sum = self.sum.get::<D>(param.id).filter(|_| is_new);
                if let (Some(sum), Some(name)) = (sum, self.names.get(&param.id)) {
                    self.read.tensors.push((name.clone(), sum.into_data()));
                }
            }
        }

        let mut visitor = Read {
            sum: &self.sum,
            names,
            seen: HashSet::new(),
            read: StateSink::default(),
        };
        pipeline.visit(&mut visitor);
        visitor.read
    }

    /// A window with what was added up before, as `state` has counted it.
    pub(crate) fn restore<L: Layer>(
        pipeline: &Pipeline<L>,
        names: &Names,
        sums: StateSink,
        state: &TrainerState,
    ) -> Self {
        struct Write<'a> {
            sums: HashMap<String, TensorData>,
            names: &'a Names,
            sum: GradientsParams,
        }

        impl ModuleVisitor for Write<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let name = self.names.get(&param.id);
                let data = name.and_then(|name| self.sums.remove(name));
                if let Some(data) = data.filter(|data| data.rank() == D) {
                    let device = param.lazy_device().inner();
                    let sum = Tensor::<D>::from_data(data, &device);
                    self.sum.register(param.id, sum);
                }
            }
        }

        let mut visitor = Write {
            sums: sums.tensors.into_iter().collect(),
            names,
            sum: GradientsParams::new(),
        };
        pipeline.visit(&mut visitor);
        Self {
            sum: visitor.sum,
            weight: state.waiting_weight,
            mini_batches: state.waiting,
            spoiled: state.spoiled,
        }
    }

    /// The gradients of the mean loss over all that was added, unless it is spoiled; and begins anew.
    pub(crate) fn take<L: Layer>(&mut self, pipeline: &Pipeline<L>) -> Option<GradientsParams> {
        let window = std::mem::take(self);
        (!window.spoiled).then(|| scale(pipeline, window.sum, 1.0 / window.weight))
    }
}

/// Scales gradients by one factor, so that the norm of all together is `largest` at most, as PyTorch's
/// `clip_grad_norm_` does. The squares are added up parameter by parameter in the order of the layers: stages
/// make no difference to the sum.
pub(crate) fn clip<L: Layer>(
    pipeline: &Pipeline<L>,
    gradients: GradientsParams,
    largest: f64,
) -> Result<GradientsParams, StepError> {
    // A parameter that several layers share has one gradient.
    let mut seen = HashSet::new();
    let mut sum = 0.0;
    for (stage, layers) in pipeline.stage_layers().enumerate() {
        let squares = squares(layers, &gradients, &mut seen);
        let squares = squares.map_err(|cause| StepError::Device {
            stage,
            device: pipeline.stages()[stage].device_name.clone(),
            cause,
        })?;
        squares.iter().for_each(|square| sum += square);
    }
    // The small number is PyTorch's, too.
    let factor = largest / (sum.sqrt() + 1e-6);
    Ok(match factor < 1.0 {
        true => scale(pipeline, gradients, factor),
        false => gradients,
    })
}

/// The squared norm of each gradient of a stage that was not seen before, read from its device at once.
fn squares<L: Layer>(
    layers: &[L],
    gradients: &GradientsParams,
    seen: &mut HashSet<ParamId>,
) -> Result<Vec<f64>, String> {
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
    let sums = Tensor::cat(visitor.sums, 0).try_into_data();
    let sums = sums.map_err(|error| error.to_string())?;
    Ok(sums.iter::<f64>().collect())
}

fn scale<L: Layer>(
    pipeline: &Pipeline<L>,
    gradients: GradientsParams,
    factor: f64,
) -> GradientsParams {
    struct Scale {
        gradients: GradientsParams,
        scaled: GradientsParams,
        factor: f64,
    }

    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let gradient = gradient.mul_scalar(self.factor);
                self.scaled.register(param.id, gradient);
            }
        }
    }

    let mut visitor = Scale {
        gradients,
        scaled: GradientsParams::new(),
        factor,
    };
    pipeline.visit(&mut visitor);
    visitor.scaled
}
