//! How large a network trains within a budget of memory: Table 1 of the GPipe paper.
//!
//! ```text
//! case       a network, and how it is trained
//! published  what the papers say
//! predicted   what the memory model says, of any width and batch
//! trial      one training in a process of its own, every byte counted
//! largest    the search for the widest network that trains
//! picture    bars next to each other
//! ```

pub mod case;
pub mod largest;
pub mod picture;
pub mod predicted;
pub mod published;
pub mod trial;

/// Bytes in a GB, as the papers and the makers of memory count.
pub const GB: f64 = 1e9;
