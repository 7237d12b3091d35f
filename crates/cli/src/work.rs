//! Work on a model with its data: what a subcommand does, written once for all models.

use std::{fmt::Write, fs, rc::Rc};

use burn::tensor::{Device, Int, Tensor};
use stovepipe::{
    pipeline::{Batch, CrossEntropy, Flow, Layer, Objective, Pipeline, TokenLogits},
    train::{RunFolder, Source, Task, TrainSettings, Trainer},
};
use stovepipe_chat::Example;
use stovepipe_report::Confusion;
use stovepipe_text::PADDING;
use stovepipe_transformer::Sampling;

use crate::{
    data::{
        AnyDataSet, Contents, HeldOut, ImageData, ImageSets, Labels, TextData, TextSamples, padded,
    },
    error::{CliError, usage},
    files,
    mistakes::MistakeFinder,
    models::{AnyModel, Classifier, LanguageModel, ModelWork, Sizes},
    output,
};

/// Tokens of the sample that a run of a language model ends with, and of its prompt.
const SAMPLE: usize = 300;
const PROMPT: usize = 64;

pub trait Work {
    type Done;

    fn on<L: Layer<Side = ()>, T: Flow>(
        self,
        model: ModelWithData<L, T>,
    ) -> Result<Self::Done, CliError>
    where
        CrossEntropy: Objective<L::Output, T>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// None: a model can be inspected without.
    Nothing,
    /// All, in a part to train on and a part to test with.
    Parts,
    /// All to test with.
    Whole,
}

