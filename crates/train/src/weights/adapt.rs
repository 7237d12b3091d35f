//! A file's tensor as a model has it.

use burn::{
    store::{
        FloatCastAdapter, ModuleAdapter, PyTorchToBurnAdapter, bridge,
        burn_pack::{self, Error},
    },
    tensor::{Shape, TensorData},
};

use super::{Convention, places::Place};

/// The tensor as `place` is to have it, but for its shape, which may be another. Nothing is read.
pub(super) fn adapted(
    mut tensor: burn_pack::Tensor,
    place: &Place,
    convention: Convention,
) -> burn_pack::Tensor {
    tensor.name.clone_from(&place.name);
    if convention == Convention::PyTorch {
        let shape = flattened(&tensor.shape, place);
        if shape != tensor.shape {
            tensor = reshaped(tensor, shape);
        }
        tensor = PyTorchToBurnAdapter.adapt(tensor, place.context());
    }
    match place.float {
        Some(float) => FloatCastAdapter::to(float).adapt(tensor, place.context()),
        None => tensor,
    }
}

/// What PyTorch calls the parameter in its module, if it is not what Burn calls it: a norm's.
pub(super) fn name_in_pytorch(place: &Place) -> Option<String> {
    let (parameter, module) = place.parameter();
    let kind = place.context().module_type()?;
    let name = PyTorchToBurnAdapter.get_alternative_param_name(parameter, kind)?;
    Some(format!("{module}{name}"))
}

/// The shape without what PyTorch's models have for other ends: a convolution over patches that do not overlap is a
/// linear layer of theirs, and a parameter that is added to a batch begins with a dimension of one.
fn flattened(shape: &Shape, place: &Place) -> Shape {
    let rank = place.shape.rank();
    if is_linear_weight(place) && shape.rank() > 2 {
        let numbers = shape[1..].iter().copied().fold(1, usize::saturating_mul);
        return Shape::from([shape[0], numbers]);
    }
    let ones = shape.iter().take_while(|dimension| **dimension == 1);
    let surplus = shape.rank().saturating_sub(rank).min(ones.count());
    Shape::from(shape[surplus..].to_vec())
}

/// Whether it is a weight that PyTorch has turned.
pub(super) fn is_linear_weight(place: &Place) -> bool {
    place.context().module_type() == Some("Struct:Linear") && place.parameter().0 == "weight"
}

/// The same numbers in another shape.
fn reshaped(tensor: burn_pack::Tensor, shape: Shape) -> burn_pack::Tensor {
    let (name, dtype) = (tensor.name.clone(), tensor.dtype);
    bridge::deferred(name, dtype, shape.clone(), None, move || {
        TensorData::try_from_bytes(tensor.to_bytes()?, shape.clone(), dtype)
            .map_err(|error| Error::ValidationError(error.to_string()))
    })
}
