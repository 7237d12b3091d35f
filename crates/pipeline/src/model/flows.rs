//! Operations on all tensors of a flow.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use stovepipe_pipeline::flows::{attach, detach, to_device};
//!
//! let device = Device::flex();
//! let pair = (Tensor::<2>::ones([3, 2], &device), Tensor::<1, Int>::zeros([3], &device));
//! let leaf = attach(to_device(pair, &device), true).0;
//! let product = leaf.clone() * 2;
//! assert!(product.is_tracked() && !detach(product.clone()).is_tracked());
//! assert!(leaf.grad(&product.sum().backward()).is_some());
//! ```

use burn::tensor::{Bool, Device, Int, Tensor};

use super::flow::{Flow, FlowMapper, every_kind};
use super::moved::moved;
use super::packed::PackError;
pub use super::packed::Packed;

/// Moves a flow to a device. Tensors that are already there are not copied.
pub fn to_device<F: Flow>(flow: F, device: &Device) -> F {
    struct Move<'a>(&'a Device);

    impl FlowMapper for Move<'_> {
        every_kind!(self, tensor => moved(tensor, self.0));
    }

    flow.map(&mut Move(device))
}

/// Detaches a flow from its autodiff graph.
pub fn detach<F: Flow>(flow: F) -> F {
    struct Detach;

    impl FlowMapper for Detach {
        every_kind!(self, tensor => tensor.inner());
    }

    flow.map(&mut Detach)
}

/// Makes detached values constants of an autodiff graph or, with `require_grad`, leaves that get a gradient.
///
/// Constants need this too: batch norm and dropout ask their input's device whether they train.
pub fn attach<F: Flow>(flow: F, require_grad: bool) -> F {
    struct Attach(bool);

    impl FlowMapper for Attach {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.autodiff().set_require_grad(self.0)
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            tensor.autodiff()
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            tensor.autodiff()
        }
    }

    flow.map(&mut Attach(require_grad))
}

/// Packs a flow, for another process.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::flows::{pack, unpack};
///
/// let device = Device::flex();
/// let flow = vec![Some(Tensor::<2>::ones([2, 3], &device)), None];
/// let unpacked: Vec<Option<Tensor<2>>> = unpack(&mut pack(flow)?, &device)?;
/// assert_eq!(unpacked[0].as_ref().map(Tensor::dims), Some([2, 3]));
/// assert!(unpacked[1].is_none());
/// # Ok::<(), stovepipe_pipeline::error::PackError>(())
/// ```
///
/// # Errors
///
/// If its type does not say how, or a device does not return a tensor.
pub fn pack<F: Flow>(flow: F) -> Result<Packed, PackError> {
    let mut packed = Packed::default();
    flow.pack(&mut packed)?;
    Ok(packed)
}

/// Unpacks the next flow, to a device.
///
/// # Errors
///
/// If it is a flow of another type.
pub fn unpack<F: Flow>(from: &mut Packed, device: &Device) -> Result<F, PackError> {
    F::unpack(from, device)
}
