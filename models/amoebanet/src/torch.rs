//! How weights trained with PyTorch find their places.

use burn::store::KeyRemapper;

use crate::config::AmoebaNetDConfig;

impl AmoebaNetDConfig {
    /// Renames the tensors of a PyTorch AmoebaNet-D, as torchgpipe calls them, to those of the list
    /// of layers that [`init`](Self::init) makes.
    ///
    /// | PyTorch | here, without the names of enum variants |
    /// |---|---|
    /// | `stem1`, `stem2`, `stem3` | `0`, `1`, `2` |
    /// | `cell1_normal{i}`, `cell2_reduction`, … `cell5_normal{i}` | `3`, … `L + 4` |
    /// | `classify` | `L + 5` |
    /// | `operations.{n}.module.{3k + 1}`, `….{3k + 2}` | `operations.{n}.{k}.conv`, `….{k}.bn` |
    /// | `reduce1.1`, `reduce1.2` | `reduce1.0.conv`, `reduce1.0.bn` |
    ///
    /// Give it to a store of Burn's with the adapter for PyTorch:
    ///
    /// ```
    /// use burn::{
    ///     store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore},
    ///     tensor::Device,
    /// };
    /// use stovepipe_amoebanet::AmoebaNetDConfig;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = AmoebaNetDConfig::new(3, 16, 10);
    /// let mut layers = config.init(&Device::flex())?;
    /// # const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    /// # let path = format!("{FIXTURES}/amoebanet_d_l3_d16.safetensors");
    /// let mut store = SafetensorsStore::from_file(path)
    ///     .with_from_adapter(PyTorchToBurnAdapter)
    ///     .skip_enum_variants(true)
    ///     .remap(config.torch_keys())
    ///     .with_key_remapping("^weights/", ""); // where this file keeps them
    /// let loaded = layers.load_from(&mut store)?;
    /// assert_eq!((loaded.applied.len(), loaded.missing.len()), (406, 0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    #[expect(
        clippy::expect_used,
        reason = "the patterns hold only names and numbers"
    )]
    pub fn torch_keys(&self) -> KeyRemapper {
        let layers = self.torch_layers().into_iter().enumerate();
        let layers = layers.map(|(index, name)| (format!(r"\b{name}\."), format!("{index}.")));
        let places = [(r"\.module\.".to_owned(), ".".to_owned())].into_iter();
        let patterns = layers.chain(places).chain(units()).collect();
        KeyRemapper::from_patterns(patterns).expect("valid patterns")
    }

    /// What PyTorch calls each layer.
    fn torch_layers(&self) -> Vec<String> {
        let mut names: Vec<String> = (1..=3).map(|i| format!("stem{i}")).collect();
        for group in [1, 3, 5] {
            if group > 1 {
                names.push(format!("cell{}_reduction", group - 1));
            }
            names.extend((1..=self.layers / 3).map(|i| format!("cell{group}_normal{i}")));
        }
        names.push("classify".to_owned());
        names
    }
}

/// In PyTorch a chain is a flat list of ReLU, convolution, batch norm, ReLU, …: unit k has its
/// convolution at 3k + 1 and its batch norm at 3k + 2.
fn units() -> impl Iterator<Item = (String, String)> {
    const LONGEST_CHAIN: usize = 4;
    (0..LONGEST_CHAIN).flat_map(|unit| {
        [(3 * unit + 1, "conv"), (3 * unit + 2, "bn")].map(|(place, part)| {
            (
                format!(r"\.(operations\.\d+|reduce[12])\.{place}\.(\w+)$"),
                format!(".${{1}}.{unit}.{part}.${{2}}"),
            )
        })
    })
}
