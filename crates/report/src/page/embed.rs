//! Pictures as addresses that hold them.

use base64::{Engine, engine::general_purpose::STANDARD};

/// A `data:` address.
pub(super) fn data(media_type: &str, bytes: &[u8]) -> String {
    format!("data:{media_type};base64,{}", STANDARD.encode(bytes))
}
