//! Configurations of AmoebaNets.

use burn::{config::Config, store::KeyRemapper, tensor::Device};

use crate::{
    error::AmoebaNetError,
    family::{AMOEBANET_B, AMOEBANET_D},
    layer::AmoebaLayer,
    network::Network,
    stem::Stem,
    torch,
};

macro_rules! config {
    ($(#[$doc:meta])* $name:ident, $family:expr) => {
        $(#[$doc])*
        #[derive(Config, Debug, PartialEq)]
        pub struct $name {
            /// L, the number of normal cells: a multiple of three. The model has six more layers.
            pub layers: usize,
            /// D, the channels of a state in the first normal cells: a multiple of four.
            pub filters: usize,
            /// The number of classes.
            pub classes: usize,
            /// The first layers.
            #[config(default = "Stem::ImageNet")]
            pub stem: Stem,
            /// Whether a second classifier, at two thirds of the depth, takes part in training.
            #[config(default = false)]
            pub auxiliary: bool,
            /// The probability that training drops an operation of the last cell, independently for
            /// each sample (Zoph et al., "Learning Transferable Architectures for Scalable Image
            /// Recognition", 2018). Cell i of n, from 0, has (i + 1) / n of this probability. It also
            /// grows over the training, if the pipeline is
            /// [told](stovepipe_pipeline::Pipeline::set_progress) its progress. An identity is never
            /// dropped.
            #[config(default = 0.0)]
            pub drop_path: f64,
        }

        impl $name {
            /// Makes the L + 6 layers. Each parameter is allocated on `device` on first use.
            ///
            /// # Errors
            ///
            /// [`AmoebaNetError`] if L is not a multiple of 3 from 3 to 3000, D is not a multiple of
            /// 4 from 4 to 65536, there are no classes, or `drop_path` is not in [0, 1).
            pub fn init(&self, device: &Device) -> Result<Vec<AmoebaLayer>, AmoebaNetError> {
                let network = Network {
                    family: &$family,
                    layers: self.layers,
                    filters: self.filters,
                    classes: self.classes,
                    stem: self.stem,
                    auxiliary: self.auxiliary,
                    drop_path: self.drop_path,
                };
                network.init(device)
            }

            /// Renames the tensors of a PyTorch model with torchgpipe's names to those of the layers
            /// from [`init`](Self::init).
            ///
            /// | PyTorch | here, without the names of enum variants |
            /// |---|---|
            /// | `stem1`, `stem2`, `stem3` | `0`, `1`, `2` |
            /// | `cell1_normal{i}`, `cell2_reduction`, … `cell5_normal{i}` | `3`, … `L + 4` |
            /// | `classify.fc` | `{L + 5}.fc` |
            /// | `operations.{n}.module.{3k + 1}`, `….{3k + 2}` | `operations.{n}.{k}.conv`, `….{k}.bn` |
            /// | `operations.{n}.module.{k}.depthwise`, `….pointwise`, `….bn` | the same without `module` |
            /// | `reduce1.1`, `reduce1.2` | `reduce1.0.conv`, `reduce1.0.bn` |
            /// | `weight`, `bias` of a batch norm | `gamma`, `beta` |
            /// | `num_batches_tracked` of a batch norm | |
            /// | prefix `partitions.{stage}.` of torchgpipe's pipeline | |
            ///
            /// Other names stay as they are. The weight of `classify.fc` is transposed:
            /// `[classes, channels]` there, `[channels, classes]` here. `stovepipe_train::Weights`
            /// transposes it and renames the parameters of batch norms, and so does Burn's
            /// `PyTorchToBurnAdapter`.
            #[must_use]
            pub fn torch_keys(&self) -> KeyRemapper {
                torch::keys(self.layers)
            }

            /// Gives tensors torchgpipe's names, the way back from [`torch_keys`](Self::torch_keys). They
            /// have the names of a pipeline, `layers.3.…`, and PyTorch's layout; other names stay, such as
            /// those of an auxiliary head. `stovepipe_train::weights::save_for_pytorch` writes them.
            pub fn to_torch(&self, tensors: &mut [(String, Vec<usize>)]) {
                torch::rename(self.layers, tensors);
            }

            /// The prefix of the classifier's tensors in a pipeline, `layers.{L + 5}.fc`: `….bias` has
            /// a value for each class. Weights for other classes can be loaded without these tensors.
            /// An auxiliary classifier has its own.
            #[must_use]
            pub fn classifier(&self) -> String {
                format!("layers.{}.fc", self.layers + 5)
            }
        }
    };
}

config! {
    /// AmoebaNet-D(L, D): L normal cells of D filters.
    ///
    /// Counts of parameters, for 1000 classes: (18, 208) 81.5M, (18, 416) 319M, (18, 544) 543M,
    /// (36, 544) 1.06B, (72, 512) 1.84B.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_amoebanet::{AmoebaNetDConfig, AmoebaNetError};
    /// use stovepipe_pipeline::count_parameters;
    ///
    /// let config = AmoebaNetDConfig::new(72, 512, 1000);
    /// let layers = config.init(&Device::flex())?;
    /// assert_eq!((layers.len(), config.classifier()), (78, "layers.77.fc".to_owned()));
    /// assert_eq!(count_parameters(&layers), 1_844_858_344); // none allocated yet
    ///
    /// let error = AmoebaNetDConfig::new(4, 512, 1000).init(&Device::flex()).unwrap_err();
    /// assert_eq!(error, AmoebaNetError::Layers(4));
    /// # Ok::<(), AmoebaNetError>(())
    /// ```
    ///
    /// With weights from PyTorch:
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
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/amoebanet_d_l3_d16.pt");
    /// let weights = Weights::open(path)?.renamed(&config.torch_keys())?;
    /// assert_eq!(weights.shape(&format!("{}.bias", config.classifier())), Some(&[10][..]));
    /// weights.load_into(&mut pipeline)?;
    /// # Ok(())
    /// # }
    /// ```
    AmoebaNetDConfig, AMOEBANET_D
}

config! {
    /// AmoebaNet-B(L, D): L normal cells of D filters, with separable convolutions.
    ///
    /// The two cells of its stem are half as wide as those of AmoebaNet-D, as in the reference
    /// implementation: so (18, 512) has the 557M parameters of the GPipe paper, for 1000 classes.
    ///
    /// With weights from PyTorch, on a single device:
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
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/amoebanet_b_l3_d16.safetensors");
    /// let mut store = SafetensorsStore::from_file(path)
    ///     .with_from_adapter(PyTorchToBurnAdapter)
    ///     .skip_enum_variants(true)
    ///     .remap(config.torch_keys())
    ///     .with_key_remapping("^weights/", ""); // the prefix in this file
    /// let loaded = layers.load_from(&mut store)?;
    /// assert_eq!((loaded.applied.len(), loaded.missing.len(), loaded.errors.len()), (379, 0, 0));
    /// # Ok(())
    /// # }
    /// ```
    AmoebaNetBConfig, AMOEBANET_B
}
