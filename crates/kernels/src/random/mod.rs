//! Random numbers that can be drawn again: each is a function of a key and its place.

mod mask;
mod numbers;
mod threefry;

pub(crate) use mask::Bits;
pub use mask::Mask;
pub use numbers::Draw;
pub use threefry::{Key, words};
