//! AmoebaNet as a list of pipeline layers.
//!
//! [`AmoebaNetDConfig`] and [`AmoebaNetBConfig`] make the image classifiers AmoebaNet-D(L, D) and
//! AmoebaNet-B(L, D) of Huang et al., "GPipe: Efficient Training of Giant Neural Networks using
//! Pipeline Parallelism" (2019): L + 6 layers, whose parameters are allocated on first use. The
//! cells come from Real et al., "Regularized Evolution for Image Classifier Architecture Search"
//! (2019). AmoebaNet-D equals torchgpipe's model layer by layer, and
//! [`AmoebaNetDConfig::torch_keys`] maps the names of its weights. AmoebaNet-B differs in its cells
//! and in the width of its stem.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};
//! use stovepipe_pipeline::{Context, Layer};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex();
//! let layers = AmoebaNetDConfig::new(3, 8, 10).with_stem(Stem::Small).init(&device)?;
//! assert_eq!(layers.len(), 3 + 6);
//!
//! let mut flow = AmoebaLayer::enter(Tensor::zeros([2, 3, 32, 32], &device));
//! for layer in &layers {
//!     flow = layer.forward(flow, &mut Context::new(&(), false))?;
//! }
//! assert_eq!(AmoebaLayer::leave(flow)?.dims(), [2, 10]);
//! # Ok(())
//! # }
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod cell;
mod config;
mod convolution;
mod error;
mod family;
mod genotype;
mod head;
mod layer;
mod network;
mod operation;
mod separable;
mod stem;
mod torch;

pub use cell::Cell;
pub use config::{AmoebaNetBConfig, AmoebaNetDConfig};
pub use error::AmoebaNetError;
pub use head::{AuxiliaryHead, Classifier};
pub use layer::{AmoebaFlow, AmoebaLayer};
pub use stem::{Stem, StemConvolution};