pub struct ModelWithData<L: Layer<Side = ()>, T> {
    /// Nothing is allocated yet.
    pub layers: Vec<L>,
    /// A batch of so many samples, to measure layers with.
    pub sample: Box<dyn Fn(usize) -> L::Input>,
    /// Bytes of a sample.
    pub sample_bytes: u64,
    /// Bytes that a sample needs at least in the layer that needs most.
    pub sample_needs: u64,
    /// Its task, under the settings of a training.
    pub task: TaskOf,
    /// If the data were loaded.
    pub source: Option<SourceOf<L, T>>,
    /// How many training samples there are, or usually are.
    pub samples: usize,
    /// Files of a run besides its usual ones.
    pub files: Vec<(&'static str, Vec<u8>)>,
    /// What is done with a trained model.
    pub epilogue: Option<Epilogue<L>>,
    /// What a classifier takes for what in the test set.
    pub confusion: Option<ConfusionOf<L>>,
    /// How many answers to test with are exact, if there are any.
    pub answers: Option<AnswersOf<L>>,
}

pub type SourceOf<L, T> = Rc<dyn Source<<L as Layer>::Input, T>>;

impl<L: Layer<Side = ()>, T> ModelWithData<L, T> {
    /// The names of the classes, a line each, of a classifier.
    pub fn classes(&self) -> Option<String> {
        let mut files = self.files.iter();
        let (_, names) = files.find(|(name, _)| *name == files::CLASSES)?;
        Some(String::from_utf8_lossy(names).into_owned())
    }
}

/// Looks at a trained model and at most so many batches or tokens, writes files into the run's folder, and may return a text
/// to print.
pub type Epilogue<L> =
    Box<dyn Fn(&Trainer<L, CrossEntropy>, &RunFolder, usize) -> Result<Option<String>, CliError>>;

pub type TaskOf = Box<dyn Fn(&TrainSettings) -> Task<CrossEntropy>>;

/// Of a pipeline, in batches of so many: exact answers, and all.
pub type AnswersOf<L> = Rc<dyn Fn(&Pipeline<L>, usize) -> Result<(usize, usize), CliError>>;

/// Of a pipeline, in batches of so many samples.
pub type ConfusionOf<L> = Box<dyn Fn(&Pipeline<L>, usize) -> Result<Confusion, CliError>>;

/// Does work on a model, with its data if these are to be loaded.
pub fn with_model<W: Work>(
    (model, data): (&AnyModel, &AnyDataSet),
    (seed, micro_batches): (u64, usize),
    load: Load,
    work: W,
) -> Result<W::Done, CliError> {
    let samples = data.usual_samples();
    match data.contents() {
        Contents::Images(_) if load == Load::Whole => Err(usage!(
            "--all is for texts; of {}, only what training does not see is tested",
            data.name()
        )),
        Contents::Images(images) => {
            let sets = (load == Load::Parts).then(|| images.load(seed));
            let sets = sets.transpose()?;
            if let Some(sets) = &sets {
                output::say(&format!("{}\n", sets.about));
            }
            let classes = sets.as_ref().map(|sets| sets.classes.len());
            let classes = classes.unwrap_or_else(|| images.usual_classes());
            let sizes = Sizes::of_images(images.image_size(), classes);
            let on_images = OnImages {
                images,
                sample_needs: model.sample_needs(&sizes),
                sets,
                samples,
                work,
            };
            model.build(&sizes, on_images)
        }
        Contents::Text(text) => {
            let sizes = Sizes::of_text(text.tokenizer()?);
            let on_text = OnText {
                text,
                sample_needs: model.sample_needs(&sizes),
                shape: TextSamples {
                    length: model.window(),
                    seed,
                    micro_batches,
                },
                load,
                samples,
                work,
            };
            model.build(&sizes, on_text)
        }
    }
}

struct OnImages<'a, W> {
    images: &'a dyn ImageData,
    sample_needs: u64,
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
        let classes = (self.sets.as_ref()).map(|sets| sets.classes.len());
        let classes = classes.unwrap_or_else(|| self.images.usual_classes());
        let files = names.map(|names| (files::CLASSES, names.into_bytes()));
        let normalisation = self.images.view().normalisation;
        let finder = |sets| MistakeFinder {
            sets,
            normalisation,
        };
        let finder = self.sets.map(finder).map(Rc::new);
        self.work.on::<L, Labels>(ModelWithData {
            layers,
            sample: Box::new(move |n| Tensor::ones([n, 3, size, size], &Device::flex())),
            sample_bytes: (4 * 3 * size as u64).saturating_mul(size as u64),
            sample_needs: self.sample_needs,
            samples: (source.as_ref()).map_or(self.samples, |own| own.training_samples()),
            task: Box::new(move |settings| {
                let task = Task::classification(settings);
                match classes {
                    // They would always be right.
                    ..=5 => task.without_metric("top5"),
                    _ => task,
                }
            }),
            source,
            files: files.into_iter().collect(),
            epilogue: finder.clone().map(|finder| -> Epilogue<L> {
                Box::new(move |trainer, folder, most| {
                    let batch_size = trainer.settings().batch_size;
                    finder.write(trainer.pipeline(), (batch_size, most), folder)?;
                    Ok(None)
                })
            }),
            confusion: finder.map(|finder| -> ConfusionOf<L> {
                Box::new(move |pipeline, batch_size| {
                    Ok(finder.find(pipeline, (batch_size, usize::MAX))?.1)
                })
            }),
            answers: None,
        })
    }
}

struct OnText<'a, W> {
    text: &'a dyn TextData,
    sample_needs: u64,
    shape: TextSamples,
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
        let TextSamples { length, seed, .. } = self.shape;
        let texts = match self.load {
            Load::Nothing => None,
            Load::Parts => Some(self.text.load(self.shape)?),
            Load::Whole => Some(self.text.load_whole(self.shape)?),
        };
        if let Some(texts) = &texts {
            output::say(&format!("{}\n", texts.about));
        }
        let files = self.text.files().into_iter().map(|(name, path)| {
            let content = fs::read(&path).map_err(CliError::file(&path))?;
            Ok::<_, CliError>((name, content))
        });
        let files = files.collect::<Result<Vec<_>, _>>()?;
        let mut answers = None;
        let (source, held_out) = texts
            .map(|texts| {
                let examples = texts.answers;
                answers = (!examples.is_empty()).then(|| -> AnswersOf<L> {
                    Rc::new(move |pipeline, batch_size| exact(pipeline, &examples, batch_size))
                });
                (texts.source, texts.held_out)
            })
            .unzip();
        let held_out: Option<HeldOut> = held_out.flatten();
        let of_answers = answers.clone();
        let epilogue = move |trainer: &Trainer<L, CrossEntropy>, folder: &RunFolder, most| {
            if let Some(held_out) = &held_out {
                let limits = [PROMPT.min(length), SAMPLE.min(most)];
                return Ok(Some(remark(held_out, seed, (trainer, limits), folder)?));
            }
            let Some(answers) = &of_answers else {
                return Ok(None);
            };
            let (right, all) = answers(trainer.pipeline(), trainer.settings().batch_size)?;
            let text = format!("{}\n", exact_line(right, all));
            folder.write("remark.txt", text.as_bytes())?;
            Ok(Some(text))
        };
        self.work.on::<L, Tensor<2, Int>>(ModelWithData {
            layers,
            sample: Box::new(move |samples| Tensor::zeros([samples, length], &Device::flex())),
            sample_bytes: 4 * length as u64,
            sample_needs: self.sample_needs,
            samples: (source.as_ref()).map_or(self.samples, |own| own.training_samples()),
            task: Box::new(Task::language_model),
            source,
            files,
            epilogue: Some(Box::new(epilogue)),
            confusion: None,
            answers,
        })
    }
}

