//! Text as Burn batches for language models: bytes or tokens, cut into windows, with a text embedded in the program.
//!
//! [`Text`] is a file, a folder, or the embedded one; a [`Tokenizer`] makes tokens of it, bytes or those of a Hugging Face
//! `tokenizer.json`; [`Split`] holds the last of them out and cuts both parts into [`Windows`], which a [`TextBatcher`] shows to a
//! model as inputs and targets `[n, length]`. [`NGram`] is the yardstick: the perplexity that counting gets to on the same
//! held-out tokens.
//!
//! ```
//! use burn::data::dataloader::DataLoaderBuilder;
//! use stovepipe_text::{NGram, Split, SplitSettings, Text, TextBatcher, Tokenizer};
//!
//! let tokenizer = Tokenizer::bytes();
//! let tokens = Text::embedded()?.encode(&tokenizer)?;
//! let split = Split::new(tokens, &SplitSettings::default())?;
//!
//! let (seed, epoch) = (7, 0);
//! let batcher = TextBatcher::shifted(seed, epoch);
//! let loader = DataLoaderBuilder::new(batcher).batch_size(32).shuffle(seed).build(split.training.clone());
//! let (inputs, targets) = loader.iter().next().ok_or("no batch")??;
//! assert_eq!((inputs.dims(), targets.dims()), ([32, 128], [32, 128]));
//!
//! let five_gram = NGram::fit(split.training.tokens(), tokenizer.vocabulary(), 5)?;
//! assert!(five_gram.perplexity(split.held_out.tokens()) < 3.5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Credit
//!
//! The embedded text is Genesis to Deuteronomy of *The Holy Bible*, American Standard Version, New York: Thomas Nelson & Sons,
//! 1901, which is in the public domain: 844,450 bytes, a line for each of its 5,852 verses. The transcription is that of
//! [scrollmapper/bible_databases](https://github.com/scrollmapper/bible_databases), without its marks for italics.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod batcher;
mod error;
mod ngram;
mod pieces;
mod split;
mod text;
mod tokenizer;
mod windows;

pub use batcher::{TextBatch, TextBatcher};
pub use error::TextError;
pub use ngram::NGram;
pub use split::{Split, SplitSettings};
pub use text::Text;
pub use tokenizer::Tokenizer;
pub use windows::{PADDING, Window, Windows};
