//! How the weights of timm's models find their places.

use burn::store::KeyRemapper;

use super::config::{Pool, VitConfig};

/// What timm calls the parts of a block, and what they are called here.
const PARTS: [(&str, &str); 6] = [
    ("norm1", "norm_attention"),
    (r"attn\.qkv", "attention.qkv"),
    (r"attn\.proj", "attention.output"),
    ("norm2", "norm_mlp"),
    (r"mlp\.fc1", "mlp.inner"),
    (r"mlp\.fc2", "mlp.outer"),
];

/// Renames the tensors of timm's `VisionTransformer` to those of the list of layers here.
#[expect(
    clippy::expect_used,
    reason = "the patterns hold only names and numbers"
)]
pub(super) fn keys(config: &VitConfig) -> KeyRemapper {
    let last = config.layers + 1;
    let norm = match config.pool {
        Pool::ClassToken => "norm",
        Pool::Mean => "fc_norm",
    };
    let ends = [
        ("^cls_token$".to_owned(), "0.class_token".to_owned()),
        ("^pos_embed$".to_owned(), "0.positions".to_owned()),
        (r"^patch_embed\.proj\.".to_owned(), "0.patches.".to_owned()),
        (format!(r"^{norm}\."), format!("{last}.norm.")),
        (r"^head\.".to_owned(), format!("{last}.classes.")),
    ];
    let parts = PARTS.into_iter().map(|(theirs, ours)| {
        let pattern = format!(r"^blocks\.(\d+)\.{theirs}\.(weight|bias)$");
        (pattern, format!("blocks.${{1}}.{ours}.${{2}}"))
    });
    // Block i is layer i + 1.
    let blocks =
        (0..config.layers).map(|block| (format!(r"^blocks\.{block}\."), format!("{}.", block + 1)));
    let patterns = ends.into_iter().chain(parts).chain(blocks).collect();
    KeyRemapper::from_patterns(patterns).expect("valid patterns")
}
