//! Runs a U-Net without a pipeline, and compares results.
#![allow(dead_code, reason = "each test uses a part")]

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_pipeline::{Context, KeyedRng, Layer, LayerError};
use stovepipe_unet::UNetLayer;

pub type SkipChange = fn(Tensor<4>) -> Tensor<4>;

/// Runs the layers one after the other, with the random numbers of each layer by its index.
pub fn run(
    layers: &[UNetLayer],
    images: Tensor<4>,
    rng: impl Fn(usize) -> KeyedRng,
    change: SkipChange,
) -> Result<Tensor<4>, LayerError> {
    let mut x = UNetLayer::enter(images);
    let mut sent = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let mut context = Context::new(&(), true).with_rng(rng(index));
        for (name, value) in &sent {
            context = context.with_skip(name, Tensor::clone(value));
        }
        x = layer.forward(x, &mut context)?;
        let values = context.into_sent().into_iter();
        sent.extend(values.map(|(name, value)| (name, change(value))));
    }
    UNetLayer::leave(x)
}

pub fn unchanged(skip: Tensor<4>) -> Tensor<4> {
    skip
}

/// The gradient of every parameter, with the index of its layer, in order.
pub fn gradients_of(layers: &[UNetLayer], gradients: &GradientsParams) -> Vec<(usize, Vec<f32>)> {
    struct Find<'a>(&'a GradientsParams, Vec<Vec<f32>>);

    impl ModuleVisitor for Find<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.1.push(floats(self.0.get::<D>(param.id).unwrap()));
        }
    }

    let mut all = Vec::new();
    for (index, layer) in layers.iter().enumerate() {
        let mut find = Find(gradients, Vec::new());
        layer.visit(&mut find);
        all.extend(find.1.into_iter().map(|gradient| (index, gradient)));
    }
    all
}

pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_into_vec_as::<f32>().unwrap()
}

/// The norm of the difference over the norm. NaN if any value is NaN.
pub fn difference(ours: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(ours.len(), expected.len());
    let square = |x: f32| f64::from(x).powi(2);
    let apart: f64 = ours.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    (apart / expected.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}
