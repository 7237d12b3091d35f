//! The weights that a training begins with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use stovepipe::{
    pipeline::{Layer, Pipeline},
    train::{
        RunFolder, Weights,
        checkpoint::{Checkpoint, Checkpoints},
    },
};

use crate::{error::CliError, model::ModelSettings, work::CLASSES_FILE};

/// The file of a run's model.
const MODEL: &str = "model.safetensors";

/// What a training begins with.
pub struct Beginning {
    settings: ModelSettings,
    weights: Weights,
}

impl Beginning {
    /// The weights that the settings name, if they name any: opened before anything that takes time is done, and not read.
    pub fn open(settings: &ModelSettings) -> Result<Option<Self>, CliError> {
        let Some(path) = &settings.from else {
            return Ok(None);
        };
        let file = file_of(path);
        if let Some(checkpoint) = file.parent().and_then(Checkpoint::at) {
            checkpoint.check()?;
        }
        Ok(Some(Self {
            settings: settings.clone(),
            weights: Weights::open(file)?,
        }))
    }

    /// Loads them into a model that is to tell these classes, a line each, if it tells any. Returns what is to be said of
    /// that.
    pub fn load<L: Layer>(
        self,
        pipeline: &mut Pipeline<L>,
        classes: Option<&str>,
    ) -> Result<String, CliError> {
        let file = self.weights.path().to_owned();
        let weights = self.weights;
        let weights = match self.settings.names_elsewhere() {
            Some(keys) => weights.renamed(&keys)?,
            None => weights,
        };
        let head = self.settings.head();
        let is_new = match (&head, self.settings.new_head) {
            (None, _) => false,
            (Some(_), Some(is_new)) => is_new,
            (Some(head), None) => {
                classes.is_some_and(|classes| is_for_others(&weights, classes, &head.bias()))
            }
        };
        let weights = match head.filter(|_| is_new) {
            Some(head) => weights.without(move |name| head.has(name)),
            None => weights,
        };
        weights.load_into(pipeline)?;
        let head = match is_new {
            true => ", with a new head",
            false => "",
        };
        Ok(format!("begun with {}{head}\n", file.display()))
    }
}

/// Whether weights are of a model that tells other classes: by their names if they lie beside it, as in a run's folder, or
/// else by their number.
fn is_for_others(weights: &Weights, classes: &str, bias: &str) -> bool {
    let folder = weights.path().parent().unwrap_or(Path::new(""));
    // A checkpoint lies two folders within its run.
    let run = match Checkpoint::at(folder) {
        Some(_) => folder.ancestors().nth(2).unwrap_or(folder),
        None => folder,
    };
    match fs::read_to_string(run.join(CLASSES_FILE)) {
        Ok(others) => others != classes,
        Err(_) => weights.shape(bias) != Some(&[classes.lines().count()][..]),
    }
}

/// The file that is meant by a path: of a run, its model, or that of the newest checkpoint if there is none yet.
fn file_of(path: &Path) -> PathBuf {
    let Some(folder) = RunFolder::find(path) else {
        return path.to_owned();
    };
    let (model, checkpoints) = (folder.join(MODEL), Checkpoints::of(&folder).list());
    match checkpoints.unwrap_or_default().pop() {
        Some(newest) if !model.is_file() => newest.model(false),
        _ => model,
    }
}

/// The tensors of a model that are for its classes alone.
pub struct Head {
    /// What their names begin with.
    pub prefix: String,
    /// What is in the names of other heads.
    pub auxiliary: Option<&'static str>,
}

impl Head {
    fn has(&self, name: &str) -> bool {
        name.starts_with(&self.prefix) || self.auxiliary.is_some_and(|part| name.contains(part))
    }

    fn bias(&self) -> String {
        self.prefix.clone() + "bias"
    }
}
