//! Text as Burn batches for language models: bytes or tokens, cut into windows, with a text embedded in the program.
//!
//! 1. [`Text`] is the text of a file, of a folder, or the embedded one.
//! 2. [`Tokenizer`] encodes it as bytes or as tokens of a Hugging Face `tokenizer.json`.
//! 3. [`Split`] holds out the last tokens and cuts both parts into [`TokenWindows`].
//! 4. [`TextBatcher`] makes batches of inputs and targets `[n, length]`.
//!
//! [`NGram`] is a baseline: the perplexity of an n-gram model on the same held-out tokens.
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
//! let loader = DataLoaderBuilder::new(batcher).batch_size(32).shuffle(seed);
//! let loader = loader.build(split.training.clone());
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
//! 1901, which is in the public domain: 844,450 bytes, one line for each of 5,852 verses. The transcription is from
//! [scrollmapper/bible_databases](https://github.com/scrollmapper/bible_databases), without its marks for italics.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used))]

mod batcher;
mod error;
mod ngram;
mod pieces;
mod split;
mod stream;
mod text;
mod tokenizer;
mod windows;

pub use batcher::{TextBatch, TextBatcher};
pub use error::TextError;
pub use ngram::NGram;
pub use split::{Split, SplitSettings};
pub use stream::TextStream;
pub use text::Text;
pub use tokenizer::Tokenizer;
pub use windows::{PADDING, TokenWindow, TokenWindows};
