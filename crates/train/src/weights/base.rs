//! Weights that a training leaves as they are.

use std::{
    collections::{BTreeSet, HashSet},
    path::Path,
};

use burn::{
    module::Module,
    store::{ModuleSnapshot, burn_pack::Tensor},
};
use stovepipe_pipeline::{Layer, Pipeline};

use super::{
    file::Weights,
    format::{BASE, BURN, Convention, FORMAT},
    places::places,
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
        let (processes, tensors) = (Processes::of(pipeline), self.tensors(pipeline)?);
        write_together(&processes, path, tensors, Some(self.metadata()))
    }

    /// Lists the tensors of this process that [`save`](Self::save) saves.
    pub(crate) fn tensors<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
    ) -> Result<impl Fn() -> Vec<Tensor>, TrainError> {
        pipeline.share_parameters()?;
        Ok(|| {
            // What was thawed since is trained.
            let frozen = places(pipeline.layers()).into_iter();
            let frozen = frozen.filter(|place| place.is_frozen && self.names.contains(&place.name));
            let left_out: HashSet<_> = frozen.map(|place| place.name).collect();
            let mut tensors = pipeline.valid().collect(None, None, true);
            tensors.retain(|tensor| !left_out.contains(&tensor.name));
            tensors
        })
    }

    /// That of a file of [`save`](Self::save): a key and its value.
    pub(crate) fn metadata(&self) -> (&str, &str) {
        match self.names.is_empty() {
            true => (FORMAT, BURN),
            false => (BASE, self.sum.as_str()),
        }
    }

    /// Loads a file of [`save`](Self::save) into a pipeline that has this base.
    ///
    /// # Errors
    ///
    /// [`TrainError::OtherBase`] if the file was saved above other weights, or has all of its own; else as
    /// [`load_model`](crate::load_model).
    pub fn load_into<L: Layer>(
        &self,
        pipeline: &mut Pipeline<L>,
        path: &Path,
    ) -> Result<(), TrainError> {
        let weights = Weights::open_in(&Processes::of(pipeline), path)?.of(Convention::Burn);
        let weights = match weights.base().unwrap_or_default() {
            "" if self.names.is_empty() => weights,
            sum if sum == self.sum => {
                let names = self.names.clone();
                weights.allowing_missing(move |name| names.contains(name))
            }
            sum => {
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

impl Weights {
    /// Loads the tensors, as [`load_into`](Self::load_into) does, and takes the checksum of those of the file,
    /// but for those that were [resized](Self::resize) before. Frozen parameters that the file gives are the
    /// base of what is trained.
    ///
    /// # Errors
    ///
    /// As [`load_into`](Self::load_into).
    pub fn load_base_into<L: Layer>(&self, pipeline: &mut Pipeline<L>) -> Result<Base, TrainError> {
        let (loaded, sum) = self.sums.during(|| self.load_into(pipeline));
        let absent = loaded?.missing;
        let places = places(pipeline.layers());
        // The file has tied parameters once.
        let given = places.iter().filter(|place| !absent.contains(&place.name));
        let given: HashSet<_> = given.map(|place| place.id).collect();
        let frozen = places.iter().filter(|place| place.is_frozen);
        let frozen = frozen.filter(|place| given.contains(&place.id) && !self.skips(&place.name));
        let own: Vec<_> = frozen.map(|place| place.name.clone()).collect();
        // Each process knows its own layers.
        let (_, all) = (self.processes).tell(Ok::<_, TrainError>(own), Vec::clone)?;
        let names = all.into_iter().flatten().collect();
        Ok(Base {
            sum: self.processes.of_first(sum)?,
            names,
        })
    }
}
