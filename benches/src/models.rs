//! The models that are measured.

use burn::{store::KeyRemapper, tensor::Device};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};
use stovepipe_transformer::BlockConfig;

use crate::{
    arguments::Arguments,
    bench_model::BenchModel,
    recipe::{CLASSES, ModelRecipe, ModelShape},
    transformer::{TransformerLayer, torch_keys},
};

/// The model of this shape, with `samples` samples in a micro-batch.
pub fn model(shape: ModelShape, samples: usize) -> Box<dyn BenchModel> {
    match shape {
        ModelShape::Amoebanet { .. } => Box::new(amoebanet_d(shape, samples)),
        ModelShape::Transformer { .. } => Box::new(transformer(shape, samples)),
    }
}

/// The chosen models. AmoebaNet-D for large images has `filters` filters.
pub fn models(arguments: &Arguments, filters: usize) -> Vec<Box<dyn BenchModel>> {
    let pick = |usual, small| if arguments.quick { small } else { usual };
    let small_filters = pick(arguments.small_filters.unwrap_or(16), 4);
    let small = ModelShape::amoebanet(3, small_filters, pick(32, 8), false);
    let large = ModelShape::amoebanet(3, pick(filters, 4), pick(224, 32), true);
    let transformer = ModelShape::transformer(pick(8, 4), pick(128, 16), pick(4, 2), pick(64, 4));
    let models = [(small, 16), (large, 4), (transformer, 8)];
    let chosen = (models.into_iter()).filter(|(shape, _)| shape.is_chosen(arguments.model));
    let made = chosen.map(|(shape, samples)| {
        let samples = arguments.samples.unwrap_or(pick(samples, 1));
        model(shape, samples.max(1))
    });
    made.collect()
}

fn amoebanet_d(shape: ModelShape, samples: usize) -> ModelRecipe<AmoebaLayer> {
    ModelRecipe {
        shape,
        samples,
        make: |shape| match shape {
            ModelShape::Amoebanet {
                layers,
                filters,
                large,
                ..
            } => {
                let stem = if large { Stem::ImageNet } else { Stem::Small };
                let config = AmoebaNetDConfig::new(layers, filters, CLASSES).with_stem(stem);
                Ok(config.init(&Device::flex())?)
            }
            ModelShape::Transformer { .. } => Err("not the shape of an AmoebaNet".into()),
        },
        input: |shape, waves| {
            let side = shape.extent();
            waves.reshape([-1, 3, side as i32, side as i32])
        },
        keys: || Ok(KeyRemapper::new()), // PyTorch's side has our names
    }
}

fn transformer(shape: ModelShape, samples: usize) -> ModelRecipe<TransformerLayer> {
    ModelRecipe {
        shape,
        samples,
        make: |shape| match shape {
            ModelShape::Transformer {
                layers, d, heads, ..
            } => {
                let config = BlockConfig::new(d, heads);
                let layer = || TransformerLayer::new(&config, &Device::flex());
                (0..layers).map(|_| layer()).collect()
            }
            ModelShape::Amoebanet { .. } => Err("not the shape of a Transformer".into()),
        },
        input: |shape, waves| {
            let (length, width) = (shape.extent(), shape.width());
            waves.reshape([-1, length as i32, width as i32])
        },
        keys: torch_keys,
    }
}
