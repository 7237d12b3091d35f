//! Models in files: safetensors, named by layer.

use std::{
    fs::File,
    path::{Path, PathBuf},
};

use burn::{
    module::Module,
    store::{ModuleSnapshot, SafetensorsStore},
};
use stovepipe_pipeline::{Layer, Pipeline};

use super::{
    convention::Convention,
    fetched::fetched,
    file::Weights,
    tensor_file::{BURN, FORMAT},
};
use crate::error::TrainError;

/// Loads a file of [`save_model`] into any number of stages. For other files, see [`Weights`].
///
/// # Errors
///
/// If the file cannot be read, or is of another model. If a tensor is unreadable, the others have
/// been loaded.
pub fn load_model<L: Layer>(pipeline: &mut Pipeline<L>, path: &Path) -> Result<(), TrainError> {
    let weights = Weights::open(path)?.of(Convention::Burn);
    weights.load_into(pipeline)
}

/// Saves a pipeline's parameters and statistics as safetensors, named by layer: `layers.3.…`.
///
/// Reads one tensor at a time from its device, so that the model may be larger than this machine's
/// memory.
///
/// # On a single device
///
/// The file is the same as Burn's for a module with the layers in a field `layers`. Such a module
/// reads it; other modules read it with changed names:
///
/// ```
/// use burn::{
///     module::Module,
///     store::{ModuleSnapshot, SafetensorsStore},
///     tensor::Device,
/// };
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{example::Dense, save_model};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("model.safetensors");
/// let device = Device::flex();
/// let layers = || -> Vec<_> { (0..3).map(|_| Dense::new(4, 4)).collect() };
/// let pipeline = Pipeline::builder(layers()).devices(vec![device.clone(); 3]).build()?;
/// save_model(&pipeline, path.clone())?;
///
/// #[derive(Module, Debug)]
/// struct Plain {
///     layers: Vec<Dense>, // or your own modules with the same parameters
/// }
/// let mut model = Plain { layers: layers() };
/// let mut file = SafetensorsStore::from_file(&path).skip_enum_variants(true);
/// let loaded = model.load_from(&mut file)?;
/// assert_eq!((loaded.applied.len(), loaded.unused.len()), (6, 0));
///
/// let mut model = layers();
/// let file = SafetensorsStore::from_file(&path).skip_enum_variants(true);
/// model.load_from(&mut file.with_key_remapping(r"^layers\.", ""))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # In PyTorch
///
/// `safetensors.torch.load_file` reads the file, but PyTorch transposes linear weights and has other
/// names for norms' parameters. Burn's adapter writes a file as PyTorch expects it:
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
/// `model.load_state_dict(load_file("for-pytorch.safetensors"), strict=False)` loads it into a model
/// with an `nn.ModuleList` called `layers` of modules with the same names. `strict=False` is for
/// `num_batches_tracked` of batch norms.
///
/// # Errors
///
/// If the file cannot be written, or a device does not return its tensors.
pub fn save_model<L: Layer>(pipeline: &Pipeline<L>, path: PathBuf) -> Result<(), TrainError> {
    // Burn keeps the permissions of an existing file, but makes new files private.
    File::create(&path).map_err(TrainError::file(&path))?;
    // Equal models make equal files: Burn's metadata have no fixed order.
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
