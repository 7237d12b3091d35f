//! The weights that a training starts from.

use std::{
    fs,
    path::{Path, PathBuf},
};

use clap::{ArgAction, Args};
use glob::Pattern;
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Layer, Pipeline},
    schedule::count,
    train::{
        Processes, RunFolder, TrainError, Weights,
        checkpoint::{Checkpoint, Checkpoints},
        weights::Base,
    },
};
use stovepipe_decoder::LoraConfig;

use crate::{
    error::{CliError, usage},
    files::{ADAPTER_BASE, CLASSES, HUB_CONFIG, MODEL},
    models::AnyModel,
    output,
};

/// Settings of any model.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, Args)]
#[serde(default, rename_all = "kebab-case")]
pub struct Pretrained {
    /// Weights to start from: a run's folder, a folder of the Hugging Face Hub, safetensors, or a .pt of PyTorch (torchgpipe's AmoebaNet-D, timm's ViT)
    #[arg(long, value_name = "PATH")]
    pub from: Option<PathBuf>,
    /// Whether the head starts with new weights [default: if those of --from are for other classes]
    #[arg(long, value_name = "BOOL", action = ArgAction::Set)]
    pub new_head: Option<bool>,
    /// Tensors that --from may lack: they start with new weights; names with * for any part
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_missing: Vec<String>,
    /// Tensors that --from may have besides; names with * for any part
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow_extra: Vec<String>,
}

/// The tensors of a model that are for its classes alone.
pub struct Head {
    prefix: String,
    /// A part of the names of auxiliary heads.
    auxiliary: Option<&'static str>,
}

impl Head {
    pub fn new(classifier: String, auxiliary: Option<&'static str>) -> Self {
        let prefix = classifier + ".";
        Self { prefix, auxiliary }
    }

    fn has(&self, name: &str) -> bool {
        name.starts_with(&self.prefix) || self.auxiliary.is_some_and(|part| name.contains(part))
    }

    fn bias(&self) -> String {
        self.prefix.clone() + "bias"
    }
}

pub struct OpenWeights<'a> {
    weights: Weights,
    processes: Processes,
    settings: &'a Pretrained,
    /// Whether the rest of the model comes from elsewhere.
    is_below: bool,
}

impl<'a> OpenWeights<'a> {
    pub fn open(settings: &'a Pretrained, processes: &Processes) -> Result<Option<Self>, CliError> {
        let Some(path) = &settings.from else {
            return match settings.allow_missing.is_empty() && settings.allow_extra.is_empty() {
                true => Ok(None),
                false => Err(usage!(
                    "allow-missing and allow-extra are for the weights of --from: give it, or leave them out"
                )),
            };
        };
        // The files are those of the first process.
        let file: PathBuf = processes.by_first(|| {
            let file = file_of(path);
            let checkpoint = file.parent().and_then(Checkpoint::at);
            checkpoint.map_or(Ok(()), |checkpoint| checkpoint.check())?;
            Ok::<_, CliError>(file)
        })?;
        Ok(Some(Self {
            weights: Weights::open_in(processes, file)?,
            processes: processes.clone(),
            settings,
            is_below: false,
        }))
    }

    /// Opens what a run's model leaves out, if it leaves out anything.
    pub fn open_below(
        model: &Path,
        settings: &'a Pretrained,
        processes: &Processes,
    ) -> Result<Option<Self>, CliError> {
        // What is damaged is found later.
        let leaves_out = || Weights::open(model).is_ok_and(|weights| weights.base().is_some());
        if !processes.of_first(processes.is_first() && leaves_out())? {
            return Ok(None);
        }
        let open = Self::open(settings, processes)?;
        Ok(open.map(|weights| Self {
            is_below: true,
            ..weights
        }))
    }

    /// The number of classes that they are for, if the model has a head.
    pub fn classes(&self, model: &AnyModel) -> Result<Option<usize>, CliError> {
        let Some(head) = model.head() else {
            return Ok(None);
        };
        let weights = renamed(Weights::open(self.weights.path())?, model)?;
        Ok(weights
            .shape(&head.bias())
            .and_then(|shape| shape.first().copied()))
    }

