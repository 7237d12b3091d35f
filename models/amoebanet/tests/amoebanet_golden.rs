//! The same numbers as PyTorch.
#![allow(clippy::unwrap_used)]

mod common;

use burn::{module::Module, nn::loss::CrossEntropyLossConfig, optim::GradientsParams};
use stovepipe_pipeline::Context;

use common::{
    difference, floats, gradients_of, largest_difference, load_golden, run, statistics_of,
};

const TOLERANCE: f64 = 1e-4;

#[test]
fn evaluation_agrees_with_pytorch() {
    let golden = load_golden();
    let layers = golden.layers.valid();
    let logits = run(&layers, golden.input.inner(), &mut Context::new(&(), false)).unwrap();
    let difference = difference(&floats(logits.into_data()), &golden.eval_logits);
    println!("logits {difference:.1e}");
    assert!(difference < TOLERANCE);
}

#[test]
fn a_training_step_agrees_with_pytorch() {
    let golden = load_golden();
    let device = golden.input.device();
    let logits = run(&golden.layers, golden.input, &mut Context::new(&(), true)).unwrap();
    let loss = CrossEntropyLossConfig::new()
        .init(&device)
        .forward(logits.clone(), golden.target);
    let gradients = GradientsParams::from_grads(loss.backward(), &golden.layers);

    let statistics = statistics_of(&golden.layers, &golden.statistics_before, 2);
    let differences = [
        (
            difference(&floats(logits.into_data()), &golden.train_logits),
            "logits".to_owned(),
        ),
        (
            difference(&floats(loss.into_data()), &golden.train_loss),
            "loss".to_owned(),
        ),
        largest_difference(&gradients_of(&golden.layers, &gradients), &golden.gradients),
        largest_difference(&statistics, &golden.statistics),
    ];
    for (difference, name) in differences {
        println!("{name} {difference:.1e}");
        assert!(difference < TOLERANCE, "{name} {difference:.1e}");
    }
}
