//! The numbers that a user chooses.

use burn::{config::Config, store::KeyRemapper, tensor::Device};

use crate::{
    family::{AMOEBANET_B, AMOEBANET_D},
    layer::AmoebaLayer,
    network::Network,
    torch,
};

/// How AmoebaNet begins.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Stem {
    /// For images of 224×224 and more: a convolution of stride 2 and two reduction cells shrink
    /// the map to an eighth.
    ImageNet,
    /// For images of 32×32: a convolution of stride 1, a normal cell and a reduction cell, as wide
    /// as those of the large stem, shrink the map to a half.
    Small,
}

/// There is no such AmoebaNet.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AmoebaNetError {
    /// The normal cells stand in three groups of one size.
    #[error("the number of normal cells must be a multiple of 3 from 3 to 3000, not {0}")]
    Layers(usize),
    /// The stem has a quarter of the filters.
    #[error("the number of filters must be a multiple of 4 from 4 to 65536, not {0}")]
    Filters(usize),
    /// There is nothing to tell apart.
    #[error("there must be at least one class")]
    Classes,
    /// Everything would be dropped.
    #[error("the probability of drop-path must be at least 0 and less than 1, not {0}")]
    DropPath(f64),
}

/// AmoebaNet-D(L, D): L normal cells of D filters.
///
/// Counts of parameters, for 1000 classes: (18, 208) 81.5M, (18, 416) 319M, (18, 544) 543M,
/// (36, 544) 1.06B, (72, 512) 1.84B.
#[derive(Config, Debug, PartialEq)]
pub struct AmoebaNetDConfig {
    /// L, the number of normal cells: a multiple of three. The model has six more layers.
    pub layers: usize,
    /// D, the channels of a state in the first normal cells: a multiple of four.
    pub filters: usize,
    /// The number of classes.
    pub classes: usize,
    /// How the network begins.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
    /// Whether a second classifier, at two thirds of the depth, takes part in training.
    #[config(default = false)]
    pub auxiliary: bool,
    /// The probability with which training drops an operation of the last cell, and drops it by itself
    /// for each sample (Zoph et al., "Learning Transferable Architectures for Scalable Image
    /// Recognition", 2018). It grows with depth: for cell i of n, from 0, it is (i + 1) / n of this; and over
    /// the training, if the pipeline is [told](stovepipe_pipeline::Pipeline::set_progress) how far that is.
    /// An identity is never dropped.
    #[config(default = 0.0)]
    pub drop_path: f64,
}

impl AmoebaNetDConfig {
    /// Makes the layers, L + 6 of them; each parameter is allocated on `device` when it is first
    /// used.
    ///
    /// # Errors
    ///
    /// [`AmoebaNetError`] if L is no multiple of 3 from 3 to 3000, D no multiple of 4 from 4 to
    /// 65536, there is no class, or the probability of drop-path is not at least 0 and less than 1.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_amoebanet::{AmoebaNetDConfig, AmoebaNetError};
    /// use stovepipe_pipeline::count_parameters;
    ///
    /// let layers = AmoebaNetDConfig::new(72, 512, 1000).init(&Device::flex())?;
    /// assert_eq!(layers.len(), 78);
    /// assert_eq!(count_parameters(&layers), 1_844_858_344); // none allocated yet
    ///
    /// let error = AmoebaNetDConfig::new(4, 512, 1000).init(&Device::flex()).unwrap_err();
    /// assert_eq!(error, AmoebaNetError::Layers(4));
    /// # Ok::<(), AmoebaNetError>(())
    /// ```
    pub fn init(&self, device: &Device) -> Result<Vec<AmoebaLayer>, AmoebaNetError> {
        self.network().init(device)
    }

    /// Renames the tensors of a PyTorch AmoebaNet-D, as torchgpipe calls them, to those of the list
    /// of layers that [`init`](Self::init) makes.
    ///
    /// | PyTorch | here, without the names of enum variants |
    /// |---|---|
    /// | `stem1`, `stem2`, `stem3` | `0`, `1`, `2` |
    /// | `cell1_normal{i}`, `cell2_reduction`, … `cell5_normal{i}` | `3`, … `L + 4` |
    /// | `classify.fc` | `{L + 5}.fc` |
    /// | `operations.{n}.module.{3k + 1}`, `….{3k + 2}` | `operations.{n}.{k}.conv`, `….{k}.bn` |
    /// | `reduce1.1`, `reduce1.2` | `reduce1.0.conv`, `reduce1.0.bn` |
    /// | `weight`, `bias` of a batch norm | `gamma`, `beta` |
    /// | `num_batches_tracked` of a batch norm | |
    /// | `partitions.{stage}.` before all of these, as torchgpipe's pipeline has it | |
    ///
    /// The weight of `classify.fc` is turned: `[classes, channels]` there, `[channels, classes]` here.
    /// `stovepipe_train::Weights` sees to that and to the batch norms; names that are not torchgpipe's stay as they are:
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_amoebanet::AmoebaNetDConfig;
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_train::Weights;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = AmoebaNetDConfig::new(3, 16, 10);
    /// let layers = config.init(&Device::flex())?;
    /// let mut pipeline = Pipeline::builder(layers).devices(vec![Device::flex(); 2]).build()?;
    /// # const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    /// # let path = format!("{FIXTURES}/amoebanet_d_l3_d16.pt");
    /// let weights = Weights::open(path)?.renamed(&config.torch_keys())?;
    /// assert_eq!(weights.shape(&format!("{}.bias", config.classifier())), Some(&[10][..]));
    /// weights.load_into(&mut pipeline)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// On a single device, give it to a store of Burn's with the adapter for PyTorch:
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
    pub fn torch_keys(&self) -> KeyRemapper {
        torch::keys(self.layers)
    }

