//! Work on a model, whichever it is: what a subcommand does, written once for all of them.

use std::{fmt::Write, rc::Rc};

use burn::tensor::{Device, Int, Tensor};
use stovepipe::{
    pipeline::{CrossEntropy, Flow, Layer, Objective},
    train::{RunFolder, Source, Task, TrainSettings, Trainer},
};
use stovepipe_imagenet::Normalisation;
use stovepipe_transformer::{LmLayer, Sampling, continue_text};

use crate::{
    data::{DataSettings, HeldOut, ImageSets, Labels, TextSets},
    error::CliError,
    mistakes::Judge,
    model::{ModelName, ModelSettings},
};

/// A run's copy of its tokenizer.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The names of the classes that a run tells, a line each.
pub const CLASSES_FILE: &str = "classes.txt";

/// Tokens of the sample that a run of a language model ends with, and of what it begins with.
const SAMPLE: usize = 300;
const PROMPT: usize = 64;

/// What a subcommand does with a model.
pub trait Work {
    /// What comes of it.
    type Done;

    /// Does it.
    fn on<L, T>(self, model: Model<L, T>) -> Result<Self::Done, CliError>
    where
        L: Layer<Side = ()>,
        T: Flow,
        CrossEntropy: Objective<L::Output, T>;
}

/// What a subcommand does with a model that tells the classes of images.
pub trait ImageWork {
    /// What comes of it.
    type Done;

    /// Does it.
    fn on<L>(self, layers: Vec<L>) -> Result<Self::Done, CliError>
    where
        L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>;
}

/// Which data are loaded for work on a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// None: a model can be looked at without.
    Nothing,
    /// All, in a part to train on and a part to test with.
    Parts,
    /// All to test with.
    Whole,
}

/// A model, and what it learns from.
pub struct Model<L: Layer<Side = ()>, T> {
    /// Nothing is allocated yet.
    pub layers: Vec<L>,
    /// So many samples, but for what is in them, to measure layers with.
    pub sample: Box<dyn Fn(usize) -> L::Input>,
    /// Its task, under settings of a training.
    pub task: fn(&TrainSettings) -> Task<CrossEntropy>,
    /// If the data were loaded.
    pub source: Option<Rc<dyn Source<L::Input, T>>>,
    /// How many training samples there are, or usually are.
    pub samples: usize,
    /// What a run leaves beside its own files.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// What is done with a trained model.
    pub epilogue: Option<Epilogue<L>>,
}

/// Looks at a trained model, leaves files in the run's folder, and says something.
pub type Epilogue<L> =
    Box<dyn Fn(&Trainer<L, CrossEntropy>, &RunFolder) -> Result<Option<String>, CliError>>;

/// Does work on the model that the settings name, with the data that they name if these are to be loaded.
pub fn with_model<W: Work>(
    (model, data): (&ModelSettings, &DataSettings),
    seed: u64,
    load: Load,
    work: W,
) -> Result<W::Done, CliError> {
    match (model.is_language(), load) {
        (true, _) => with_language_model((model, data), seed, load, work),
        (false, Load::Whole) => Err(CliError::NotWhole { data: data.name() }),
        (false, _) => {
            let images = (load == Load::Parts)
                .then(|| ImageSets::load(data, seed))
                .transpose()?;
            let classes = images.as_ref().map(|images| images.classes.len());
            let work = OnImages { data, images, work };
            with_image_layers(
                (model, data),
                classes.unwrap_or_else(|| data.usual_classes()),
                work,
            )
        }
    }
}

/// Does work on the model of images that the settings name, with so many classes.
pub fn with_image_layers<W: ImageWork>(
    (model, data): (&ModelSettings, &DataSettings),
    classes: usize,
    work: W,
) -> Result<W::Done, CliError> {
    let size = data.image_size();
    match model.model {
        ModelName::Vit => work.on(model.vit(size, classes)?),
        ModelName::TransformerLm => Err(CliError::OtherData {
            model: model.name(),
            data: data.name(),
        }),
        ModelName::AmoebaNetD | ModelName::AmoebaNetB => work.on(model.amoebanet(size, classes)?),
    }
}

