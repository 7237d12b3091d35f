//! Hooks into Burn's autodiff that the engine and the kernels share.
//!
//! - [`Kernel`]: an operation on the CPU with its own gradient.
//! - [`Operation`]: the same with Burn's operations, on every backend.
//! - [`defer`]: a backward pass that postpones the gradients of weights.
//! - [`seed`]: a backward pass that starts from a given gradient.
//! - [`SharedLeaves`]: leaves that many graphs may use without becoming one.
//! - [`at_least_f32`]: f32 for sums that need it.
//! - [`arange`]: whole numbers, made on the host.
//!
//! | feature | what it adds |
//! |---|---|
//! | `cube` | the same for the backends of CubeCL: CUDA, ROCm, Vulkan, WebGPU, Metal |

mod arange;
mod defer;
mod dispatch;
mod kernel;
mod leaves;
mod operand;
mod operation;
mod precision;
mod seed;

pub use arange::arange;
pub use defer::{Deferred, Parameters, WeightGradients, defer};
// For a test of the engine whose kernel fails on purpose.
#[doc(hidden)]
pub use defer::{deferrable, postpone};
pub use kernel::Kernel;
pub use leaves::SharedLeaves;
pub use operand::{Operand, contiguous, stored, tensor, values};
pub use operation::Operation;
pub use precision::at_least_f32;
pub use seed::seed;
