//! Maps the tensor names of timm to ours.

use burn::store::KeyRemapper;

use super::config::{Pool, VitConfig};

/// timm's names of the parts of a block, and ours.
const PARTS: [(&str, &str); 6] = [
    ("norm1", "norm_attention"),
    (r"attn\.qkv", "attention.qkv"),
    (r"attn\.proj", "attention.output"),
    ("norm2", "norm_mlp"),
    (r"mlp\.fc1", "mlp.inner"),
    (r"mlp\.fc2", "mlp.outer"),
];

impl VitConfig {
    /// Renames the tensors of timm's `VisionTransformer` to those of the layers from
    /// [`init`](Self::init).
    ///
    /// | timm | here, without the names of enum variants |
    /// |---|---|
    /// | `cls_token`, `[1, 1, d]` | `0.class_token`, `[d]` |
    /// | `pos_embed`, `[1, tokens, d]` | `0.positions`, `[tokens, d]` |
    /// | `patch_embed.proj.weight`, `[d, channels, patch, patch]` | `0.patches.weight`, `[channels · patch², d]` |
    /// | `patch_embed.proj.bias` | `0.patches.bias` |
    /// | `blocks.{i}.norm1.weight`, `….bias` | `{i + 1}.norm_attention.gamma`, `….beta` |
    /// | `blocks.{i}.attn.qkv`: queries, keys and values next to each other | `{i + 1}.attention.qkv` |
    /// | `blocks.{i}.attn.proj` | `{i + 1}.attention.output` |
    /// | `blocks.{i}.norm2.weight`, `….bias` | `{i + 1}.norm_mlp.gamma`, `….beta` |
    /// | `blocks.{i}.mlp.fc1`, `blocks.{i}.mlp.fc2` | `{i + 1}.mlp.inner`, `{i + 1}.mlp.outer` |
    /// | `norm`, or `fc_norm` for [`Pool::Mean`] | `{layers + 1}.norm` |
    /// | `head` | `{layers + 1}.classes` |
    ///
    /// Linear weights are transposed: `[out, in]` there, `[in, out]` here. `stovepipe_train::Weights`
    /// transposes and flattens tensors, and renames the parameters of norms. It refuses files with other
    /// tensors: a norm before the blocks, layer scales, registers, norms of queries and keys. Names that
    /// are not timm's stay as they are.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_train::Weights;
    /// use stovepipe_transformer::VitConfig;
    ///
    /// let config = VitConfig::new(12, 4, 2, 24, 3, 5);
    /// let layers = config.init(&Device::flex())?;
    /// let mut pipeline = Pipeline::builder(layers).devices(vec![Device::flex(); 2]).build()?;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/timm_class_token.safetensors");
    /// let weights = Weights::open(path)?.renamed(&config.timm_keys())?;
    /// weights.load_into(&mut pipeline)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "the patterns hold only names and numbers"
    )]
    pub fn timm_keys(&self) -> KeyRemapper {
        let (last, norm) = (self.layers + 1, self.norm());
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
        let blocks = (0..self.layers)
            .map(|block| (format!(r"^blocks\.{block}\."), format!("{}.", block + 1)));
        let patterns = ends.into_iter().chain(parts).chain(blocks).collect();
        KeyRemapper::from_patterns(patterns).expect("valid patterns")
    }

    /// Gives tensors the names and shapes of timm's `VisionTransformer`, the way back from
    /// [`timm_keys`](Self::timm_keys). They have the names of a pipeline, `layers.3.…`, and PyTorch's
    /// layout; other names stay. `stovepipe_train::weights::save_for_pytorch` writes them.
    pub fn to_timm(&self, tensors: &mut [(String, Vec<usize>)]) {
        for (name, shape) in tensors {
            let layer = name
                .strip_prefix("layers.")
                .and_then(|name| name.split_once('.'));
            let Some((Ok(layer), rest)) = layer.map(|(layer, rest)| (layer.parse(), rest)) else {
                continue;
            };
            *name = match (layer, rest) {
                (0, "class_token") => {
                    shape.splice(..0, [1, 1]);
                    "cls_token".to_owned()
                }
                (0, "positions") => {
                    shape.insert(0, 1);
                    "pos_embed".to_owned()
                }
                (0, "patches.weight") => {
                    *shape = vec![self.d_model, self.channels, self.patch, self.patch];
                    "patch_embed.proj.weight".to_owned()
                }
                (0, _) => rest.replace("patches.", "patch_embed.proj."),
                (layer, _) if layer == self.layers + 1 => {
                    let norm = format!("{}.", self.norm());
                    rest.replace("norm.", &norm).replace("classes.", "head.")
                }
                (layer, _) => {
                    let mut rest = rest.to_owned();
                    for (theirs, ours) in PARTS {
                        rest = rest.replace(
                            &format!("{ours}."),
                            &format!("{}.", theirs.replace('\\', "")),
                        );
                    }
                    format!("blocks.{}.{rest}", layer - 1)
                }
            };
        }
    }

    fn norm(&self) -> &'static str {
        match self.pool {
            Pool::ClassToken => "norm",
            Pool::Mean => "fc_norm",
        }
    }
}