/// Work on a model of images, with the images.
struct OnImages<'a, W> {
    data: &'a DataSettings,
    images: Option<ImageSets>,
    work: W,
}

impl<W: Work> ImageWork for OnImages<'_, W> {
    type Done = W::Done;

    fn on<L>(self, layers: Vec<L>) -> Result<W::Done, CliError>
    where
        L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>,
    {
        let size = self.data.image_size();
        let source = self.images.as_ref().map(|images| images.source.clone());
        let names = (self.images.as_ref()).map(|images| images.classes.join("\n") + "\n");
        let normalisation = self.data.showing().normalisation;
        self.work.on::<L, Labels>(Model {
            layers,
            sample: Box::new(move |samples| {
                Tensor::ones([samples, 3, size, size], &Device::flex())
            }),
            samples: match &source {
                Some(source) => source.training_samples(),
                None => self.data.usual_samples(),
            },
            task: Task::classification,
            source,
            files: names
                .map(|names| (CLASSES_FILE, names.into_bytes()))
                .into_iter()
                .collect(),
            epilogue: (self.images).map(|images| mistakes(images, normalisation)),
        })
    }
}

/// Writes down what a model is most wrong about.
fn mistakes<L>(images: ImageSets, normalisation: Normalisation) -> Epilogue<L>
where
    L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>,
{
    Box::new(move |trainer, folder| {
        let judge = Judge {
            source: &*images.source,
            batch_size: trainer.settings().batch_size,
            classes: &images.classes,
            names: &images.names,
            normalisation,
        };
        judge.write(trainer.pipeline(), folder)?;
        Ok(None)
    })
}

fn with_language_model<W: Work>(
    (model, data): (&ModelSettings, &DataSettings),
    seed: u64,
    load: Load,
    work: W,
) -> Result<W::Done, CliError> {
    let tokenizer = data.tokenizer()?;
    let length = model.window();
    let texts = match load {
        Load::Nothing => None,
        Load::Parts => Some(TextSets::load(data, length, seed)?),
        Load::Whole => Some(TextSets::whole(data, length)?),
    };
    let layers = model.language_model(&tokenizer)?;
    let files = match &data.tokenizer {
        Some(path) => vec![(TOKENIZER_FILE, crate::output::read(path)?.into_bytes())],
        None => Vec::new(),
    };
    let samples = texts.as_ref().map(|texts| texts.source.training_samples());
    let (source, epilogue) = match texts {
        Some(texts) => (
            Some(texts.source),
            texts.held_out.map(|held_out| remark(held_out, seed)),
        ),
        None => (None, None),
    };
    work.on::<LmLayer, Tensor<2, Int>>(Model {
        layers,
        sample: Box::new(move |samples| Tensor::zeros([samples, length], &Device::flex())),
        samples: samples.unwrap_or_else(|| data.usual_samples()),
        task: Task::language_model,
        source,
        files,
        epilogue,
    })
}

/// What counting gets to on the same text, and a sample of text that a model generates.
/// Counted only when it is said: tests and dry runs have no use for it.
fn remark(held_out: HeldOut, seed: u64) -> Epilogue<LmLayer> {
    Box::new(move |trainer, folder| {
        let (yardstick, tokenizer) = (held_out.yardstick()?, &held_out.tokenizer);
        let prompt = held_out.prompt(PROMPT);
        let sampling = Sampling {
            temperature: 0.8,
            seed,
            ..Sampling::default()
        };
        let tokens = continue_text(trainer.pipeline(), prompt, SAMPLE, &sampling)?;
        let mut text = format!("an interpolated 5-gram has perplexity {yardstick:.2} there\n");
        let _ = writeln!(
            text,
            "a sample, after \"{}\":\n{}",
            tokenizer.decode(prompt)?,
            tokenizer.decode(&tokens)?
        );
        folder.write("remark.txt", text.as_bytes())?;
        Ok(Some(text))
    })
}
