//! Maps the tensor names of PyTorch to ours.

use burn::store::KeyRemapper;

use crate::config::UNetConfig;

impl UNetConfig {
    /// Renames the tensors of a PyTorch U-Net with torchgpipe's names, all of them weights of
    /// convolutions, to those of the layers from [`init`](Self::init).
    ///
    /// | PyTorch | here, without the names of enum variants |
    /// |---|---|
    /// | `encoder_{l}_encode_{i}_conv` | `{(B + 1) l + i}.conv` |
    /// | `bottleneck_0_{i}_conv` | `{(B + 1) depth + i}.conv` |
    /// | `decoder_{k}_decode_{i}_conv`, k counted from the bottom | `{(B + 1) (depth + k + 1) + i}.conv` |
    /// | `segment` | the last layer's `conv` |
    ///
    /// Use it with a store of Burn's and the adapter for PyTorch:
    ///
    /// ```
    /// use burn::{
    ///     store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore},
    ///     tensor::Device,
    /// };
    /// use stovepipe_unet::UNetConfig;
    ///
    /// let config = UNetConfig::new(2, 5).with_depth(3);
    /// let mut layers = config.init(&Device::flex())?;
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/unet_b2_c5_d3.safetensors");
    /// let mut store = SafetensorsStore::from_file(path)
    ///     .with_from_adapter(PyTorchToBurnAdapter)
    ///     .skip_enum_variants(true)
    ///     .remap(config.torch_keys())
    ///     .with_key_remapping("^weights/", ""); // the prefix in this file
    /// let loaded = layers.load_from(&mut store)?;
    /// assert_eq!((loaded.applied.len(), loaded.missing.len()), (15, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "the patterns hold only names and numbers"
    )]
    pub fn torch_keys(&self) -> KeyRemapper {
        let places = names(self).into_iter().enumerate();
        let patterns = places.filter_map(|(index, name)| {
            let pattern = format!(r"\b{}\.", name?);
            Some((pattern, format!("{index}.conv.")))
        });
        KeyRemapper::from_patterns(patterns.collect()).expect("valid patterns")
    }
}

/// PyTorch's name of each layer's convolution, if it has one.
fn names(config: &UNetConfig) -> Vec<Option<String>> {
    let convolutions = |level: String| {
        (0..config.convolutions).map(move |place| Some(format!("{level}_{place}_conv")))
    };
    let mut names = Vec::new();
    for level in 0..config.depth {
        names.extend(convolutions(format!("encoder_{level}_encode")));
        names.push(None);
    }
    names.extend(convolutions("bottleneck_0".to_owned()));
    for place in 0..config.depth {
        names.push(None);
        names.extend(convolutions(format!("decoder_{place}_decode")));
    }
    names.push(Some("segment".to_owned()));
    names
}
