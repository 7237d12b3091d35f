//! The tensors of a checkpoint.

use std::{collections::HashSet, fs, path::Path};

use burn::{optim::StateSink, store::ModuleSnapshot};
use stovepipe_pipeline::{Layer, Pipeline};

use crate::{
    average::WeightAverage,
    checkpoint::TrainerState,
    error::TrainError,
    fetched::fetched,
    gradients::GradientAccumulator,
    model_file::{load_model, save_model},
    optimizer::{Names, StagedOptimizer},
    tensor_file,
};

const GRADIENTS: &str = "gradients.safetensors";
const OPTIMIZER: &str = "optimizer";

/// The file of a model, or of its averaged weights.
pub(super) fn model_file(averaged: bool) -> &'static str {
    match averaged {
        true => "averaged.safetensors",
        false => "model.safetensors",
    }
}

/// Everything with tensors that a training goes on from.
pub(crate) struct Contents<'a, L: Layer> {
    pub(crate) pipeline: &'a mut Pipeline<L>,
    pub(crate) average: Option<&'a mut WeightAverage<L>>,
    pub(crate) optimizer: &'a mut StagedOptimizer,
    pub(crate) window: &'a mut GradientAccumulator,
}

impl<L: Layer> Contents<'_, L> {
    /// Writes them, a file for each stage of the optimizer's: no more than one stage's states are in the host's memory
    /// at once.
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
        match self.window.mini_batches() {
            0 => Ok(()),
            _ => tensor_file::write(
                &folder.join(GRADIENTS),
                self.window.sums(self.pipeline, &names),
            ),
        }
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
            *self.window = GradientAccumulator::restore(self.pipeline, &names, sums, state);
        }
        self.pipeline.set_steps(state.steps);
        if let Some(scaler) = state.loss_scaler {
            self.pipeline.set_loss_scaler(scaler);
        }
        Ok(())
    }
}

/// What parameters are called in files: as in the model's. One in several places has the first's name.
fn names<L: Layer>(pipeline: &Pipeline<L>) -> Names {
    let mut names = Names::new();
    for tensor in pipeline.collect(None, None, true) {
        if let Some(id) = tensor.param_id {
            names.entry(id.into()).or_insert(tensor.name);
        }
    }
    names
}

/// Whether a tensor's name is that of one of the parameters, and something after it.
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
