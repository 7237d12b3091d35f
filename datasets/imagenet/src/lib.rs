//! Folders of images as Burn batches: ImageNet, and any folder that has a folder for each class.
//!
//! [`ImageSets`] finds the images of a data set in the common layouts, [`ImageFolder`] those of one split. Both are
//! indices of names, cached in a file so that a million files are listed once. [`Images`] loads them: worker threads
//! decode, augment and batch ahead of training. The order of batches and all random numbers depend on the seed, not on
//! the number of workers.
//!
//! ```text
//! imagenet/train/n01440764/n01440764_10026.JPEG         a folder for each class
//! imagenet/val/n01440764/ILSVRC2012_val_00000293.JPEG   the same, or
//! imagenet/val/ILSVRC2012_val_00000293.JPEG             a flat folder and
//! imagenet/val.txt                                      a label file
//!
//! pets/Abyssinian/Abyssinian_1.jpg                      only class folders: a fifth is held out
//! ```
//!
//! Data sets that are published as one flat folder with annotations, such as Pets, Cars or Aircraft, must be sorted into
//! class folders first.
//!
//! ```
//! # mod folder { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/folder/mod.rs")); } use folder::*;
//! # let data = tempfile::tempdir()?;
//! # for image in 0..20 { write(data.path(), &[(&*format!("{}/{image}.jpg", ["cat", "dog"][image % 2]), &jpeg(50, 40, image as u8))]); }
//! # let pets = data.path();
//! # let cache = IndexCache::Off;
//! use burn::tensor::Device;
//! use stovepipe_imagenet::{FolderSettings, ImageSets, Images, IndexCache, Loading};
//!
//! let sets = ImageSets::open(pets, &FolderSettings { cache, ..FolderSettings::default() })?;
//! assert_eq!((sets.train.len(), sets.validation.len(), sets.held_out), (16, 4, Some(0.2)));
//! let train = Images::new(sets.train, Loading::default())?;
//! let (seed, epoch) = (7, 0);
//! let order = (0..train.len()).rev().collect(); // any order
//! for batch in train.train_batches(order, 8, seed, epoch) {
//!     let (images, labels) = batch?.into_classes(&Device::default());
//!     assert_eq!(images.dims(), [8, 3, 224, 224]);
//!     assert_eq!(labels.dims(), [8]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Credit
//!
//! O. Russakovsky et al., *ImageNet Large Scale Visual Recognition Challenge*, 2015. Random resized crops, flips, colour
//! jitter, RandAugment and evaluation crops equal torchvision's transforms of these names on Pillow images; tests compare
//! them.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod augment;
mod batch;
mod batches;
mod decode;
mod error;
#[cfg(test)]
mod golden;
mod images;
mod index;
mod loading;
mod pool;
mod raster;
mod resize;
mod rng;
mod sample;
mod skipped;

pub use augment::{Augmentation, ColorJitter, RandAugment, RandomResizedCrop};
pub use batch::ImageBatch;
pub use batches::ImageBatches;
pub use decode::Decoding;
pub use error::{ImageError, ImagenetError};
pub use images::Images;
pub use index::{FolderSettings, ImageFolder, ImageSets, IndexCache, images_in};
pub use loading::{EvalTransform, Loading, Normalisation};
pub use resize::Interpolation;
pub use skipped::SkippedFile;
