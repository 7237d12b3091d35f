//! Operations of convolutional models, in the form that runs fastest where their tensors lie.
//!
//! On the CPU (Burn's `flex` backend) these are kernels of our own, forward and backward; on any
//! other backend, and under Burn's gradient checkpointing, they are Burn's operations. Results
//! differ by rounding only.

mod batch_norm;
mod convolution;
mod differentiable;
mod planes;
mod pool;

pub use batch_norm::batch_norm;
pub use convolution::convolve;
pub use pool::{Window, average_pool, max_pool};
