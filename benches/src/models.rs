//! What is measured.

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
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};

use crate::{
    Failure,
    arguments::{Arguments, ModelChoice},
    measured::Measured,
    transformer::{TransformerLayer, torch_keys},
};

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
    make: fn(Shape) -> Result<Vec<L>, Failure>,
    input: fn(Shape, Tensor<2>) -> L::Input,
    keys: fn() -> Result<KeyRemapper, Failure>,
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
        let mut pipeline = builder.allow_unkeyed(true).build()?;
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

/// The model that has this shape, with so many samples a micro-batch.
#[must_use]
pub fn model(shape: Shape, samples: usize) -> Box<dyn Measured> {
    match shape {
        Shape::Amoebanet { .. } => Box::new(amoebanet_d(shape, samples)),
        Shape::Transformer { .. } => Box::new(transformer(shape, samples)),
    }
}

/// The models that were chosen. AmoebaNet-D for large images has `filters` filters.
#[must_use]
pub fn models(arguments: &Arguments, filters: usize) -> Vec<Box<dyn Measured>> {
    let pick = |usual, small| if arguments.quick { small } else { usual };
    let samples = |usual| arguments.samples.unwrap_or(pick(usual, 1)).max(1);
    let amoebanet = |filters, side, large| Shape::Amoebanet {
        layers: 3,
        filters: pick(filters, 4),
        side,
        large,
    };
    let mut models: Vec<Box<dyn Measured>> = Vec::new();
    if arguments.model.includes(ModelChoice::Amoebanet32) {
        let filters = arguments.small_filters.unwrap_or(16);
        let shape = amoebanet(filters, pick(32, 8), false);
        models.push(model(shape, samples(16)));
    }
    if arguments.model.includes(ModelChoice::Amoebanet224) {
        let shape = amoebanet(filters, pick(224, 32), true);
        models.push(model(shape, samples(4)));
    }
    if arguments.model.includes(ModelChoice::Transformer) {
        let shape = Shape::Transformer {
            layers: pick(8, 4),
            d: pick(128, 16),
            heads: pick(4, 2),
            length: pick(64, 4),
        };
        models.push(model(shape, samples(8)));
    }
    models
}

fn amoebanet_d(shape: Shape, samples: usize) -> Recipe<AmoebaLayer> {
    Recipe {
        name: shape.name(),
        shape,
        samples,
        make: |shape| match shape {
            Shape::Amoebanet {
                layers,
                filters,
                large,
                ..
            } => {
                let stem = if large { Stem::ImageNet } else { Stem::Small };
                let config = AmoebaNetDConfig::new(layers, filters, CLASSES).with_stem(stem);
                Ok(config.init(&Device::flex())?)
            }
            Shape::Transformer { .. } => Err("not the shape of an AmoebaNet".into()),
        },
        input: |shape, waves| {
            let side = shape.extent();
            waves.reshape([-1, 3, side as i32, side as i32])
        },
        keys: || Ok(KeyRemapper::new()), // the peer's names are ours
    }
}

fn transformer(shape: Shape, samples: usize) -> Recipe<TransformerLayer> {
    Recipe {
        name: shape.name(),
        shape,
        samples,
        make: |shape| match shape {
            Shape::Transformer {
                layers, d, heads, ..
            } => {
                let layer = || TransformerLayer::new(d, heads, &Device::flex());
                (0..layers).map(|_| layer()).collect()
            }
            Shape::Amoebanet { .. } => Err("not the shape of a Transformer".into()),
        },
        input: |shape, waves| {
            let (length, width) = (shape.extent(), shape.width());
            waves.reshape([-1, length as i32, width as i32])
        },
        keys: torch_keys,
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
