//! The tensors of a checkpoint.

use std::{collections::HashSet, fs, path::Path};

use burn::{optim::StateSink, store::ModuleSnapshot};
use stovepipe_pipeline::{Layer, Pipeline};

use super::state::TrainerState;
use crate::{
    error::TrainError,
    optimizer::{Counts, GradientAccumulator, Names, StagedOptimizer, WeightAverage},
    weights::{fetched, load_model, save_model, tensor_file},
};

const GRADIENTS: &str = "gradients.safetensors";
const OPTIMIZER: &str = "optimizer";

/// The file of a model, or of its averaged weights.
pub(super) fn model_file(averaged: bool) -> &'static str {
    if averaged {
        "averaged.safetensors"
    } else {
        "model.safetensors"
    }
}

/// All tensors that a training resumes from.
pub(crate) struct Contents<'a, L: Layer> {
    pub(crate) pipeline: &'a mut Pipeline<L>,
    pub(crate) average: Option<&'a mut WeightAverage<L>>,
    pub(crate) optimizer: &'a mut StagedOptimizer,
    pub(crate) accumulator: &'a mut GradientAccumulator,
}

impl<L: Layer> Contents<'_, L> {
    /// Writes them. The optimizer's state gets a file for each stage, so that the host holds only one
    /// stage's state at a time.
    pub(super) fn save(&self, folder: &Path) -> Result<(), TrainError> {
        fetched(folder, || self.write(folder))
    }

    fn write(&self, folder: &Path) -> Result<(), TrainError> {
        save_model(self.pipeline, folder.join(model_file(false)))?;
        if let Some(average) = &self.average {
            save_model(average.pipeline(), folder.join(model_file(true)))?;
        }
        let (names, stages) = (names(self.pipeline), self.pipeline.stages().len());
        for stage in 0..stages {
            let number = stage + 1;
            let file = format!("{OPTIMIZER}-{number:05}-of-{stages:05}.safetensors");
            tensor_file::write(&folder.join(file), self.optimizer.state(stage, &names))?;
        }
        if self.accumulator.counts().mini_batches == 0 {
            return Ok(());
        }
        let sums = self.accumulator.sums(self.pipeline, &names);
        tensor_file::write(&folder.join(GRADIENTS), sums)
    }

    /// Reads them, into any number of stages.
    pub(super) fn load(self, folder: &Path, state: &TrainerState) -> Result<(), TrainError> {
        load_model(self.pipeline, &folder.join(model_file(false)))?;
        if let Some(average) = self.average {
            average.restore(&folder.join(model_file(true)), state.averaged)?;
        }
        let names = names(self.pipeline);
        let stages = self.pipeline.stages();
        for (number, stage) in stages.into_iter().enumerate() {
            let layers = &self.pipeline.layers()[stage.layers];
            let own: HashSet<_> = (layers.iter())
                .flat_map(|layer| layer.collect(None, None, true))
                .filter_map(|tensor| names.get(&tensor.param_id?.into()))
                .map(String::as_str)
                .collect();
            let mut state = StateSink::default();
            for path in optimizer_files(folder)? {
                let part = tensor_file::read(&path, |name| is_of(name, &own))?;
                state.tensors.extend(part.tensors);
                state.scalars.extend(part.scalars);
            }
            self.optimizer
                .restore(number, (layers, &stage.device), &names, state);
        }
        if state.waiting > 0 {
            let sums = tensor_file::read(&folder.join(GRADIENTS), |_| true)?;
            let counts = Counts {
                mini_batches: state.waiting,
                weight: state.waiting_weight,
                spoiled: state.spoiled,
            };
            *self.accumulator = GradientAccumulator::restore(self.pipeline, &names, sums, counts);
        }
        self.pipeline.set_steps(state.steps);
        if let Some(scaler) = state.loss_scaler {
            self.pipeline.set_loss_scaler(scaler);
        }
        Ok(())
    }
}

/// The names of parameters, as in the model's file. One in several layers has its first name.
fn names<L: Layer>(pipeline: &Pipeline<L>) -> Names {
    let mut names = Names::new();
    for tensor in pipeline.collect(None, None, true) {
        if let Some(id) = tensor.param_id {
            names.entry(id.into()).or_insert(tensor.name);
        }
    }
    names
}

/// Whether a tensor's name is a parameter's, with something after it.
fn is_of(name: &str, parameters: &HashSet<&str>) -> bool {
    let ends = name.match_indices('.').map(|(end, _)| end);
    ends.into_iter()
        .any(|end| parameters.contains(&name[..end]))
}

fn optimizer_files(folder: &Path) -> Result<Vec<std::path::PathBuf>, TrainError> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).map_err(TrainError::file(folder))? {
        let path = entry.map_err(TrainError::file(folder))?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        if name.is_some_and(|name| name.starts_with(OPTIMIZER)) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
