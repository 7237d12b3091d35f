//! Finds values that are NaN or infinite.

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{DType, Tensor},
};

use crate::{
    engine::values::{self, FlowGradients},
    model::{
        flow::{Flow, FlowMapper},
        parameters::{ParameterVisitor, visit_parameters},
    },
};

/// Whether all floats of a flow are finite.
pub(crate) fn is_finite<F: Flow>(flow: &F) -> bool {
    check(flow, None)
}

/// Whether all gradients of a flow are finite.
pub(crate) fn are_finite<F: Flow>(flow: &F, gradients: &FlowGradients) -> bool {
    check(flow, Some(gradients))
}

fn check<F: Flow>(flow: &F, gradients: Option<&FlowGradients>) -> bool {
    struct Check<'a> {
        gradients: Option<&'a FlowGradients>,
        index: usize,
        finite: bool,
    }

    impl FlowMapper for Check<'_> {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            let checked = match self.gradients {
                Some(gradients) => gradients.get::<D>(self.index).cloned(),
                None => Some(tensor.clone()),
            };
            self.finite &= checked.is_none_or(all_finite);
            self.index += 1;
            tensor
        }
    }

    let mut check = Check {
        gradients,
        index: 0,
        finite: true,
    };
    flow.clone().map(&mut check);
    check.finite
}

/// The sum of all gradients of a module's parameters, which is not finite if one of them is not. Takes
/// one pass and reads one number from the device.
pub(crate) fn gradient_sum<M: Module>(
    module: &M,
    gradients: &GradientsParams,
) -> Option<Tensor<1>> {
    struct Sum<'a> {
        gradients: &'a GradientsParams,
        sum: Option<Tensor<1>>,
    }

    impl ParameterVisitor for Sum<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // In f32, in which finite f16 numbers do not overflow.
            let gradient = self.gradients.get::<D>(param.id);
            let own = gradient.map(|gradient| gradient.cast(DType::F32).sum());
            self.sum = values::add(self.sum.take(), own);
        }
    }

    let mut sum = Sum {
        gradients,
        sum: None,
    };
    visit_parameters(module, &mut sum);
    sum.sum
}

pub(crate) fn all_finite<const D: usize>(tensor: Tensor<D>) -> bool {
    tensor.is_finite().all().into_scalar::<bool>()
}
