//! U-Net as a list of pipeline layers, with its long skips.
//!
//! [`UNetConfig`] makes U-Net(B, C) of Kim et al., "torchgpipe: On-the-fly Pipeline Parallelism for
//! Training Giant Models" (2020): layer by layer the simplified U-Net of torchgpipe's benchmarks, after
//! Ronneberger et al., "U-Net: Convolutional Networks for Biomedical Image Segmentation" (2015).
//!
//! ```text
//! B × Convolution ─ Down ──────── level 0 ──────── Up ─ B × Convolution ─ Segment
//!    B × Convolution ─ Down ───── level 1 ───── Up ─ B × Convolution
//!                           B × Convolution
//! ```
//!
//! A layer that halves the map also sends it to the one that doubles the map again. A pipeline can be
//! cut between any two layers.
//!
//! ```
//! use burn::tensor::{Device, Tensor};
//! use stovepipe_pipeline::Pipeline;
//! use stovepipe_unet::UNetConfig;
//!
//! let device = Device::flex();
//! let layers = UNetConfig::new(1, 4).init(&device)?; // B = 1, C = 4
//! assert_eq!(layers.len(), 5 * 2 + 1 + 5 * 2 + 1);
//!
//! let pipeline = Pipeline::builder(layers).devices(vec![device.clone(); 3]).build()?;
//! let segmented = pipeline.infer(Tensor::ones([2, 3, 64, 64], &device))?;
//! assert_eq!(segmented.dims(), [2, 1, 64, 64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod config;
mod convolution;
mod error;
mod layer;
mod resize;
mod segment;
mod torch;

pub use config::UNetConfig;
pub use convolution::Convolution;
pub use error::UNetError;
pub use layer::UNetLayer;
pub use resize::{Down, Up};
pub use segment::Segment;
