//! Backward passes in two halves.
//!
//! The first half is Burn's backward pass, in which some kernels defer the gradients of weights. The
//! second half computes these. A parameter's gradient of a micro-batch is complete before it is added
//! to the sum, and micro-batches are added in order, so the bits are those of whole passes.

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_autodiff::{Deferred, Parameters, WeightGradients, defer};

use crate::model::parameters::{ParameterVisitor, move_gradients_of, visit_parameters};

/// Runs the first half of a layer's backward pass.
pub(crate) fn input_half<M: Module, R>(module: &M, backward: impl FnOnce() -> R) -> (R, Deferred) {
    struct Insert(Parameters);

    impl ParameterVisitor for Insert {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.insert(param);
        }
    }

    let mut insert = Insert(Parameters::default());
    visit_parameters(module, &mut insert);
    defer(insert.0, backward)
}

/// The gradients that the first half of a layer's backward pass deferred.
pub(crate) struct DeferredGradients {
    deferred: Deferred,
    /// The part of these gradients that the first half computed.
    part: GradientsParams,
}

impl DeferredGradients {
    /// `None` if nothing was deferred. Otherwise takes the partial gradients out of `found`.
    pub(crate) fn new<M: Module>(
        module: &M,
        deferred: Deferred,
        found: Option<&mut GradientsParams>,
    ) -> Option<Self> {
        if deferred.is_empty() {
            return None;
        }
        let mut part = GradientsParams::new();
        if let Some(found) = found {
            let ids = deferred.parameters();
            move_gradients_of(module, |id| ids.contains(&id), found, &mut part);
        }
        Some(Self { deferred, part })
    }

    /// The second half: the complete gradients.
    pub(crate) fn run<M: Module>(self, module: &M) -> GradientsParams {
        let mut sum = Sum {
            deferred: self.deferred.run(),
            part: self.part,
            sum: GradientsParams::new(),
        };
        visit_parameters(module, &mut sum);
        sum.sum
    }
}

struct Sum {
    deferred: WeightGradients,
    part: GradientsParams,
    sum: GradientsParams,
}

impl ParameterVisitor for Sum {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let deferred = self.deferred.remove::<D>(param.id);
        let gradient = match (self.part.remove::<D>(param.id), deferred) {
            (Some(part), Some(deferred)) => Some(part + deferred),
            (part, deferred) => part.or(deferred),
        };
        if let Some(gradient) = gradient {
            self.sum.register(param.id, gradient);
        }
    }
}
