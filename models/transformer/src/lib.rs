//! Transformers as lists of pipeline layers.
//!
//! Two models share the same blocks: layer norm and attention in several heads, then layer norm and a
//! GELU network of two linear layers, each with a residual (Vaswani et al., "Attention Is All You Need",
//! 2017; Xiong et al., "On Layer Normalization in the Transformer Architecture", 2020). A block equals
//! PyTorch's `TransformerEncoderLayer(norm_first=True, activation="gelu")`.
//!
//! - [`LmConfig`] makes a language model: from tokens to logits of the next ones. Its
//!   [`transformer_l`](LmConfig::transformer_l) is the one of Huang et al., "GPipe: Efficient Training of
//!   Giant Neural Networks using Pipeline Parallelism" (2019). [`continue_text`] generates text.
//! - [`VitConfig`] makes a vision transformer: from images to logits of classes (Dosovitskiy et al., "An
//!   Image is Worth 16x16 Words", 2021).
//!
//! Parameters are allocated on first use. A pipeline can replay all dropout, inside attention too.
//!
//! ```
//! use burn::tensor::{Device, Int, Tensor};
//! use stovepipe_pipeline::{KeyedRng, run_plain};
//! use stovepipe_transformer::{LmConfig, VitConfig};
//!
//! let device = Device::flex();
//! let model = LmConfig::new(50, 16, 2, 32, 4).init(&device)?;
//! assert_eq!(model.len(), 2 + 2); // an embedding, two blocks and a softmax over words
//! let tokens = Tensor::<2, Int>::from_ints([[4, 8, 15], [16, 23, 42]], &device);
//! let logits = run_plain(&model, tokens, &(), |_| KeyedRng::none())?.output;
//! assert_eq!(logits.dims(), [2, 3, 50]);
//!
//! let model = VitConfig::new(32, 8, 2, 32, 4, 10).init(&device)?;
//! let images = Tensor::zeros([2, 3, 32, 32], &device);
//! let logits = run_plain(&model, images, &(), |_| KeyedRng::none())?.output;
//! assert_eq!(logits.dims(), [2, 10]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attention;
mod block;
mod block_config;
mod error;
mod initial;
mod language;
mod mlp;
mod vision;

pub use attention::SelfAttention;
pub use block::Block;
pub use block_config::BlockConfig;
pub use error::TransformerError;
pub use language::{
    GenerationError, LmConfig, LmFlow, LmHead, LmLayer, Positions, Sampling, TokenEmbedding,
    continue_text, continue_text_with, continue_tokens,
};
pub use mlp::Mlp;
pub use vision::{PatchEmbedding, Pool, VitConfig, VitFlow, VitHead, VitLayer};