    /// What the names of the classifier's tensors in a pipeline begin with: its bias, `….bias`, has as many
    /// numbers as there are classes, and without these tensors weights for other classes can be loaded. An
    /// auxiliary classifier has its own.
    ///
    /// ```
    /// let config = stovepipe_amoebanet::AmoebaNetDConfig::new(18, 208, 10);
    /// assert_eq!(config.classifier(), "layers.23.fc");
    /// ```
    #[must_use]
    pub fn classifier(&self) -> String {
        format!("layers.{}.fc", self.layers + 5)
    }

    fn network(&self) -> Network {
        Network {
            family: &AMOEBANET_D,
            layers: self.layers,
            filters: self.filters,
            classes: self.classes,
            stem: self.stem,
            auxiliary: self.auxiliary,
            drop_path: self.drop_path,
        }
    }
}

/// AmoebaNet-B(L, D): L normal cells of D filters, with separable convolutions.
///
/// It differs from AmoebaNet-D in its cells, and in that the two cells of its stem are half as wide,
/// as the reference implementation has them: so (18, 512) has the 557M parameters of the GPipe
/// paper, for 1000 classes.
#[derive(Config, Debug, PartialEq)]
pub struct AmoebaNetBConfig {
    /// L, the number of normal cells: a multiple of three. The model has six more layers.
    pub layers: usize,
    /// D, the channels of a state in the first normal cells: a multiple of four.
    pub filters: usize,
    /// The number of classes.
    pub classes: usize,
    /// How the network begins.
    #[config(default = "Stem::ImageNet")]
    pub stem: Stem,
    /// Whether a second classifier, at two thirds of the depth, takes part in training.
    #[config(default = false)]
    pub auxiliary: bool,
    /// The probability with which training drops an operation of the last cell, and drops it by itself
    /// for each sample (Zoph et al., "Learning Transferable Architectures for Scalable Image
    /// Recognition", 2018). It grows with depth: for cell i of n, from 0, it is (i + 1) / n of this; and over
    /// the training, if the pipeline is [told](stovepipe_pipeline::Pipeline::set_progress) how far that is.
    /// An identity is never dropped.
    #[config(default = 0.0)]
    pub drop_path: f64,
}

impl AmoebaNetBConfig {
    /// Makes the layers, L + 6 of them; each parameter is allocated on `device` when it is first
    /// used.
    ///
    /// # Errors
    ///
    /// [`AmoebaNetError`] if L is no multiple of 3 from 3 to 3000, D no multiple of 4 from 4 to
    /// 65536, there is no class, or the probability of drop-path is not at least 0 and less than 1.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_amoebanet::{AmoebaNetBConfig, AmoebaNetError};
    /// use stovepipe_pipeline::count_parameters;
    ///
    /// let layers = AmoebaNetBConfig::new(18, 512, 1000).init(&Device::flex())?;
    /// assert_eq!(layers.len(), 24);
    /// assert_eq!(count_parameters(&layers), 557_333_736); // none allocated yet
    /// # Ok::<(), AmoebaNetError>(())
    /// ```
    pub fn init(&self, device: &Device) -> Result<Vec<AmoebaLayer>, AmoebaNetError> {
        self.network().init(device)
    }

    /// Renames the tensors of a PyTorch AmoebaNet-B, called as torchgpipe calls those of
    /// AmoebaNet-D, to those of the list of layers that [`init`](Self::init) makes.
    ///
    /// The names change as [`AmoebaNetDConfig::torch_keys`] says. The convolutions of a separable
    /// one are `operations.{n}.module.{k}.depthwise` and `….pointwise` there, its batch norm
    /// `….bn`, where k is 0 or 1.
    ///
    /// ```
    /// use burn::{
    ///     store::{ModuleSnapshot, PyTorchToBurnAdapter, SafetensorsStore},
    ///     tensor::Device,
    /// };
    /// use stovepipe_amoebanet::AmoebaNetBConfig;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = AmoebaNetBConfig::new(3, 16, 10);
    /// let mut layers = config.init(&Device::flex())?;
    /// # const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    /// # let path = format!("{FIXTURES}/amoebanet_b_l3_d16.safetensors");
    /// let mut store = SafetensorsStore::from_file(path)
    ///     .with_from_adapter(PyTorchToBurnAdapter)
    ///     .skip_enum_variants(true)
    ///     .remap(config.torch_keys())
    ///     .with_key_remapping("^weights/", ""); // where this file keeps them
    /// let loaded = layers.load_from(&mut store)?;
    /// assert!(loaded.missing.is_empty() && loaded.errors.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn torch_keys(&self) -> KeyRemapper {
        torch::keys(self.layers)
    }

    /// What the names of the classifier's tensors in a pipeline begin with: its bias, `….bias`, has as many
    /// numbers as there are classes, and without these tensors weights for other classes can be loaded. An
    /// auxiliary classifier has its own.
    ///
    /// ```
    /// let config = stovepipe_amoebanet::AmoebaNetBConfig::new(18, 208, 10);
    /// assert_eq!(config.classifier(), "layers.23.fc");
    /// ```
    #[must_use]
    pub fn classifier(&self) -> String {
        format!("layers.{}.fc", self.layers + 5)
    }

    fn network(&self) -> Network {
        Network {
            family: &AMOEBANET_B,
            layers: self.layers,
            filters: self.filters,
            classes: self.classes,
            stem: self.stem,
            auxiliary: self.auxiliary,
            drop_path: self.drop_path,
        }
    }
}
