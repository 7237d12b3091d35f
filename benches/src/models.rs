//! The models that are measured.

use burn::{store::KeyRemapper, tensor::Device};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};

use crate::{
    arguments::{Arguments, ModelChoice},
    measured::Measured,
    recipe::{CLASSES, Recipe, Shape},
    transformer::{TransformerLayer, torch_keys},
};

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
