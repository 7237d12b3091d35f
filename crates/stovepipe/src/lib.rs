//! Pipeline-parallel training for [Burn](https://burn.dev): a model that is too large or too slow
//! for one device is cut into stages, each on its own device. Micro-batches stream through them
//! forward and backward, so that all devices work at once. The result is the one that a single
//! device would compute.
//!
//! This crate is the only dependency that a program needs. [`prelude`] has the names that a training
//! program uses; [`schedule`], [`plan`] and [`pipeline`] are the parts. The repository's
//! `docs/src/guide` leads from a struct on one device to a pipeline on three.
//!
//! | feature | what it adds |
//! |---|---|
//! | `flex` (default) | Burn's CPU backend; in every build, since the engine needs it |
//! | `wgpu`, `vulkan`, `metal`, `cuda`, `rocm` | Burn's backend of that name |
//! | `train` | `stovepipe::train`: a training run with loader, optimizer, checkpoints and metrics |
//! | `verify` | `stovepipe::verify`: compares a pipeline with the same model on one device |
//! | `learner` | `stovepipe::learner`: a pipeline in the training loop of `burn-train` |
//!
//! | stovepipe | Burn | Rust |
//! |---|---|---|
//! | 0.1 | 0.22 | 1.95 or later |
//!
//! ```
//! use burn::{module::Module, nn::{Linear, LinearConfig}, optim::AdamConfig};
//! use burn::tensor::{Device, Int, Tensor, activation::relu};
//! use stovepipe::prelude::*;
//!
//! #[derive(Module, Debug)]
//! struct Dense {
//!     linear: Linear,
//! }
//!
//! #[layer]
//! impl Dense {
//!     fn forward(&self, x: Tensor<2>) -> Tensor<2> {
//!         relu(self.linear.forward(x))
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex();
//! let layers = [(4, 16), (16, 16), (16, 3)].map(|(from, to)| Dense {
//!     linear: LinearConfig::new(from, to).init(&device),
//! });
//! let mut pipeline = Pipeline::builder(layers.to_vec())
//!     .devices([device.clone(), device.clone()]) // two stages
//!     .schedule(OneForwardOneBackward)
//!     .micro_batches(4)
//!     .build()?;
//! let mut optimizer = AdamConfig::new().init();
//!
//! let (x, y) = (Tensor::ones([12, 4], &device), Tensor::<1, Int>::zeros([12], &device));
//! let step = pipeline.train_step((x, y), &CrossEntropy::new())?;
//! println!("loss {:.3}, bubble {:.1} %", step.loss, 100.0 * step.bubble());
//! pipeline = optimizer.step(1e-3, pipeline, step.gradients);
//! # let _ = pipeline;
//! # Ok(())
//! # }
//! ```

#[cfg(feature = "learner")]
pub use stovepipe_learner as learner;
pub use stovepipe_pipeline as pipeline;
pub use stovepipe_plan as plan;
pub use stovepipe_schedule as schedule;
#[cfg(feature = "train")]
pub use stovepipe_train as train;
#[cfg(feature = "verify")]
pub use stovepipe_verify as verify;

pub use stovepipe_pipeline::nn;

// Names that the macros use.
/// Derives [`Flow`](trait@Flow) for a struct or an enum of flows.
pub use stovepipe_derive::FacadeFlow as Flow;
pub use stovepipe_derive::{FacadeLayers as Layers, facade_layer as layer};
/// What passes between layers.
pub use stovepipe_pipeline::facade::Flow;
#[doc(hidden)]
pub use stovepipe_pipeline::{Context, FlowMapper, Layer, LayerError, error, flows};

/// The names that a training program uses.
pub mod prelude {
    pub use crate::{Flow, Layers, layer};
    pub use stovepipe_pipeline::{
        Balance, Batch, BuildError, Context, CrossEntropy, KeyedRng, Layer, LayerError, MeanOf,
        Measured, NamedDevice, Objective, Pipeline, Precision, Profiler, Progress, Recompute,
        Replicated, Segments, SkipUse, Step, StepError, StopHandle, measure::Profile,
    };
    pub use stovepipe_schedule::{
        GPipe, Interleaved, OneForwardOneBackward, Schedule, Scheduler, VHalf, VMin,
        VOneForwardOneBackward, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV,
    };
}
