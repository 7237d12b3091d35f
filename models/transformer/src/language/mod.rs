//! The language model.

mod config;
mod embedding;
mod head;
mod layer;
mod positions;
mod text;

pub use config::LmConfig;
pub use embedding::TokenEmbedding;
pub use head::LmHead;
pub use layer::{LmFlow, LmLayer};
pub use positions::Positions;
pub use text::{GenerationError, Sampling, continue_text, continue_text_with, continue_tokens};
