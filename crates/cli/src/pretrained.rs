//! The weights that a training starts from.

use std::{
    fs,
    path::{Path, PathBuf},
};

use burn::store::KeyRemapper;
use clap::{ArgAction, Args};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Layer, Pipeline},
    train::{
        RunFolder, Weights,
        checkpoint::{Checkpoint, Checkpoints},
    },
};

use crate::{
    error::CliError,
    files::{CLASSES, MODEL},
};

/// Settings of any model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Pretrained {
    /// Weights to start from: a run's folder, safetensors, or a .pt of PyTorch (torchgpipe's AmoebaNet-D, timm's ViT)
    #[arg(long, value_name = "PATH")]
    pub from: Option<PathBuf>,
    /// Whether the head starts with new weights [default: if those of --from are for other classes]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub new_head: Option<bool>,
}

/// The tensors of a model that are for its classes alone.
pub struct Head {
    /// The prefix of their names.
    prefix: String,
    /// A part of the names of auxiliary heads.
    auxiliary: Option<&'static str>,
}

impl Head {
    pub fn new(classifier: String, auxiliary: Option<&'static str>) -> Self {
        Self {
            prefix: classifier + ".",
            auxiliary,
        }
    }

    fn has(&self, name: &str) -> bool {
        name.starts_with(&self.prefix) || self.auxiliary.is_some_and(|part| name.contains(part))
    }

    fn bias(&self) -> String {
        self.prefix.clone() + "bias"
    }
}

/// Weights that were opened and not read yet.
pub struct OpenWeights {
    weights: Weights,
    new_head: Option<bool>,
}

impl OpenWeights {
    /// Opens the weights that the settings name, if they name any.
    pub fn open(settings: &Pretrained) -> Result<Option<Self>, CliError> {
        let Some(path) = &settings.from else {
            return Ok(None);
        };
        let file = file_of(path);
        if let Some(checkpoint) = file.parent().and_then(Checkpoint::at) {
            checkpoint.check()?;
        }
        Ok(Some(Self {
            weights: Weights::open(file)?,
            new_head: settings.new_head,
        }))
    }

    /// Loads them into a model with this head and these classes, a line each. Returns a line that says so.
    pub fn load<L: Layer>(
        self,
        pipeline: &mut Pipeline<L>,
        (head, keys): (Option<Head>, Option<KeyRemapper>),
        classes: Option<&str>,
    ) -> Result<String, CliError> {
        let file = self.weights.path().to_owned();
        let weights = match keys {
            Some(keys) => self.weights.renamed(&keys)?,
            None => self.weights,
        };
        let is_other = |head: &Head| match (self.new_head, classes) {
            (Some(is_new), _) => is_new,
            (None, Some(classes)) => is_for_others(&weights, classes, &head.bias()),
            (None, None) => false,
        };
        let new_head = head.filter(is_other);
        let remark = if new_head.is_some() {
            ", with a new head"
        } else {
            ""
        };
        let weights = match new_head {
            Some(head) => weights.without(move |name| head.has(name)),
            None => weights,
        };
        weights.load_into(pipeline)?;
        Ok(format!("starting from {}{remark}\n", file.display()))
    }
}

/// Whether weights are for other classes: by the names in their run's folder, or else by their number.
fn is_for_others(weights: &Weights, classes: &str, bias: &str) -> bool {
    let folder = weights.path().parent().unwrap_or(Path::new(""));
    // A checkpoint lies two folders within its run.
    let run = match Checkpoint::at(folder) {
        Some(_) => folder.ancestors().nth(2).unwrap_or(folder),
        None => folder,
    };
    match fs::read_to_string(run.join(CLASSES)) {
        Ok(others) => others != classes,
        Err(_) => weights.shape(bias) != Some(&[classes.lines().count()][..]),
    }
}

/// The file of a path: of a run, its model, or that of the newest checkpoint if it has not finished.
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