    /// Those for a model with these layers, for images of this size and these classes, a line each,
    /// which they must fit.
    pub fn for_model<L: Layer>(
        self,
        layers: &[L],
        (model, image): (&AnyModel, usize),
        classes: Option<&str>,
    ) -> Result<FittingWeights, CliError> {
        let (file, settings) = (self.weights.path().to_owned(), self.settings);
        let mut line = format!("starting from {}", file.display());
        let mut weights = renamed(self.weights, model)?;
        if model.resize(image, &mut weights)? {
            line += ", with resized positions";
        }
        let is_other = |head: &Head| match (settings.new_head, classes) {
            (Some(is_new), _) => is_new,
            (None, Some(classes)) => is_for_others(&weights, classes, &head.bias()),
            (None, None) => false,
        };
        let head = model.head().filter(is_other);
        let is_new = self.processes.of_first(head.is_some())?;
        if let Some(head) = model.head().filter(|_| is_new) {
            weights = weights.without(move |name| head.has(name));
            line += ", with a new head";
        }
        let (missing, extra) = (
            patterns(&settings.allow_missing)?,
            patterns(&settings.allow_extra)?,
        );
        let matches = |patterns: &[Pattern]| {
            let patterns = patterns.to_vec();
            move |name: &str| patterns.iter().any(|pattern| pattern.matches(name))
        };
        if let Some(twins) = model.twins().filter(|_| weights.path().is_dir())
            && weights.differ(&twins)?
        {
            // Without the number of the layer, which the folder has not.
            let [first, second] = twins.map(|name| match name.splitn(3, '.').last() {
                Some(rest) => rest.to_owned(),
                None => name,
            });
            return Err(usage!(
                "{}: {first} and {second} are one in this model, but not in the file",
                file.display()
            ));
        }
        if weights.path().is_dir() && !settings.allow_missing.is_empty() {
            return Err(usage!(
                "allow-missing: a folder of the Hugging Face Hub has all weights of its model: leave it out"
            ));
        }
        let (is_missing, may_lack) = (matches(&missing), model.may_lack());
        let weights = weights.allowing_missing(move |name| is_missing(name) || may_lack(name));
        let weights = weights.allowing_extra(matches(&extra));
        let mut allowed = weights.check(layers)?;
        let may_lack = model.may_lack();
        allowed.missing.retain(|name| !may_lack(name));
        for (flag, patterns, names, verb) in [
            ("allow-missing", missing, &allowed.missing, "without"),
            ("allow-extra", extra, &allowed.extra, "leaving out"),
        ] {
            let is_unused = |pattern: &&Pattern| !names.iter().any(|name| pattern.matches(name));
            if let Some(pattern) = patterns.iter().find(is_unused) {
                let file = file.display();
                return Err(usage!(
                    "{flag}: no such tensor of {file} matches {pattern}: leave it out"
                ));
            }
            if !names.is_empty() {
                line += &format!(", {verb} {}", count(names.len(), "tensor"));
            }
        }
        let adapter = model.adapter().filter(|_| !self.is_below);
        let adapter = adapter.map(|folder| -> Result<_, CliError> {
            let weights = renamed(Weights::open_in(&self.processes, folder)?, model)?;
            let weights = weights.allowing_missing(|name| !name.contains(".lora."));
            weights.check(layers)?;
            line += &format!(", with the adapter {}", folder.display());
            if let Some(base) = LoraConfig::base_of(folder)? {
                line += &format!(" for {base}");
            }
            let path = folder.join(ADAPTER_BASE);
            let sum = self.processes.by_first(|| match path.is_file() {
                true => fs::read_to_string(&path).map_err(CliError::file(&path)),
                false => Ok(String::new()), // one of peft does not say
            })?;
            Ok((weights, folder.to_owned(), sum.trim().to_owned()))
        });
        let adapter = adapter.transpose()?;
        let line = (!self.is_below).then(|| line + "\n");
        Ok(FittingWeights {
            weights,
            adapter,
            has_base: model.has_frozen_base(),
            line: line.unwrap_or_default(),
        })
    }
}

/// Weights that fit a model.
pub struct FittingWeights {
    weights: Weights,
    /// Its weights, its folder, and the checksum of those that it was trained above, if that is known.
    adapter: Option<(Weights, PathBuf, String)>,
    has_base: bool,
    line: String,
}

impl FittingWeights {
    /// Loads them, and says so. Returns those below an adapter.
    pub fn load<L: Layer>(self, pipeline: &mut Pipeline<L>) -> Result<Base, CliError> {
        let base = if self.has_base {
            self.weights.load_base_into(pipeline)?
        } else {
            self.weights.load_into(pipeline)?;
            Base::default()
        };
        if let Some((adapter, folder, sum)) = &self.adapter {
            if !sum.is_empty() && sum != base.sum() {
                let (from, folder) = (self.weights.path().display(), folder.display());
                return Err(usage!(
                    "the adapter {folder} was trained above other weights than {from}: name those with --from"
                ));
            }
            adapter.load_into(pipeline)?;
        }
        output::say(&self.line);
        Ok(base)
    }
}

/// Says which weights have changed if they are not those that an adapter was trained above.
pub fn of_base(error: TrainError, from: Option<&Path>) -> CliError {
    match (error, from) {
        (TrainError::OtherBase { then, now, .. }, Some(from))
            if !then.is_empty() && !now.is_empty() =>
        {
            usage!(
                "{} has changed since the adapter was trained: name the weights from then with --from",
                from.display()
            )
        }
        (error, _) => error.into(),
    }
}

/// With the model's own names, if they have those of another framework.
fn renamed(weights: Weights, model: &AnyModel) -> Result<Weights, CliError> {
    Ok(match model.names_elsewhere() {
        Some(keys) => weights.renamed(&keys)?,
        None => weights,
    })
}

fn patterns(names: &[String]) -> Result<Vec<Pattern>, CliError> {
    let pattern = |name: &String| {
        Pattern::new(name).map_err(|error| usage!("{name} is not a pattern of names: {error}"))
    };
    names.iter().map(pattern).collect()
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
    let is_hub = path.join(HUB_CONFIG).is_file();
    let Some(folder) = RunFolder::find(path).filter(|_| !is_hub) else {
        return path.to_owned();
    };
    let (model, checkpoints) = (folder.join(MODEL), Checkpoints::of(&folder).list());
    match checkpoints.unwrap_or_default().pop() {
        Some(newest) if !model.is_file() => newest.model(false),
        _ => model,
    }
}
