//! The models through stages next to Burn's own forward and backward pass of their `forward`.
#![allow(clippy::unwrap_used)]

use std::{error::Error, fs};

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::loss::{CrossEntropyLossConfig, MseLoss, Reduction},
    optim::GradientsParams,
    tensor::{Device, Distribution, Int, Tensor, Tolerance},
};
use burn_models::after::{guide, mnist, regression};
use stovepipe::{Flow, prelude::*};

/// Compares one to three stages with the model in one piece, which computed `outputs` in evaluation
/// and `loss` in training: both, and every gradient.
fn check<M, L, X, T>(
    model: &M,
    layers: Vec<L>,
    micro_batches: usize,
    (input, target): (X, T),
    outputs: &Tensor<2>,
    (loss, objective): (Tensor<1>, impl Objective<Tensor<2>, T>),
) -> Result<(), Box<dyn Error>>
where
    M: Module,
    X: Flow,
    T: Flow,
    L: Layer<Input = X, Output = Tensor<2>, Side = ()>,
{
    let expected_loss = f64::from(loss.clone().inner().into_scalar::<f32>());
    let expected = gradients(model, GradientsParams::from_grads(loss.backward(), model));
    for stages in 1..=layers.len().min(3) {
        let pipeline = Pipeline::builder(layers.clone())
            .devices(vec![Device::flex(); stages])
            .micro_batches(micro_batches)
            .recompute(Recompute::Never)
            .allow_unkeyed(true)
            .build()?;
        let found = pipeline.infer(input.clone())?.into_data();
        found.assert_approx_eq::<f32>(&outputs.to_data(), Tolerance::absolute(1e-5));

        let step = pipeline.train_step((input.clone(), target.clone()), &objective)?;
        assert!((step.loss - expected_loss).abs() < 1e-5);
        let found = gradients(model, step.gradients);
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(&expected) {
            let pairs = found.iter().zip(expected);
            let difference: f64 = pairs.map(|(a, b)| (a - b).powi(2)).sum();
            let norm: f64 = expected.iter().map(|b| b.powi(2)).sum();
            assert!(difference <= 1e-8 * norm + 1e-12, "{difference} of {norm}");
        }
    }
    Ok(())
}

/// The gradients of a model's parameters, in order.
fn gradients<M: Module>(model: &M, gradients: GradientsParams) -> Vec<Vec<f64>> {
    struct Collect(GradientsParams, Vec<Vec<f64>>);

    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.push(gradient.into_data().iter::<f64>().collect());
            }
        }
    }

    let mut collect = Collect(gradients, Vec::new());
    model.visit(&mut collect);
    collect.1
}

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    Tensor::random(shape, Distribution::Default, &Device::flex())
}

fn classes() -> Tensor<1, Int> {
    Tensor::from_ints([3, 1, 4, 1, 5, 9, 2, 6], &Device::flex())
}

fn cross_entropy(logits: Tensor<2>) -> Tensor<1> {
    let loss = CrossEntropyLossConfig::new().init(&logits.device());
    loss.forward(logits, classes().autodiff())
}

/// One micro-batch, since a batch norm normalizes each separately. No dropout, since Burn's random
/// numbers cannot be repeated.
#[test]
fn mnist_runs_in_stages() -> Result<(), Box<dyn Error>> {
    let model = mnist::Model::new(0.0, &Device::flex());
    let images = random([8, 28, 28]);
    let outputs = model.valid().forward(images.clone());
    let layers = model.clone().into_layers();
    let model = model.train();
    let loss = cross_entropy(model.forward(images.clone().autodiff()));
    let (batch, objective) = ((images, classes()), CrossEntropy::new());
    check(&model, layers, 1, batch, &outputs, (loss, objective))
}

#[test]
fn guide_runs_in_stages() -> Result<(), Box<dyn Error>> {
    let model = guide::Model::new(0.0, &Device::flex());
    let images = random([8, 28, 28]);
    let outputs = model.valid().forward(images.clone());
    let layers = model.clone().into_layers();
    let model = model.train();
    let loss = cross_entropy(model.forward(images.clone().autodiff()));
    let (batch, objective) = ((images, classes()), CrossEntropy::new());
    check(&model, layers, 4, batch, &outputs, (loss, objective))
}

#[test]
fn regression_runs_in_stages() -> Result<(), Box<dyn Error>> {
    let model = regression::Model::new(5, &Device::flex());
    let (features, values) = (random([8, 5]), random([8, 1]));
    let outputs = model.valid().forward(features.clone());
    let layers = model.clone().into_layers();
    let model = model.train();
    let predicted = model.forward(features.clone().autodiff());
    let loss = MseLoss::new().forward(predicted, values.clone().autodiff(), Reduction::Mean);
    let squared = MeanOf(|output: Tensor<2>, target: Tensor<2>| {
        MseLoss::new().forward(output, target, Reduction::Mean)
    });
    let batch = (features, values);
    check(&model, layers, 4, batch, &outputs, (loss, squared))
}

/// At most ten changed lines each, and none in `new` and `forward`.
#[test]
fn few_lines_change() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src");
    let read = |side, model| fs::read_to_string(format!("{source}/{side}/{model}.rs")).unwrap();
    for model in ["mnist", "guide", "regression"] {
        let [before, after] = ["before", "after"].map(|side| read(side, model));
        let mut rest = after.lines();
        let mut new = 0;
        for line in before.lines() {
            // The derive is the only line that changes; all others stay, in order.
            let same = |other: &&str| *other == line || other.replace(", Layers)", ")") == line;
            new += rest.by_ref().take_while(|other| !same(other)).count();
        }
        assert_eq!(rest.count(), 0);
        assert!(new < 10, "{new} new lines and the derive");
        let body = |text: &str| text.split_once("impl Model").unwrap().1.to_owned();
        assert_eq!(body(&before), body(&after));
    }
}
