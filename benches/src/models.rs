//! What is measured.

use burn::tensor::{Device, Int, Tensor};
use serde::Serialize;
use stovepipe::pipeline::Layer;
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};

use crate::{
    Failure,
    arguments::{Arguments, ModelChoice},
    measured::Measured,
    transformer::TransformerLayer,
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
    input: fn(Shape, usize) -> L::Input,
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

    /// Inputs and labels of so many samples.
    #[must_use]
    pub fn batch(&self, samples: usize) -> (L::Input, Tensor<1, Int>) {
        let labels = Tensor::<1, Int>::arange(0..samples as i64, &Device::flex());
        let labels = labels.remainder_scalar(CLASSES as i64);
        ((self.input)(self.shape, samples), labels)
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
        models.push(Box::new(amoebanet_d("amoebanet-32", shape, samples(16))));
    }
    if arguments.model.includes(ModelChoice::Amoebanet224) {
        let shape = amoebanet(filters, pick(224, 32), true);
        models.push(Box::new(amoebanet_d("amoebanet-224", shape, samples(4))));
    }
    if arguments.model.includes(ModelChoice::Transformer) {
        let shape = Shape::Transformer {
            layers: pick(8, 4),
            d: pick(128, 16),
            heads: pick(4, 2),
            length: pick(64, 4),
        };
        models.push(Box::new(transformer("transformer", shape, samples(8))));
    }
    models
}

fn amoebanet_d(name: &'static str, shape: Shape, samples: usize) -> Recipe<AmoebaLayer> {
    Recipe {
        name,
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
        input: |shape, samples| {
            let side = shape.extent();
            waves(samples * 3 * side * side).reshape([samples, 3, side, side])
        },
    }
}

fn transformer(name: &'static str, shape: Shape, samples: usize) -> Recipe<TransformerLayer> {
    Recipe {
        name,
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
        input: |shape, samples| {
            let (length, width) = (shape.extent(), shape.width());
            waves(samples * length * width).reshape([samples, length, width])
        },
    }
}

/// Values that look like data and are the same in every run.
fn waves(length: usize) -> Tensor<1> {
    let places = Tensor::<1, Int>::arange(0..length as i64, &Device::flex());
    (places.float() * 0.37).sin()
}

/// The sizes of a model.
#[derive(Clone, Copy, Debug, Serialize)]
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
