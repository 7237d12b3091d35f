//! What the program knows about a model.

use burn::{
    store::KeyRemapper,
    tensor::{Int, Tensor},
};
use stovepipe::{
    pipeline::{Layer, Pipeline},
    train::TrainSettings,
};
use stovepipe_text::Tokenizer;
use stovepipe_transformer::Sampling;

use crate::{choice::Configurable, error::CliError, pretrained::Head};

/// What a model learns from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    Images,
    Text,
}

/// What a model has to know of the data.
pub struct Sizes {
    /// Pixels on each side of an image.
    pub image: usize,
    pub classes: usize,
    /// What makes tokens of a text.
    pub tokenizer: Tokenizer,
}

impl Sizes {
    pub fn of_images(image: usize, classes: usize) -> Self {
        let tokenizer = Tokenizer::bytes();
        Self {
            image,
            classes,
            tokenizer,
        }
    }

    pub fn of_text(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            ..Self::of_images(1, 1)
        }
    }
}

/// Everything that the program knows about a model, besides its settings.
pub trait Model: Configurable {
    /// What it learns from.
    fn reads(&self) -> Reads {
        Reads::Images
    }

    /// Whether `train` can train it; else it is for `verify` alone.
    fn is_trained(&self) -> bool {
        true
    }

    /// The usual settings of its training.
    fn training(&self) -> TrainSettings {
        TrainSettings::default()
    }

    /// Fills in the settings that follow from others, for images of so many pixels a side.
    fn settle(&mut self, image: usize) {
        let _ = image;
    }

    /// Sets how many tokens a language model knows, if its settings do not.
    fn set_vocabulary(&mut self, tokens: usize) {
        let _ = tokens;
    }

    /// Tokens that a language model sees at once.
    fn window(&self) -> usize {
        1
    }

    /// The head of a classifier: its tensors have the size of the classes.
    fn head(&self) -> Option<Head> {
        None
    }

    /// What other frameworks call its tensors, if that is known.
    fn names_elsewhere(&self) -> Option<KeyRemapper> {
        None
    }

    /// Small settings, in which everything that could go wrong is used.
    fn to_verify() -> Self
    where
        Self: Default,
    {
        Self::default()
    }

    /// Makes the layers, with nothing allocated, and does the work on them.
    fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError>
    where
        Self: Sized;
}

/// Layers that classify images.
pub trait Classifier: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>> Classifier for L {}

/// Layers that predict the next token of each.
pub trait LanguageModel: Layer<Input = Tensor<2, Int>, Output = Tensor<3>, Side = ()> {
    /// Continues a text by so many tokens.
    fn generate(
        pipeline: &Pipeline<Self>,
        prompt: &[u32],
        tokens: usize,
        sampling: &Sampling,
    ) -> Result<Vec<u32>, CliError>;
}

/// Layers that label each pixel.
pub trait Segmenter: Layer<Input = Tensor<4>, Output = Tensor<4>, Side = ()> {}

impl<L: Layer<Input = Tensor<4>, Output = Tensor<4>, Side = ()>> Segmenter for L {}

/// What is done with a model, by what the model is for.
pub trait ModelWork: Sized {
    /// The result.
    type Done;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<Self::Done, CliError>;

    fn predict_text<L: LanguageModel>(self, layers: Vec<L>) -> Result<Self::Done, CliError> {
        drop(layers);
        Err(CliError::NotOfText)
    }

    fn segment<L: Segmenter>(self, layers: Vec<L>) -> Result<Self::Done, CliError> {
        drop(layers);
        Err(CliError::NotTrained)
    }
}
