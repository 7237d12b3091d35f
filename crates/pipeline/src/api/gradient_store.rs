//! Where gradients lie while a device has no room for them.

use burn::optim::GradientsParams;

use crate::api::error::BoxedError;

/// Where the gradients of a stage lie during a training step, instead of on its device: for
/// [`Pipeline::train_step_into`](crate::Pipeline::train_step_into).
///
/// After each backward pass of a layer, its worker takes what other micro-batches have added there, adds its own, and puts
/// the sum back.
pub trait GradientStore<L>: Send + Sync + 'static {
    /// Takes out the gradients of a layer's parameters, to their device. There are none of what was not put there.
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    fn take(&self, layer: &L) -> Result<GradientsParams, BoxedError>;

    /// Puts gradients of a layer's parameters there.
    ///
    /// # Errors
    ///
    /// If they cannot be written. A later call may tell it.
    fn put(&self, layer: &L, gradients: GradientsParams) -> Result<(), BoxedError>;

    /// Forgets all that [`put`](Self::put) has put there, as each step does first.
    fn clear(&self);
}
