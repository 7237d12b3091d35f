//! Models as files: safetensors, named by layer.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use burn::{
    module::Module,
    store::{ModuleSnapshot, SafetensorsStore},
};
use stovepipe_pipeline::{Layer, Pipeline};

use crate::{
    error::TrainError,
    fetched::fetched,
    tensor_file::{BURN, FORMAT},
    weights::{Convention, Weights},
};

/// Loads what [`save_model`] saved, under any number of stages. Files from elsewhere are [`Weights`].
///
/// # Errors
///
/// If the file cannot be read, or is of another model: tensors are missing, there are others, or some have other shapes. If
/// one turns out to be unreadable, the pipeline has the others.
pub fn load_model<L: Layer>(pipeline: &mut Pipeline<L>, path: &Path) -> Result<(), TrainError> {
    let weights = Weights::open(path)?.of(Convention::Burn);
    weights.load_into(pipeline)
}

/// Saves a pipeline's parameters and statistics as safetensors, named by layer: `layers.3.…`.
///
/// Of what is on devices, a tensor at a time is in this machine's memory, so that the model may be larger than that.
///
/// # On a single device
///
/// The file holds what Burn saves of a module with the layers in a field `layers`, so such a module reads it, and one
/// that has the layers in another place with the names changed:
///
/// ```
/// use burn::{
///     module::Module,
///     nn::{Linear, LinearConfig},
///     store::{ModuleSnapshot, SafetensorsStore},
///     tensor::{Device, Tensor},
/// };
/// use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};
/// use stovepipe_train::save_model;
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # impl Layer for Dense {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(x: Tensor<2>) -> Tensor<2> { x }
/// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
/// #         Ok(self.linear.forward(x))
/// #     }
/// #     fn leave(x: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(x) }
/// # }
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let device = Device::flex();
/// let layers = || -> Vec<_> {
///     let layer = |_| Dense { linear: LinearConfig::new(4, 4).init(&device) };
///     (0..3).map(layer).collect()
/// };
/// let pipeline = Pipeline::builder(layers()).devices(vec![device.clone(); 3]).build()?;
/// save_model(&pipeline, path.clone())?;
///
/// #[derive(Module, Debug)]
/// struct Plain {
///     layers: Vec<Dense>, // or fields of modules of one's own that have the same parameters
/// }
/// let mut model = Plain { layers: layers() };
/// let mut file = SafetensorsStore::from_file(&path).skip_enum_variants(true);
/// let loaded = model.load_from(&mut file)?;
/// assert_eq!((loaded.applied.len(), loaded.unused.len()), (6, 0));
///
/// let mut model = layers();
/// let file = SafetensorsStore::from_file(&path).skip_enum_variants(true);
/// model.load_from(&mut file.with_key_remapping(r"^layers\.", ""))?;
/// # Ok(())
/// # }
/// ```
///
/// # In PyTorch
///
/// `safetensors.torch.load_file` reads the file; linear weights are turned there, and norms' parameters called otherwise.
/// With Burn's adapter a file is written that has both as PyTorch does,
///
/// ```no_run
/// # use burn::{module::Module, store::{BurnToPyTorchAdapter, ModuleSnapshot, SafetensorsStore}};
/// # fn write<L: stovepipe_pipeline::Layer>(pipeline: &stovepipe_pipeline::Pipeline<L>)
/// # -> Result<(), Box<dyn std::error::Error>> {
/// let mut file = SafetensorsStore::from_file("for-pytorch.safetensors")
///     .with_to_adapter(BurnToPyTorchAdapter)
///     .clear_metadata()
///     .metadata("format", "pt")
///     .skip_enum_variants(true);
/// pipeline.valid().save_into(&mut file)?;
/// # Ok(())
/// # }
/// ```
///
/// so that `model.load_state_dict(load_file("for-pytorch.safetensors"), strict=False)` finds its tensors, if the model has an
/// `nn.ModuleList` called `layers` with modules of the same names; `strict=False` for the batches that its batch norms count.
///
/// # Errors
///
/// If the file cannot be written, or a device does not hand over what it holds.
pub fn save_model<L: Layer>(pipeline: &Pipeline<L>, path: PathBuf) -> Result<(), TrainError> {
    // Burn keeps the permissions of a file that it overwrites; one of its own is for the owner alone.
    File::create(&path).map_err(TrainError::file(&path))?;
    // The metadata that Burn adds has no fixed order, and equal models should be equal files.
    let mut store = SafetensorsStore::from_file(&path)
        .clear_metadata()
        .metadata(FORMAT, BURN)
        .skip_enum_variants(true)
        .overwrite(true);
    fetched(&path, || {
        let saved = pipeline.valid().save_into(&mut store);
        saved.map_err(|error| TrainError::format(&path, error))
    })
}
