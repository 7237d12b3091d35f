//! The vision transformer.

mod config;
mod head;
mod layer;
mod patches;
mod resize;
mod timm;

pub use config::{Pool, VitConfig};
pub use head::VitHead;
pub use layer::{VitFlow, VitLayer};
pub use patches::PatchEmbedding;

/// ε of timm's layer norms.
const EPSILON: f64 = 1e-6;
