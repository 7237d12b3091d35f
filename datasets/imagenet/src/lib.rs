//! Folders of images as Burn batches: ImageNet, and any folder that has a folder for each class.
//!
//! [`ImageSets`] finds the images of a data set in the layouts that people have, [`ImageFolder`] those of one split; both are
//! indices of names, kept in a file so that a million files are listed once. [`Images`] loads them: a pool of workers
//! decodes, augments and batches ahead of training. The order of the batches and every random draw are fixed by the seed,
//! whatever the number of workers. The data are no part of this crate.
//!
//! ```text
//! imagenet/train/n01440764/n01440764_10026.JPEG      a folder for each class
//! imagenet/val/n01440764/ILSVRC2012_val_00000293.JPEG   likewise, or
//! imagenet/val/ILSVRC2012_val_00000293.JPEG             a flat folder and
//! imagenet/val.txt                                      a file of labels
//!
//! pets/Abyssinian/Abyssinian_1.jpg                   class folders alone: a fifth is held out
//! ```
//!
//! Pets, Cars, Aircraft and others that are published as one flat folder with annotations must be put into class folders first.
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
//! let train = Images::new(sets.train, Loading::default())?;
//! let (seed, epoch) = (7, 0);
//! let order = (0..train.len()).rev().collect(); // as shuffled as you like
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
//! jitter, RandAugment and evaluation crops do what torchvision's transforms of these names do on Pillow images; tests hold them
//! next to each other.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod augment;
mod batch;
mod batches;
mod decode;
mod draws;
mod error;
#[cfg(test)]
mod golden;
mod images;
mod index;
mod loading;
mod pool;
mod raster;
mod resize;
mod sample;
mod skipped;

pub use augment::{Augmentation, ColorJitter, RandAugment, RandomResizedCrop};
pub use batch::ImageBatch;
pub use batches::Batches;
pub use decode::Decoding;
pub use error::ImagenetError;
pub use images::Images;
pub use index::{FolderSettings, ImageFolder, ImageSets, IndexCache};
pub use loading::{Evaluation, Loading, Normalisation};
pub use resize::Interpolation;
pub use skipped::SkippedFile;

/// What a panic said.
fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("a panic without a message")
}
