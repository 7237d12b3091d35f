//! Backward passes in halves.
//!
//! The first half is Burn's backward pass, within which kernels leave gradients of weights for
//! later. What no kernel left is found and added up at once, by the first half. Either way a
//! parameter's gradients are added in the order of micro-batches, and each is the sum over all that
//! reads the parameter before it is added: the bits are those of whole passes.

use std::collections::HashSet;

use burn::{
    module::{Module, Param, ParamId},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_autodiff::{Deferred, Parameters, WeightGradients, defer};

use crate::model::parameters::{ParameterVisitor, visit_parameters};

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

/// What the first half of a layer's backward pass left.
pub(crate) struct DeferredGradients {
    deferred: Deferred,
    /// What was found at once of the very same parameters.
    part: GradientsParams,
}

impl DeferredGradients {
    /// `None` if nothing was left. Else takes from `found` what is only a part.
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
            let wanted = deferred.parameters();
            let (from, to) = (found, &mut part);
            visit_parameters(module, &mut Take { wanted, from, to });
        }
        Some(Self { deferred, part })
    }

    /// The second half: the gradients that were left, whole.
    pub(crate) fn run<M: Module>(self, module: &M) -> GradientsParams {
        let mut sum = Sum {
            late: self.deferred.run(),
            part: self.part,
            sum: GradientsParams::new(),
        };
        visit_parameters(module, &mut sum);
        sum.sum
    }
}

struct Take<'a> {
    wanted: HashSet<ParamId>,
    from: &'a mut GradientsParams,
    to: &'a mut GradientsParams,
}

impl ParameterVisitor for Take<'_> {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !self.wanted.contains(&param.id) {
            return;
        }
        if let Some(gradient) = self.from.remove::<D>(param.id) {
            self.to.register(param.id, gradient);
        }
    }
}

struct Sum {
    late: WeightGradients,
    part: GradientsParams,
    sum: GradientsParams,
}

impl ParameterVisitor for Sum {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let late = self.late.remove::<D>(param.id);
        let gradient = match (self.part.remove::<D>(param.id), late) {
            (Some(part), Some(late)) => Some(part + late),
            (part, late) => part.or(late),
        };
        if let Some(gradient) = gradient {
            self.sum.register(param.id, gradient);
        }
    }
}
