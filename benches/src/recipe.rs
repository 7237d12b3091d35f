//! How a measured model is made, its sizes, and batches for it.

use std::path::Path;

use burn::{
    store::KeyRemapper,
    tensor::{Device, Int, Tensor},
};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Layer, Pipeline},
    train::Weights,
};

use crate::{Failure, arguments::ModelChoice};

/// The number of classes of the labels. The Transformer's logits have at least as many.
pub const CLASSES: usize = 10;

/// A model whose output is logits `[n, classes]`.
pub trait Classifier: Layer<Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Output = Tensor<2>, Side = ()>> Classifier for L {}

/// How to make a model, and batches for it.
pub struct ModelRecipe<L: Layer> {
    pub shape: ModelShape,
    /// The samples of a micro-batch.
    pub samples: usize,
    pub(crate) make: fn(ModelShape) -> Result<Vec<L>, Failure>,
    pub(crate) input: fn(ModelShape, Tensor<2>) -> L::Input,
    pub(crate) keys: fn() -> Result<KeyRemapper, Failure>,
}

impl<L: Layer> ModelRecipe<L> {
    /// The same model in another size.
    pub fn with_size(&self, shape: ModelShape, samples: usize) -> Self {
        Self {
            shape,
            samples,
            ..*self
        }
    }

    pub fn layers(&self) -> Result<Vec<L>, Failure> {
        (self.make)(self.shape)
    }

    /// Layers with the weights that PyTorch's model was saved with.
    pub fn layers_from(&self, weights: &Path) -> Result<Vec<L>, Failure> {
        let builder = Pipeline::builder(self.layers()?).devices([Device::flex()]);
        let mut pipeline = builder.unkeyed_draws_nothing(true).build()?;
        let weights = Weights::open(weights)?.renamed(&(self.keys)()?)?;
        weights.load_into(&mut pipeline)?;
        Ok(pipeline.into_layers())
    }

    /// Inputs and labels of the first samples.
    pub fn batch(&self, samples: usize) -> (L::Input, Tensor<1, Int>) {
        self.batch_from(0, samples)
    }

    /// Inputs and labels of `samples` samples from the sample `first` on: waves whose length depends
    /// on the class, and whose phase on the sample. PyTorch's side makes the same.
    pub fn batch_from(&self, first: usize, samples: usize) -> (L::Input, Tensor<1, Int>) {
        let device = Device::flex();
        let count = |from, to| Tensor::<1, Int>::arange(from as i64..to as i64, &device);
        let numbers = count(first, first + samples);
        let labels = numbers.clone().remainder_scalar(CLASSES as i64);
        let places = count(0, self.shape.numbers()).float() * 0.37;
        let lengths = labels.clone().float() * 0.01 + 1.0;
        let phases = numbers.float() * 0.7;
        let column = |values: Tensor<1>| values.reshape([samples, 1]);
        let waves = places.unsqueeze::<2>() * column(lengths) + column(phases);
        ((self.input)(self.shape, waves.sin()), labels)
    }
}

impl<L: Layer> Clone for ModelRecipe<L> {
    fn clone(&self) -> Self {
        self.with_size(self.shape, self.samples)
    }
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ModelShape {
    /// AmoebaNet-D(layers, filters) for images of `side`×`side`.
    Amoebanet {
        /// Normal cells.
        layers: usize,
        /// D.
        filters: usize,
        side: usize,
        /// Whether the stem is the one for large images.
        large: bool,
    },
    /// Equal layers of width `d` on sequences of `length`.
    Transformer {
        layers: usize,
        d: usize,
        heads: usize,
        length: usize,
    },
}

impl ModelShape {
    pub const fn amoebanet(layers: usize, filters: usize, side: usize, large: bool) -> Self {
        Self::Amoebanet {
            layers,
            filters,
            side,
            large,
        }
    }

    pub const fn transformer(layers: usize, d: usize, heads: usize, length: usize) -> Self {
        Self::Transformer {
            layers,
            d,
            heads,
            length,
        }
    }

    pub fn is_amoebanet(self) -> bool {
        matches!(self, Self::Amoebanet { .. })
    }

    pub fn is_chosen(self, choice: ModelChoice) -> bool {
        choice.includes(match self {
            Self::Amoebanet { large: false, .. } => ModelChoice::Amoebanet32,
            Self::Amoebanet { large: true, .. } => ModelChoice::Amoebanet224,
            Self::Transformer { .. } => ModelChoice::Transformer,
        })
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Amoebanet { large: false, .. } => "amoebanet-32",
            Self::Amoebanet { large: true, .. } => "amoebanet-224",
            Self::Transformer { .. } => "transformer",
        }
    }

    /// The number of values in a sample.
    pub fn numbers(self) -> usize {
        match self {
            Self::Amoebanet { side, .. } => 3 * side * side,
            Self::Transformer { d, length, .. } => d * length,
        }
    }

    /// Height and width of images, or the length of sequences.
    pub fn extent(self) -> usize {
        match self {
            Self::Amoebanet { side, .. } => side,
            Self::Transformer { length, .. } => length,
        }
    }

    pub fn width(self) -> usize {
        match self {
            Self::Amoebanet { filters, .. } => filters,
            Self::Transformer { d, .. } => d,
        }
    }

    /// The same on the smallest images or sequences that still give each layer a pixel or a token.
    pub fn smallest(mut self) -> Self {
        match &mut self {
            Self::Amoebanet { side, large, .. } => *side = if *large { 32 } else { 8 },
            Self::Transformer { length, .. } => *length = 1,
        }
        self
    }

    /// The sizes in words.
    pub fn describe(self) -> String {
        match self {
            Self::Amoebanet {
                layers,
                filters,
                side,
                large,
            } => {
                let stem = if large { "large" } else { "small" };
                format!("AmoebaNet-D ({layers}, {filters}), {side}×{side}, {stem} stem")
            }
            Self::Transformer {
                layers,
                d,
                heads,
                length,
            } => format!("{layers} Transformer layers, d {d}, {heads} heads, length {length}"),
        }
    }
}
