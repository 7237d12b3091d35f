//! Fast operations for the models of Stovepipe.
//!
//! On the CPU (Burn's `flex` backend) and in f32 these are custom kernels, forward and backward. On
//! other backends and under Burn's gradient checkpointing they are Burn's operations: results differ
//! by rounding only. So they are in f16 and bf16, except that norms and softmax compute in f32.
//!
//! Threads share the samples of a micro-batch, or each sample if there are more threads than samples:
//! the filters and channels of a convolution, the heads of attention. The bits of convolutions, linear
//! layers, layer norm, GELU, dropout and attention do not depend on the number of threads, with one exception:
//! the gradient of a convolution's weight, if there are at least as many samples as threads. To add it
//! up in one order would take a sum for each sample.

mod adam_w;
mod attention;
mod batch_norm;
mod convolution;
mod dropout;
mod everywhere;
mod exponential;
mod frozen;
mod gelu;
mod heads;
mod instance_norm;
mod layer_norm;
mod linear;
mod linear_cross_entropy;
mod patches;
mod planes;
mod pool;
mod products;
pub mod random;
mod rms_norm;
mod rotation;
mod rows;
mod swiglu;
mod taps;

pub use adam_w::AdamWUpdate;
pub use attention::attention;
pub use batch_norm::batch_norm;
pub use convolution::{convolve, relu_convolve, relu_convolve_odd};
pub use dropout::dropout;
pub use frozen::frozen_linear;
pub use gelu::gelu;
pub use heads::Heads;
pub use instance_norm::instance_norm;
pub use layer_norm::layer_norm;
pub use linear::{linear, linear_by_rows};
pub use linear_cross_entropy::linear_cross_entropy;
pub use pool::{PoolWindow, average_pool, max_pool};
pub use rms_norm::rms_norm;
pub use rotation::Rotation;
pub use swiglu::swiglu;
