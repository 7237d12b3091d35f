//! CIFAR-10 and CIFAR-100 as Burn datasets, read from the folders that the official archives unpack to.
//!
//! [`Cifar`] is one split. [`CifarBatcher`] makes normalised batches `[n, 3, 32, 32]` of it, for training with
//! [`CifarAugmentation`]. Download the *binary version* of an archive from
//! <https://www.cs.toronto.edu/~kriz/cifar.html> and unpack it.
//!
//! | archive | unpacks to | label bytes of a record |
//! |---|---|---|
//! | `cifar-10-binary.tar.gz` | `cifar-10-batches-bin` | label |
//! | `cifar-100-binary.tar.gz` | `cifar-100-binary` | coarse label, fine label |
//!
//! A record is its label bytes, then 1,024 red, 1,024 green and 1,024 blue values, each channel row by row.
//!
//! ```
//! # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
//! # let data = tempfile::tempdir()?;
//! # write_cifar10(data.path(), |_| record(&[6], |_, _, _| 128).repeat(20));
//! # let data = data.path();
//! use burn::data::dataloader::DataLoaderBuilder;
//! use stovepipe_cifar::{Cifar, CifarAugmentation, CifarBatcher, CifarLabels};
//!
//! let train = Cifar::train(CifarLabels::Cifar10, data)?; // `data` is or contains cifar-10-batches-bin
//! let (seed, epoch) = (7, 0);
//! let batcher = CifarBatcher::augmented(CifarAugmentation::default(), seed, epoch);
//! let loader = DataLoaderBuilder::new(batcher).batch_size(64).shuffle(seed).build(train);
//! let (images, labels) = loader.iter().next().ok_or("no batch")??;
//! assert_eq!(images.dims(), [64, 3, 32, 32]);
//! assert_eq!(labels.dims(), [64]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Credit
//!
//! A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod augmentation;
mod batcher;
mod cifar;
mod error;
mod image;
mod labels;
mod layout;
mod read;

pub use augmentation::CifarAugmentation;
pub use batcher::{CifarBatch, CifarBatcher};
pub use cifar::Cifar;
pub use error::CifarError;
pub use image::CifarImage;
pub use labels::CifarLabels;

/// The shape of one image for a model: channels, height, width.
pub const SHAPE: [usize; 3] = [CHANNELS, SIDE, SIDE];

/// Red, green, blue.
const CHANNELS: usize = 3;

/// Rows and columns of an image.
const SIDE: usize = 32;

/// Bytes of an image.
const PIXELS: usize = CHANNELS * SIDE * SIDE;
