//! Operations in the form that runs fastest where their tensors lie.
//!
//! On the CPU (Burn's `flex` backend) these are kernels of our own, forward and backward; on any
//! other backend, and under Burn's gradient checkpointing, they are Burn's operations. Results
//! differ by rounding only. In f16 and bf16, too, they are Burn's, but norms and softmax are found in f32.

mod adam_w;
mod attention;
mod batch_norm;
mod convolution;
mod defer;
mod differentiable;
mod exponential;
mod gelu;
mod instance_norm;
mod layer_norm;
mod linear;
mod patches;
mod planes;
mod pool;
mod products;
mod rows;
mod seed;
mod taps;
mod widened;

pub use adam_w::AdamWUpdate;
pub use attention::{Heads, attention};
pub use batch_norm::batch_norm;
pub use convolution::{convolve, relu_convolve, relu_convolve_odd};
// For kernels that are made to fail in tests.
pub use defer::{Deferred, Parameters, WeightGradients, defer};
#[doc(hidden)]
pub use defer::{deferrable, leave};
pub use gelu::gelu;
pub use instance_norm::instance_norm;
pub use layer_norm::layer_norm;
pub use linear::{linear, linear_by_rows};
pub use pool::{Window, average_pool, max_pool};
pub use seed::seed;
pub use widened::widened;
