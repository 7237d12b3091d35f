//! Tests of conversations.
#![allow(clippy::expect_used, clippy::unwrap_used, missing_docs)]

mod batches;
mod folder;
mod folders;
mod golden;
mod hostile;
mod masks;
mod reading;
mod seeds;
mod templates;
