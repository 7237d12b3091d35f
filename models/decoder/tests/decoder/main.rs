//! Decoders and adapters next to `transformers` and `peft`.
#![allow(clippy::unwrap_used, missing_docs)]

mod adapters;
mod bad_input;
mod common;
mod folders;
mod golden;
mod hostile;
mod memory;
