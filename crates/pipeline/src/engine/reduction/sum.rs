//! Adds the gradients of replicas in one process, in the order of a ring.
//!
//! A tensor is cut into as many slices as there are replicas, as in `stovepipe-collective`. The sum of slice
//! `c` begins at replica `c + 1`, goes round, and ends at replica `c`. So it has the bits of a ring of
//! processes.

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor},
};
use stovepipe_collective::slice;

use crate::model::{
    moved::moved,
    parameters::{ParameterVisitor, visit_parameters},
};

/// The sums of a module's gradients over its replicas, on a device. A gradient that a replica lacks counts as
/// zero.
pub(super) fn sum<M: Module>(
    module: &M,
    of_replicas: Vec<GradientsParams>,
    device: &Device,
) -> GradientsParams {
    struct Sum<'a> {
        of_replicas: Vec<GradientsParams>,
        device: &'a Device,
        sum: GradientsParams,
    }

    impl ParameterVisitor for Sum<'_> {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let all = self.of_replicas.iter_mut();
            let all: Vec<_> = all.map(|own| own.remove::<D>(param.id)).collect();
            let Some(shape) = all.iter().flatten().next().map(Tensor::shape) else {
                return;
            };
            let zeros = || Tensor::zeros(shape.clone(), self.device);
            let on_device =
                |own: Option<Tensor<D>>| own.map_or_else(zeros, |own| moved(own, self.device));
            let all = all.into_iter().map(on_device).collect();
            self.sum.register(param.id, ring_sum(all));
        }
    }

    let sum = GradientsParams::new();
    let mut all = Sum {
        of_replicas,
        device,
        sum,
    };
    visit_parameters(module, &mut all);
    all.sum
}

fn ring_sum<const D: usize>(all: Vec<Tensor<D>>) -> Tensor<D> {
    let ranks = all.len();
    if let [first, second] = &all[..] {
        return first.clone() + second.clone(); // in either order
    }
    let shape = all[0].shape();
    let all: Vec<Tensor<1>> = all.into_iter().map(|own| own.reshape([-1])).collect();
    let sum = |place: usize| {
        let slice = slice(shape.num_elements(), place, ranks);
        let part = |rank: usize| all[rank % ranks].clone().slice([slice.clone()]);
        let parts = (place + 1..=place + ranks).map(part);
        parts
            .reduce(|sum, part| sum + part)
            .filter(|_| !slice.is_empty())
    };
    let slices: Vec<_> = (0..ranks).filter_map(sum).collect();
    Tensor::cat(slices, 0).reshape(shape)
}
