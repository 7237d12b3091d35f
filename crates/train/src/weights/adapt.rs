//! Converts a file's tensors to a model's layout.

use burn::{
    store::{
        FloatCastAdapter, ModuleAdapter, PyTorchToBurnAdapter, bridge,
        burn_pack::{self, Error},
    },
    tensor::{Shape, TensorData},
};

use super::{format::Convention, places::Place};

/// The tensor in the layout and precision of `place`. Its shape may still differ. Reads nothing.
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

/// PyTorch's name of the parameter if it differs from Burn's, as in norms.
pub(super) fn name_in_pytorch(place: &Place) -> Option<String> {
    let (parameter, module) = place.parameter();
    let kind = place.context().module_type()?;
    let name = PyTorchToBurnAdapter.get_alternative_param_name(parameter, kind)?;
    Some(format!("{module}{name}"))
}

/// The shape in this model: PyTorch's models have a convolution over patches that do not overlap where
/// this one has a linear layer, and a first dimension of one in parameters that are added to a batch.
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

/// Whether it is a weight that PyTorch has transposed.
pub(super) fn is_linear_weight(place: &Place) -> bool {
    place.context().module_type() == Some("Struct:Linear") && place.parameter().0 == "weight"
}

fn reshaped(tensor: burn_pack::Tensor, shape: Shape) -> burn_pack::Tensor {
    let (name, dtype) = (tensor.name.clone(), tensor.dtype);
    bridge::deferred(name, dtype, shape.clone(), None, move || {
        TensorData::try_from_bytes(tensor.to_bytes()?, shape.clone(), dtype)
            .map_err(|error| Error::ValidationError(error.to_string()))
    })
}
