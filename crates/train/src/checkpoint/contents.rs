//! The tensors of a checkpoint.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    rc::Rc,
};

use burn::store::{ModuleSnapshot, burn_pack};
use stovepipe_pipeline::{Layer, Pipeline};

use super::state::TrainerState;
use crate::{
    disk::{Files, paths},
    error::TrainError,
    optimizer::{Averages, Counts, GradientAccumulator, List, StagedOptimizer, names},
    processes::Processes,
    weights::{
        Base, SharedTensors, copy_together,
        tensor_file::{self, HostTensor},
        write_together,
    },
};

const GRADIENTS: &str = "gradients.safetensors";
const OPTIMIZER: &str = "optimizer";

/// The file of a model, or of its averaged weights.
pub(crate) fn model_file(averaged: bool) -> &'static str {
    if averaged {
        "averaged.safetensors"
    } else {
        "model.safetensors"
    }
}

pub(crate) struct Contents<'a, L: Layer> {
    pub(crate) pipeline: &'a mut Pipeline<L>,
    pub(crate) average: Option<&'a mut Averages<L>>,
    pub(crate) optimizer: &'a mut StagedOptimizer,
    pub(crate) accumulator: &'a mut GradientAccumulator,
    /// What is left out of the files.
    pub(crate) base: &'a Base,
}

/// A copy of the contents in the host's memory, in the first process. It can be written by any thread.
pub(crate) struct Copied(Vec<TensorsOf<Vec<HostTensor>>>);

/// A file of tensors.
pub(crate) struct TensorsOf<T> {
    pub(crate) name: String,
    pub(crate) tensors: T,
    /// A key and its value.
    metadata: Option<(String, String)>,
}

/// The files of a pipeline and of averages of its weights, but for what is left out of them.
pub(crate) fn models<'a, L: Layer>(
    pipeline: &'a Pipeline<L>,
    average: Option<&'a Averages<L>>,
    base: &'a Base,
) -> Result<Vec<TensorsOf<List<'a>>>, TrainError> {
    let file = |averaged: bool, tensors: List<'a>| {
        let (key, value) = base.metadata();
        TensorsOf {
            name: model_file(averaged).to_owned(),
            tensors,
            metadata: Some((key.to_owned(), value.to_owned())),
        }
    };
    let model = file(false, Box::new(base.tensors(pipeline)?));
    let average = average.map(|own| own.tensors(pipeline, base));
    let average = average.transpose()?.map(|tensors| file(true, tensors));
    Ok([model].into_iter().chain(average).collect())
}

