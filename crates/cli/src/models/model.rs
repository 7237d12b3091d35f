//! What the program knows about a model.

use std::path::Path;

use burn::{
    store::KeyRemapper,
    tensor::{Int, Tensor},
};
use stovepipe::{
    pipeline::{Layer, Pipeline, TokenLogits},
    train::{TrainError, TrainSettings, Weights, weights::NameAndShape},
};
use stovepipe_decoder::{DecoderConfig, LoraConfig};
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
    pub tokenizer: Tokenizer,
}

impl Sizes {
    pub fn of_images(image: usize, classes: usize) -> Self {
        Self {
            image,
            classes,
            tokenizer: Tokenizer::bytes(),
        }
    }

    pub fn of_text(tokenizer: Tokenizer) -> Self {
        Self {
            tokenizer,
            ..Self::of_images(1, 1)
        }
    }
}

/// Where a model's weights come from.
pub enum Origin<'a> {
    /// A folder of the Hugging Face Hub.
    Folder(&'a Path),
    /// A run of this program, with the tokens that its model saw at once.
    Run { hub: Hub, window: usize },
}

/// A model, and its adapter if it has one, as folders of the Hugging Face Hub describe them.
pub struct Hub {
    pub config: DecoderConfig,
    pub lora: Option<LoraConfig>,
}

/// Bytes that a value of so many floats needs, forward and backward: the value, what is made of it, and its gradient.
pub fn needs(floats: impl IntoIterator<Item = usize>) -> u64 {
    let bytes = |all: u64, next: usize| all.saturating_mul(next as u64);
    floats.into_iter().fold(3 * 4, bytes)
}

/// Everything that the program knows about a model, besides its settings.
pub trait Model: Configurable {
    fn reads(&self) -> Reads {
        Reads::Images
    }

    /// Whether `train` can train it; else it is for `verify` alone.
    fn is_trained(&self) -> bool {
        true
    }

    fn training(&self) -> TrainSettings {
        TrainSettings::default()
    }

    /// Fills in the settings that follow from others, for images of so many pixels a side.
    fn settle(&mut self, _image: usize) {}

    /// Sets how many tokens a language model knows, if its settings do not.
    fn set_vocabulary(&mut self, _tokens: usize) {}

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

    /// Fills in the settings that follow from the weights that it starts from. Returns the flags that may
    /// not be given then.
    fn adopt(&mut self, _origin: Origin<'_>) -> Result<&'static [&'static str], CliError> {
        Ok(&[])
    }

    /// Reads what the adapter is that it starts from, if it does.
    fn adopt_adapter(&mut self) -> Result<(), CliError> {
        Ok(())
    }

    /// Makes the paths among the settings absolute.
    fn locate(&mut self) {}

    /// The folder of that adapter.
    fn adapter(&self) -> Option<&Path> {
        None
    }

    /// Whether an adapter is trained, and all else stays as it is.
    fn has_frozen_base(&self) -> bool {
        false
    }

    /// Whether its frozen weights are in bf16.
    fn has_bf16(&self) -> bool {
        false
    }

    /// Has its frozen weights in f16, or in f32.
    fn avoid_bf16(&mut self, _has_f16: bool) {}

    /// Which tensors the weights that it starts from may lack.
    fn may_lack(&self) -> Box<dyn Fn(&str) -> bool> {
        Box::new(|_| false)
    }

    /// Two tensors that a file must give the same numbers, if it has both.
    fn twins(&self) -> Option<[String; 2]> {
        None
    }

    /// What its folder of the Hugging Face Hub says of it.
    fn hub(&self) -> Option<Hub> {
        None
    }

    /// Converts weights for images of another size to images of this one. Returns whether it did.
    fn resize(&self, _image: usize, _weights: &mut Weights) -> Result<bool, TrainError> {
        Ok(false)
    }

    /// Gives tensors in PyTorch's layout the names and shapes of that framework's model, if there is one.
    fn name_elsewhere(&self, _image: usize, _tensors: &mut [NameAndShape]) {}

    /// Bytes that a sample needs at least in the layer that needs most, forward and backward, if that may be far
    /// more than the sample itself has.
    fn sample_needs(&self, _: &Sizes) -> u64 {
        0
    }

    /// Small settings, in which everything that could go wrong is used.
    fn to_verify() -> Self
    where
        Self: Default,
    {
        Self::default()
    }

    /// Small settings to compare devices with.
    fn to_compare() -> Self
    where
        Self: Default,
    {
        Self::to_verify()
    }

    /// Makes the layers, with nothing allocated, and does the work on them.
    fn build<W: ModelWork>(&self, sizes: &Sizes, work: W) -> Result<W::Done, CliError>
    where
        Self: Sized;
}

pub trait Classifier: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Input = Tensor<4>, Output = Tensor<2>, Side = ()>> Classifier for L {}

/// Layers that predict the next token of each.
pub trait LanguageModel: Layer<Input = Tensor<2, Int>, Output: TokenLogits, Side = ()> {
    fn generate(
        pipeline: &Pipeline<Self>,
        prompt: &[u32],
        tokens: usize,
        sampling: &Sampling,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<Vec<u32>, CliError>;

    /// What an adapter adds to the weight of a layer's linear layer, if it has one.
    fn delta(&self, _linear: &str) -> Option<Tensor<2>> {
        None
    }
}

pub trait Segmenter: Layer<Input = Tensor<4>, Output = Tensor<4>, Side = ()> {}

impl<L: Layer<Input = Tensor<4>, Output = Tensor<4>, Side = ()>> Segmenter for L {}

/// What is done with a model, by what the model is for.
pub trait ModelWork: Sized {
    type Done;

    fn classify<L: Classifier>(self, layers: Vec<L>) -> Result<Self::Done, CliError>;

    fn predict_text<L: LanguageModel>(self, _: Vec<L>) -> Result<Self::Done, CliError> {
        Err(CliError::NotOfText)
    }

    fn segment<L: Segmenter>(self, _: Vec<L>) -> Result<Self::Done, CliError> {
        Err(CliError::NotTrained)
    }
}
