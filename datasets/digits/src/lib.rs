//! Handwritten digits as a Burn dataset, embedded in the program.
//!
//! [`Digits`] is one split of 1,797 real scans of 8×8 pixels. [`DigitBatcher`] makes normalised batches
//! `[n, 3, 32, 32]` of them. The data set is small enough to train on a CPU.
//!
//! ```
//! use burn::data::dataloader::DataLoaderBuilder;
//! use stovepipe_digits::{DigitBatcher, Digits, SHAPE};
//!
//! let loader = DataLoaderBuilder::new(DigitBatcher).batch_size(64).shuffle(7).build(Digits::train()?);
//! for batch in loader.iter().take(2) {
//!     let (images, labels) = batch?;
//!     assert_eq!(images.dims(), [64, SHAPE[0], SHAPE[1], SHAPE[2]]);
//!     assert_eq!(labels.dims(), [64]);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Credit and licence of the data
//!
//! E. Alpaydin and C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI Machine Learning Repository, 1998,
//! <https://doi.org/10.24432/C50P49>, licensed under [CC BY 4.0](https://creativecommons.org/licenses/by/4.0/). The
//! rows are those that scikit-learn ships as `load_digits`, written by 13 people.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod archive;
mod batcher;
mod digit;
mod digits;
mod error;

pub use batcher::{DigitBatch, DigitBatcher, MEAN, STD};
pub use digit::Digit;
pub use digits::Digits;
pub use error::DigitsError;

/// The number of classes. A digit is its own class index.
pub const CLASSES: usize = 10;

/// The shape of one image for a model: channels, height, width.
pub const SHAPE: [usize; 3] = [3, 32, 32];
