//! How a model to measure is made, and batches for it.

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

use crate::Failure;

/// Classes that labels name. The Transformer's logits have at least as many.
pub const CLASSES: usize = 10;

/// How to make a model, and batches for it.
pub struct Recipe<L: Layer> {
    /// What tables and flags call it.
    pub name: &'static str,
    /// Its sizes.
    pub shape: Shape,
    /// The samples of a micro-batch.
    pub samples: usize,
    pub(crate) make: fn(Shape) -> Result<Vec<L>, Failure>,
    pub(crate) input: fn(Shape, Tensor<2>) -> L::Input,
    pub(crate) keys: fn() -> Result<KeyRemapper, Failure>,
}

impl<L: Layer> Recipe<L> {
    /// The same in another size.
    #[must_use]
    pub fn with_size(&self, shape: Shape, samples: usize) -> Self {
        Self {
            shape,
            samples,
            ..*self
        }
    }

    /// Layers with parameters of their own.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    pub fn layers(&self) -> Result<Vec<L>, Failure> {
        (self.make)(self.shape)
    }

    /// The same layers with weights that PyTorch's model was saved with.
    ///
    /// # Errors
    ///
    /// If there is no such file, or it is of another model.
    pub fn layers_from(&self, weights: &Path) -> Result<Vec<L>, Failure> {
        let builder = Pipeline::builder(self.layers()?).devices([Device::flex()]);
        let mut pipeline = builder.unkeyed_draws_nothing(true).build()?;
        let weights = Weights::open(weights)?.renamed(&(self.keys)()?)?;
        weights.load_into(&mut pipeline)?;
        Ok(pipeline.into_layers())
    }

    /// Inputs and labels of so many samples.
    #[must_use]
    pub fn batch(&self, samples: usize) -> (L::Input, Tensor<1, Int>) {
        self.batch_from(0, samples)
    }

    /// Inputs and labels of so many samples from the sample `first` on: waves whose length is their
    /// class's, each sample's begun elsewhere. PyTorch's side makes the same.
    #[must_use]
    pub fn batch_from(&self, first: usize, samples: usize) -> (L::Input, Tensor<1, Int>) {
        let device = Device::flex();
        let count = |from: usize, to: usize| {
            Tensor::<1, Int>::arange(from as i64..to as i64, &device) //
        };
        let numbers = count(first, first + samples);
        let labels = numbers.clone().remainder_scalar(CLASSES as i64);
        let places = count(0, self.shape.numbers()).float() * 0.37;
        let lengths = labels.clone().float() * 0.01 + 1.0;
        let begins = numbers.float() * 0.7;
        let column = |values: Tensor<1>| values.reshape([samples, 1]);
        let waves = places.unsqueeze::<2>() * column(lengths) + column(begins);
        ((self.input)(self.shape, waves.sin()), labels)
    }
}

impl<L: Layer> Clone for Recipe<L> {
    fn clone(&self) -> Self {
        self.with_size(self.shape, self.samples)
    }
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// AmoebaNet-D(layers, filters) for images of `side`×`side`.
    Amoebanet {
        /// Normal cells.
        layers: usize,
        /// D.
        filters: usize,
        /// Height and width of images.
        side: usize,
        /// Whether the stem is the one for large images.
        large: bool,
    },
    /// Equal layers of width `d` on sequences of `length`.
    Transformer {
        /// Layers.
        layers: usize,
        /// Width.
        d: usize,
        /// Attention heads.
        heads: usize,
        /// Length of sequences.
        length: usize,
    },
}

impl Shape {
    /// What tables and flags call the model.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amoebanet { large: false, .. } => "amoebanet-32",
            Self::Amoebanet { large: true, .. } => "amoebanet-224",
            Self::Transformer { .. } => "transformer",
        }
    }

    /// The numbers that a sample consists of.
    #[must_use]
    pub fn numbers(self) -> usize {
        match self {
            Self::Amoebanet { side, .. } => 3 * side * side,
            Self::Transformer { d, length, .. } => d * length,
        }
    }

    /// Height and width of images, or the length of sequences.
    #[must_use]
    pub fn extent(self) -> usize {
        match self {
            Self::Amoebanet { side, .. } => side,
            Self::Transformer { length, .. } => length,
        }
    }

    /// D or d.
    #[must_use]
    pub fn width(self) -> usize {
        match self {
            Self::Amoebanet { filters, .. } => filters,
            Self::Transformer { d, .. } => d,
        }
    }

    /// The same on the least images or sequences that still give each layer a pixel or a token.
    #[must_use]
    pub fn least(mut self) -> Self {
        match &mut self {
            Self::Amoebanet { side, large, .. } => *side = if *large { 32 } else { 8 },
            Self::Transformer { length, .. } => *length = 1,
        }
        self
    }

    /// The sizes in words.
    #[must_use]
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