/// The perplexity of counting on the same text, and a sample that the model generates.
fn remark<L: LanguageModel>(
    held_out: &HeldOut,
    seed: u64,
    (trainer, [prompt, tokens]): (&Trainer<L, CrossEntropy>, [usize; 2]),
    folder: &RunFolder,
) -> Result<String, CliError> {
    let (yardstick, tokenizer) = (held_out.yardstick()?, &held_out.tokenizer);
    let prompt = held_out.prompt(prompt);
    let sampling = Sampling {
        temperature: 0.8,
        seed,
        ..Sampling::default()
    };
    let tokens = L::generate(trainer.pipeline(), prompt, tokens, &sampling, &mut |_| true)?;
    let mut text = format!("an interpolated 5-gram has perplexity {yardstick:.2} there\n");
    let (before, sample) = (tokenizer.decode(prompt)?, tokenizer.decode(&tokens)?);
    let _ = writeln!(text, "a sample, after \"{before}\":\n{sample}");
    folder.write("remark.txt", text.as_bytes())?;
    Ok(text)
}

/// How many examples a model answers exactly if it takes the most probable token each time, and how many
/// there are. That is so if each token of an answer is the most probable one after those before it, so one
/// forward pass shows it.
fn exact<L: LanguageModel>(
    pipeline: &Pipeline<L>,
    examples: &[Example],
    batch_size: usize,
) -> Result<(usize, usize), CliError> {
    let objective = Exact(CrossEntropy::new().ignoring(PADDING.into()).counting());
    let mut right = 0.0;
    for examples in examples.chunks(batch_size.max(1)) {
        // A micro-batch each. As in training, few logits are in memory at a time.
        let parts = examples
            .iter()
            .map(|example| padded(&[example], &Device::flex()));
        let batch = parts.map(Batch::from).reduce(Batch::and);
        let evaluation = batch
            .map(|batch| pipeline.evaluate(batch, &objective))
            .transpose()?;
        right += evaluation.map_or(0.0, |found| found.scores.iter().sum::<f64>());
    }
    Ok((right as usize, examples.len()))
}

/// Counts sequences whose tokens all are the most probable ones. Each micro-batch is one.
#[derive(Clone)]
struct Exact(CrossEntropy);

impl<O: TokenLogits> Objective<O, Tensor<2, Int>> for Exact {
    fn loss(&self, logits: O, target: Tensor<2, Int>) -> Tensor<1> {
        self.0.loss(logits, target)
    }

    fn weight(&self, target: &Tensor<2, Int>) -> f64 {
        Objective::<O, _>::weight(&self.0, target)
    }

    fn loss_and_scores(&self, logits: O, target: Tensor<2, Int>) -> (Tensor<1>, Option<Tensor<1>>) {
        let tokens = target.clone().not_equal_elem(PADDING).int().sum();
        let (loss, right) = self.0.loss_and_scores(logits, target);
        let is_exact = right.map(|right| right.slice(0..1).int().equal(tokens).int().float());
        (loss, is_exact)
    }
}

/// What is said of exact answers.
pub fn exact_line(right: usize, all: usize) -> String {
    let percent = 100.0 * right as f64 / all.max(1) as f64;
    format!("{right} of {all} answers are exact ({percent:.1} %)")
}
