//! Random numbers that can be drawn again: each is a function of a key and its place.

mod bits;
mod draw;
mod mask;
mod numbers;
mod threefry;

pub(crate) use bits::Bits;
pub use draw::Draw;
pub use mask::Mask;
pub use threefry::{Key, words};
