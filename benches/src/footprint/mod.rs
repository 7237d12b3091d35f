//! The largest network that trains within a memory budget: Table 1 of the GPipe paper.
//!
//! ```text
//! case       a network and its training
//! published  the papers' results
//! predicted  predictions of the memory model, for any width and batch
//! trial      one training in its own process, with every byte counted
//! largest    the search for the widest network that trains
//! picture    bars next to each other
//! ```

pub mod case;
pub mod largest;
pub mod picture;
pub mod predicted;
pub mod published;
pub mod trial;

/// Bytes in a GB, as the papers count.
pub const GB: f64 = 1e9;
