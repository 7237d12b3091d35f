//! Work on a model with its data: what a subcommand does, written once for all models.

use std::{fmt::Write, rc::Rc};

use burn::tensor::{Device, Int, Tensor};
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective},
    train::{RunFolder, Source, Task, TrainSettings, Trainer},
};
use stovepipe_transformer::Sampling;

use crate::{
    data::{AnyDataSet, Contents, HeldOut, ImageData, ImageSets, Labels, TextData},
    error::CliError,
    files,
    mistakes::MistakeFinder,
    models::{AnyModel, Classifier, LanguageModel, ModelWork, Sizes},
    output,
};

/// Tokens of the sample that a run of a language model ends with, and of its prompt.
const SAMPLE: usize = 300;
const PROMPT: usize = 64;

/// What a subcommand does with a model.
pub trait Work {
    /// The result.
    type Done;

    fn on<L, T>(self, model: ModelWithData<L, T>) -> Result<Self::Done, CliError>
    where
        L: Layer<Side = ()>,
        T: Flow,
        CrossEntropy: Objective<L::Output, T>;
}

/// Which data are loaded for work on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// None: a model can be inspected without.
    Nothing,
    /// All, in a part to train on and a part to test with.
    Parts,
    /// All to test with.
    Whole,
}

/// A model's layers, and what it learns from.
pub struct ModelWithData<L: Layer<Side = ()>, T> {
    /// Nothing is allocated yet.
    pub layers: Vec<L>,
    /// A batch of so many samples, to measure layers with.
    pub sample: Box<dyn Fn(usize) -> L::Input>,
    /// Its task, under the settings of a training.
    pub task: fn(&TrainSettings) -> Task<CrossEntropy>,
    /// If the data were loaded.
    pub source: Option<Rc<dyn Source<L::Input, T>>>,
    /// How many training samples there are, or usually are.
    pub samples: usize,
    /// Files of a run besides its usual ones.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// What is done with a trained model.
    pub epilogue: Option<Epilogue<L>>,
}

impl<L: Layer<Side = ()>, T> ModelWithData<L, T> {
    /// The names of the classes, a line each, of a classifier.
    pub fn classes(&self) -> Option<String> {
        let mut files = self.files.iter();
        let (_, names) = files.find(|(name, _)| *name == files::CLASSES)?;
        Some(String::from_utf8_lossy(names).into_owned())
    }
}

/// Looks at a trained model, writes files into the run's folder, and may return a text to print.
pub type Epilogue<L> =
    Box<dyn Fn(&Trainer<L, CrossEntropy>, &RunFolder) -> Result<Option<String>, CliError>>;

/// Does work on a model, with its data if these are to be loaded.
pub fn with_model<W: Work>(
    (model, data): (&AnyModel, &AnyDataSet),
    seed: u64,
    load: Load,
    work: W,
) -> Result<W::Done, CliError> {
    let samples = data.usual_samples();
    match data.contents() {
        Contents::Images(_) if load == Load::Whole => Err(CliError::NotWhole { data: data.name() }),
        Contents::Images(images) => {
            let sets = (load == Load::Parts)
                .then(|| images.load(seed))
                .transpose()?;
            let classes = sets.as_ref().map(|sets| sets.classes.len());
            let classes = classes.unwrap_or_else(|| images.usual_classes());
            let sizes = Sizes::of_images(images.image_size(), classes);
            model.build(
                &sizes,
                OnImages {
                    images,
                    sets,
                    samples,
                    work,
                },
            )
        }
        Contents::Text(text) => {
            let sizes = Sizes::of_text(text.tokenizer()?);
            let length = model.window();
            model.build(
                &sizes,
                OnText {
                    text,
                    length,
                    seed,
                    load,
                    samples,
                    work,
                },
            )
        }
    }
}

struct OnImages<'a, W> {
    images: &'a dyn ImageData,
    sets: Option<ImageSets>,
    samples: usize,
    work: W,
}

impl<W: Work> ModelWork for OnImages<'_, W> {
    type Done = W::Done;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<W::Done, CliError> {
        let size = self.images.image_size();
        let source = self.sets.as_ref().map(|sets| sets.source.clone());
        let names = (self.sets.as_ref()).map(|sets| sets.classes.join("\n") + "\n");
        let files = names.map(|names| (files::CLASSES, names.into_bytes()));
        let normalisation = self.images.view().normalisation;
        self.work.on::<L, Labels>(ModelWithData {
            layers,
            sample: Box::new(move |samples| {
                Tensor::ones([samples, 3, size, size], &Device::flex())
            }),
            samples: source
                .as_ref()
                .map_or(self.samples, |source| source.training_samples()),
            task: Task::classification,
            source,
            files: files.into_iter().collect(),
            epilogue: self.sets.map(|sets| -> Epilogue<L> {
                Box::new(move |trainer, folder| {
                    let finder = MistakeFinder {
                        sets: &sets,
                        batch_size: trainer.settings().batch_size,
                        normalisation,
                    };
                    finder.write(trainer.pipeline(), folder)?;
                    Ok(None)
                })
            }),
        })
    }
}

struct OnText<'a, W> {
    text: &'a dyn TextData,
    length: usize,
    seed: u64,
    load: Load,
    samples: usize,
    work: W,
}

impl<W: Work> ModelWork for OnText<'_, W> {
    type Done = W::Done;

    fn classify<L: Classifier>(self, _: Vec<L>) -> Result<W::Done, CliError> {
        Err(CliError::NotOfImages)
    }

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<W::Done, CliError> {
        let (length, seed) = (self.length, self.seed);
        let texts = match self.load {
            Load::Nothing => None,
            Load::Parts => Some(self.text.load(length, seed)?),
            Load::Whole => Some(self.text.load_whole(length)?),
        };
        let files = match self.text.tokenizer_file() {
            Some(path) => vec![(files::TOKENIZER, output::read(path)?.into_bytes())],
            None => Vec::new(),
        };
        let (source, held_out) = texts.map(|texts| (texts.source, texts.held_out)).unzip();
        self.work.on::<L, Tensor<2, Int>>(ModelWithData {
            layers,
            sample: Box::new(move |samples| Tensor::zeros([samples, length], &Device::flex())),
            samples: source
                .as_ref()
                .map_or(self.samples, |source| source.training_samples()),
            task: Task::language_model,
            source,
            files,
            epilogue: held_out.flatten().map(|held_out| -> Epilogue<L> {
                Box::new(move |trainer, folder| Ok(Some(remark(&held_out, seed, trainer, folder)?)))
            }),
        })
    }
}

/// The perplexity of counting on the same text, and a sample that the model generates.
fn remark<L: LanguageModel>(
    held_out: &HeldOut,
    seed: u64,
    trainer: &Trainer<L, CrossEntropy>,
    folder: &RunFolder,
) -> Result<String, CliError> {
    let (yardstick, tokenizer) = (held_out.yardstick()?, &held_out.tokenizer);
    let prompt = held_out.prompt(PROMPT);
    let sampling = Sampling {
        temperature: 0.8,
        seed,
        ..Sampling::default()
    };
    let tokens = L::generate(trainer.pipeline(), prompt, SAMPLE, &sampling)?;
    let mut text = format!("an interpolated 5-gram has perplexity {yardstick:.2} there\n");
    let (before, sample) = (tokenizer.decode(prompt)?, tokenizer.decode(&tokens)?);
    let _ = writeln!(text, "a sample, after \"{before}\":\n{sample}");
    folder.write("remark.txt", text.as_bytes())?;
    Ok(text)
}