impl<L: Layer> Contents<'_, L> {
    pub(super) fn processes(&self) -> Processes {
        Processes::of(self.pipeline)
    }

    /// Writes them, one tensor at a time.
    pub(super) fn save(&self, folder: &Path, files: &Files) -> Result<(), TrainError> {
        let processes = &self.processes();
        self.files()?.into_iter().try_for_each(|own| {
            let path = folder.join(&own.name);
            let write = || write_together(processes, &path, &own.tensors, own.metadata());
            files.write(&path, write)
        })
    }

    /// Copies them, if `has_room` for the bytes of each file and of those before it. Errors name the files in `folder`.
    pub(crate) fn copy(
        &self,
        folder: &Path,
        has_room: impl Fn(usize) -> bool,
    ) -> Result<Option<Copied>, TrainError> {
        let (processes, mut all) = (&self.processes(), Copied(Vec::new()));
        for own in self.files()? {
            let before = all.bytes();
            let has_room = |bytes| has_room(before + bytes);
            let path = folder.join(&own.name);
            let copied = copy_together(processes, &path, own.tensors, has_room)?;
            let Some(tensors) = copied else {
                return Ok(None);
            };
            all.0.push(TensorsOf {
                tensors,
                name: own.name,
                metadata: own.metadata,
            });
        }
        Ok(Some(all))
    }

    /// The optimizer's state has a file for each stage: without a copy, the host holds the state of one at a time.
    fn files(&self) -> Result<Vec<TensorsOf<List<'_>>>, TrainError> {
        let processes = self.processes();
        let mut all = models(self.pipeline, self.average.as_deref(), self.base)?;
        let (names, stages) = (Rc::new(names(self.pipeline)), self.pipeline.stages());
        for (stage, placement) in stages.iter().enumerate() {
            let (number, count) = (stage + 1, stages.len());
            let name = format!("{OPTIMIZER}-{number:05}-of-{count:05}.safetensors");
            // The first replica always updates.
            let (names, is_here) = (names.clone(), placement.process == processes.rank());
            let state = move || match is_here {
                true => self.optimizer.state(stage, &names),
                false => Vec::new(),
            };
            all.push(TensorsOf {
                name,
                tensors: Box::new(state),
                metadata: None,
            });
        }
        if self.accumulator.counts().mini_batches > 0 {
            let sums = move || self.accumulator.sums(self.pipeline, &names);
            all.push(TensorsOf {
                name: GRADIENTS.to_owned(),
                tensors: Box::new(sums),
                metadata: None,
            });
        }
        Ok(all)
    }

    /// Reads them, into any number of stages.
    pub(crate) fn load(self, folder: &Path, state: &TrainerState) -> Result<(), TrainError> {
        let processes = &self.processes();
        if let Some(average) = self.average {
            let path = folder.join(model_file(true));
            average.restore(self.pipeline, &path, (self.base, state.averaged))?;
        }
        (self.base).load_into(self.pipeline, &folder.join(model_file(false)))?;
        let names = names(self.pipeline);
        let files = processes.first(|| optimizer_tensors(folder))?;
        let file = SharedTensors::new(processes, files.unwrap_or_default())?;
        for (number, stage) in self.pipeline.stages().into_iter().enumerate() {
            let layers = &self.pipeline.layers()[stage.layers];
            let own: HashSet<_> = (layers.iter())
                .flat_map(|layer| layer.collect(None, None, true))
                .filter_map(|tensor| names.get(&tensor.param_id?.into()))
                .map(String::as_str)
                .collect();
            let mut of_parameters: HashMap<_, Vec<_>> = HashMap::new();
            for tensor in file.tensors() {
                if let Some(name) = parameter_of(&tensor.name, &own) {
                    of_parameters.entry(name).or_default().push(tensor);
                }
            }
            let read = |name: &str| {
                let tensors = of_parameters.get(name).into_iter().flatten();
                tensor_file::read(folder, tensors.copied(), |_| true)
            };
            let place = (layers, &stage.device);
            let restore = || self.optimizer.restore(number, place, &names, read);
            processes.agree(file.reading(restore)?)?;
        }
        if state.waiting > 0 {
            let path = folder.join(GRADIENTS);
            let tensors = processes.first(|| tensor_file::open(&path))?;
            let tensors = tensors.map(|(tensors, _)| tensors);
            let file = SharedTensors::new(processes, tensors.unwrap_or_default())?;
            let own: HashSet<_> = names.values().map(String::as_str).collect();
            let read = || tensor_file::read(&path, file.tensors(), |name| own.contains(name));
            let sums = processes.agree(file.reading(read)?)?;
            let counts = Counts {
                mini_batches: state.waiting,
                weight: state.waiting_weight,
                spoiled: state.spoiled,
            };
            let restored = (self.accumulator).restore(self.pipeline, &names, sums, counts);
            processes.agree(restored.map_err(TrainError::from))?;
        }
        self.pipeline.set_steps(state.steps);
        if let Some(scaler) = state.loss_scaler {
            self.pipeline.set_loss_scaler(scaler);
        }
        Ok(())
    }
}

impl Copied {
    pub(crate) fn bytes(&self) -> usize {
        let tensors = self.0.iter().flat_map(|own| &own.tensors);
        tensors.map(HostTensor::bytes).sum()
    }

    pub(super) fn save(&self, folder: &Path, files: &Files) -> Result<(), TrainError> {
        self.0.iter().try_for_each(|own| {
            let (path, metadata) = (folder.join(&own.name), own.metadata());
            files.write(&path, || {
                tensor_file::write_copies(&path, &own.tensors, metadata)
            })
        })
    }
}

impl<T> TensorsOf<T> {
    pub(crate) fn metadata(&self) -> Option<(&str, &str)> {
        let (key, value) = self.metadata.as_ref()?;
        Some((key, value))
    }
}

/// The parameter whose name, with something after it, is this name.
fn parameter_of<'a>(name: &'a str, parameters: &HashSet<&str>) -> Option<&'a str> {
    let mut starts = name.match_indices('.').map(|(end, _)| &name[..end]);
    starts.find(|start| parameters.contains(start))
}

/// The tensors of the optimizer's files.
fn optimizer_tensors(folder: &Path) -> Result<Vec<burn_pack::Tensor>, TrainError> {
    let mut files = paths(folder)?;
    let name = |path: &PathBuf| path.file_name()?.to_str().map(str::to_owned);
    files.retain(|path| name(path).is_some_and(|name| name.starts_with(OPTIMIZER)));
    let tensors = files.iter().map(|path| tensor_file::open(path));
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?.into_iter();
    Ok(tensors.flat_map(|(tensors, _)| tensors).collect())
}
