//! Pretrained decoders as lists of pipeline layers: Llama, Mistral, Qwen 2 and Qwen 3, as the Hugging Face
//! Hub has them, and adapters to fine-tune them.
//!
//! - [`DecoderConfig`] reads a folder's `config.json`, and makes the layers.
//! - [`LoraConfig`] freezes them and adds adapters, in PEFT's layout.
//! - [`DecoderConfig::hub_keys`], [`hub_name`](DecoderConfig::hub_name) and
//!   [`peft_name`](DecoderConfig::peft_name) are the names of tensors there and here.
//!
//! The weights of linear layers lie as in PyTorch's files, `[out, in]`. A batch of sequences of unequal
//! lengths is padded at its end: attention is causal, so no token sees what comes after it. Give padding no
//! target.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod attention;
mod block;
mod config;
mod ends;
mod error;
mod hub;
mod layer;
mod linear;
mod logits;
mod lora;
mod mlp;
mod names;
mod norm;

pub use attention::DecoderAttention;
pub use block::DecoderBlock;
pub use config::{DecoderConfig, Family, RopeScaling};
pub use ends::{DecoderEmbedding, DecoderHead};
pub use error::DecoderError;
pub use layer::{DecoderFlow, DecoderLayer};
pub use linear::DecoderLinear;
pub use logits::Logits;
pub use lora::{LoraConfig, Targets};
pub use mlp::DecoderMlp;
pub use norm::DecoderNorm;
