//! The weights that a training begins with.

use std::{
    fs,
    path::{Path, PathBuf},
};

use stovepipe::{
    pipeline::{Layer, Pipeline},
    train::{Checkpoint, Checkpoints, RunFolder, Weights},
};

use crate::{
    error::CliError,
    model::ModelSettings,
    work::{CLASSES_FILE, Model},
};

/// The file of a run's model.
const MODEL: &str = "model.safetensors";

/// What a training begins with, if the settings name it.
pub struct Beginning {
    settings: ModelSettings,
    file: PathBuf,
    /// The classes that the model is to tell, a line each; none if it reads text.
    classes: Option<String>,
}

impl Beginning {
    /// What the settings name, for a model that is built.
    pub fn of<L: Layer<Side = ()>, T>(
        settings: &ModelSettings,
        model: &Model<L, T>,
    ) -> Option<Self> {
        let file = file_of(settings.from.as_ref()?);
        let classes = model.files.iter().find(|(name, _)| *name == CLASSES_FILE);
        let classes = classes.map(|(_, names)| String::from_utf8_lossy(names).into_owned());
        Some(Self {
            settings: settings.clone(),
            file,
            classes,
        })
    }

    /// Loads it. Returns what is to be said of that.
    pub fn load<L: Layer>(self, pipeline: &mut Pipeline<L>) -> Result<String, CliError> {
        let weights = open(&self.file)?;
        let weights = match self.settings.names_elsewhere() {
            Some(keys) => weights.renamed(&keys)?,
            None => weights,
        };
        let head = self.settings.head();
        let is_new = match (&head, self.settings.new_head) {
            (None, _) => false,
            (Some(_), Some(is_new)) => is_new,
            (Some(head), None) => self.is_for_others(&weights, &head.bias()),
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
        Ok(format!("begun with {}{head}\n", self.file.display()))
    }

    /// Whether a file is of a model that tells other classes: by their names if they lie beside it, as in a run's folder,
    /// or else by their number.
    fn is_for_others(&self, weights: &Weights, bias: &str) -> bool {
        let Some(classes) = &self.classes else {
            return false;
        };
        let folder = self.file.parent().unwrap_or(Path::new(""));
        // A checkpoint lies two folders within its run.
        let run = match Checkpoint::at(folder) {
            Some(_) => folder.ancestors().nth(2).unwrap_or(folder),
            None => folder,
        };
        match fs::read_to_string(run.join(CLASSES_FILE)) {
            Ok(others) => others != *classes,
            Err(_) => weights.shape(bias) != Some(&[classes.lines().count()][..]),
        }
    }
}

/// Looks at the weights that the settings name, before anything that takes time is done.
pub fn check(settings: &ModelSettings) -> Result<(), CliError> {
    match &settings.from {
        Some(path) => open(&file_of(path)).map(|_| ()),
        None => Ok(()),
    }
}

/// A file of weights, which is whole if it is a checkpoint's.
fn open(file: &Path) -> Result<Weights, CliError> {
    if let Some(checkpoint) = file.parent().and_then(Checkpoint::at) {
        checkpoint.check()?;
    }
    Ok(Weights::open(file)?)
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
