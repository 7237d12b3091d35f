//! Weights that a training leaves as they are.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use burn::{
    module::Module,
    store::{
        ModuleSnapshot, bridge,
        burn_pack::{Error, Tensor},
    },
    tensor::TensorData,
};
use sha2::{Digest, Sha256};
use stovepipe_pipeline::{Layer, Pipeline};

use super::{
    file::Weights,
    format::Convention,
    tensor_file::{BASE, BURN, FORMAT},
    together::write_together,
};
use crate::{error::TrainError, processes::Processes};

/// Weights of a file that a training leaves as they are, such as all but those of an adapter:
/// [`Weights::load_base_into`] loads them.
///
/// With [`Trainer::with_base`](crate::Trainer::with_base), checkpoints and files of models leave them out, and
/// have their checksum instead. So these files stay small, and other weights below an adapter are noticed.
///
/// ```
/// use burn::{module::Module, tensor::Device};
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Weights, example::Dense, save_model};
/// # let folder = tempfile::tempdir()?;
/// # let [original, small] = ["original", "small"].map(|name| folder.path().join(name));
/// // The first layer is frozen, the second one learns.
/// let model = |seed| {
///     let layers = vec![Dense::new(4, 8).no_grad(), Dense::new(8, 3)];
///     Pipeline::builder(layers).devices(vec![Device::flex(); 2]).seed(seed).build()
/// };
/// save_model(&model(0)?, original.clone())?;
/// let mut pipeline = model(1)?;
/// let base = Weights::open(&original)?.load_base_into(&mut pipeline)?;
/// base.save(&pipeline, &small)?;
/// assert!(Weights::open(&small)?.names().all(|name| name.starts_with("layers.1.")));
///
/// let mut again = model(2)?;
/// let base = Weights::open(&original)?.load_base_into(&mut again)?;
/// base.load_into(&mut again, &small)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Base {
    sum: String,
    /// The names of its tensors in a pipeline.
    names: BTreeSet<String>,
}

impl Base {
    pub(super) fn new(sum: String, names: BTreeSet<String>) -> Self {
        Self { sum, names }
    }

    /// The SHA-256 of what the file gave the model: of the lines that `sha256sum` would print for its tensors,
    /// each a file of its bytes, sorted by name.
    #[must_use]
    pub fn sum(&self) -> &str {
        &self.sum
    }

    /// Saves a pipeline's other parameters and statistics as [`save_model`](crate::save_model) does, and the
    /// checksum.
    ///
    /// # Errors
    ///
    /// If the file cannot be written, or a device does not return its tensors.
    pub fn save<L: Layer>(&self, pipeline: &Pipeline<L>, path: &Path) -> Result<(), TrainError> {
        pipeline.share_parameters()?;
        let tensors = || {
            let mut tensors = pipeline.valid().collect(None, None, true);
            tensors.retain(|tensor| !self.names.contains(&tensor.name));
            tensors
        };
        let mut metadata = vec![(FORMAT, BURN)];
        if !self.names.is_empty() {
            metadata.push((BASE, &self.sum));
        }
        write_together(&Processes::of(pipeline), path, tensors, &metadata)
    }

    /// Loads a file of [`save`](Self::save), or a file of the whole model, into a pipeline that has this base.
    ///
    /// # Errors
    ///
    /// [`TrainError::OtherBase`] if the file was saved above other weights; else as
    /// [`load_model`](crate::load_model).
    pub fn load_into<L: Layer>(
        &self,
        pipeline: &mut Pipeline<L>,
        path: &Path,
    ) -> Result<(), TrainError> {
        let weights = Weights::open_in(&Processes::of(pipeline), path)?.of(Convention::Burn);
        let weights = match weights.base() {
            None => weights,
            Some(sum) if *sum == self.sum => {
                let names = self.names.clone();
                weights.allowing_missing(move |name| names.contains(name))
            }
            Some(sum) => {
                return Err(TrainError::OtherBase {
                    path: path.to_owned(),
                    then: sum.to_owned(),
                    now: self.sum.clone(),
                });
            }
        };
        weights.load_into(pipeline).map(drop)
    }
}

/// Checksums of a file's tensors, each taken when the tensor is read.
#[derive(Clone, Default)]
pub(super) struct TensorSums(Arc<Mutex<Option<BTreeMap<String, String>>>>);

impl TensorSums {
    /// The tensor. While sums are taken, reading it takes its own.
    pub(super) fn watch(&self, tensor: Tensor) -> Tensor {
        let (sums, name) = (self.0.clone(), tensor.name.clone());
        let (dtype, shape) = (tensor.dtype, tensor.shape.clone());
        let read = move || {
            let data: TensorData = bridge::to_data(&tensor)?;
            let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sums) = &mut *sums {
                let sum = format!("{:x}", Sha256::digest(data.as_bytes()));
                sums.insert(tensor.name.clone(), sum);
            }
            Ok::<_, Error>(data)
        };
        bridge::deferred(name, dtype, shape, None, read)
    }

    /// What `read` returns, and the checksum of all that it read.
    pub(super) fn during<R>(&self, read: impl FnOnce() -> R) -> (R, String) {
        let replace = |new| {
            let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *sums, new)
        };
        replace(Some(BTreeMap::new()));
        let done = read();
        let mut digest = Sha256::new();
        for (name, sum) in replace(None).unwrap_or_default() {
            digest.update(format!("{sum}  {name}\n"));
        }
        (done, format!("{:x}", digest.finalize()))
    }
}
