//! Tests of text data sets.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

mod files;
mod n_gram;
mod pieces;
mod seeds;
mod tokenizers;
mod windows;
