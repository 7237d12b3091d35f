//! Models in files, named by layer.

use std::path::{Path, PathBuf};

use stovepipe_pipeline::{Layer, Pipeline};

use super::base::Base;
use crate::error::TrainError;

/// Loads a file of [`save_model`] into any number of stages. For other files, see
/// [`Weights`](crate::Weights). In several processes, all call this, and the first one reads the file.
///
/// # Errors
///
/// If the file cannot be read, or is of another model. If a tensor is unreadable, the others have
/// been loaded.
pub fn load_model<L: Layer>(pipeline: &mut Pipeline<L>, path: &Path) -> Result<(), TrainError> {
    Base::default().load_into(pipeline, path)
}

/// Saves a pipeline's parameters and statistics, named by layer: `layers.3.…`. A file whose name ends in `.bpk`
/// is Burn's burnpack, others are safetensors.
///
/// Reads one tensor at a time from its device, so that the model may be larger than this machine's
/// memory. In several processes, all call this, and the first one writes the file.
///
/// # On a single device
///
/// The file is the same as Burn's for a module with the layers in a field `layers`. Such a module
/// reads it; other modules read it with `with_key_remapping`:
///
/// ```
/// # use burn::{module::Module, store::{ModuleSnapshot, SafetensorsStore}, tensor::Device};
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
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # In PyTorch
///
/// Use [`save_for_pytorch`](crate::weights::save_for_pytorch): PyTorch transposes linear weights and has
/// other names for norms' parameters.
///
/// # Errors
///
/// If the file cannot be written, or a device does not return its tensors.
pub fn save_model<L: Layer>(pipeline: &Pipeline<L>, path: PathBuf) -> Result<(), TrainError> {
    Base::default().save(pipeline, &path)
}
