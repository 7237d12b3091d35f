//! The same results as PyTorch, on one device and in a pipeline.

use burn::{
    module::Module, nn::loss::CrossEntropyLossConfig, optim::GradientsParams, tensor::Device,
};
use stovepipe_pipeline::{Balance, Batch, Context, CrossEntropy, Pipeline, Recompute};

use crate::common::{
    AMOEBANET_B, AMOEBANET_D, Golden, Kink, Member, difference, floats, gradients_of,
    largest_difference, run, statistics_of,
};

const TOLERANCE: f64 = 1e-4;
const MEMBERS: [&Member; 2] = [&AMOEBANET_D, &AMOEBANET_B];

/// What was compared, and the norm of the difference over the norm.
type Differences = Vec<(f64, String)>;

#[test]
fn evaluation_agrees_with_pytorch() {
    for member in MEMBERS {
        let golden = member.load(Kink::Leave);
        let layers = golden.layers.valid();
        let mut context = Context::new(&(), false);
        let logits = run(&layers, golden.input.inner(), &mut context).unwrap();
        let difference = difference(&floats(logits.into_data()), &golden.eval_logits);
        println!("{}: logits {difference:.1e}", member.name);
        assert!(difference < TOLERANCE, "{}", member.name);
    }
}

#[test]
fn a_training_step_agrees_with_pytorch() {
    for member in MEMBERS {
        check(member, "in one piece", plain_step);
    }
}

#[test]
fn a_training_step_through_three_stages_agrees_with_pytorch() {
    for member in MEMBERS {
        for recompute in [Recompute::Always, Recompute::Never] {
            check(member, &format!("three stages, {recompute}"), |golden| {
                pipelined_step(golden, recompute.clone())
            });
        }
    }
}

/// Compares a training step. If the machine rounds a kink to the other side, repeats it without the
/// kink.
fn check(member: &'static Member, name: &str, step: impl Fn(Golden) -> Differences) {
    let name = format!("{}, {name}", member.name);
    let agrees = |all: &Differences| all.iter().all(|(apart, _)| *apart < TOLERANCE);
    let mut differences = step(member.load(Kink::Leave));
    if !agrees(&differences) && member.has_kink() {
        println!("{name}: not with the kink, {differences:?}");
        differences = step(member.load(Kink::Avoid));
    }
    println!("{name}: {differences:?}");
    assert!(agrees(&differences), "{name}: {differences:?}");
}

/// One forward and one backward pass with Burn alone.
fn plain_step(golden: Golden) -> Differences {
    let device = golden.input.device();
    let logits = run(&golden.layers, golden.input, &mut Context::new(&(), true)).unwrap();
    let loss = CrossEntropyLossConfig::new().init(&device);
    let loss = loss.forward(logits.clone(), golden.target);
    let gradients = GradientsParams::from_grads(loss.backward(), &golden.layers);
    let before = &golden.statistics_before;
    let statistics = statistics_of(golden.member, &golden.layers, before, 2);
    let (logits, loss) = (floats(logits.into_data()), floats(loss.into_data()));
    let of_logits = difference(&logits, &golden.train_logits);
    vec![
        (of_logits, "logits".to_owned()),
        (difference(&loss, &golden.train_loss), "loss".to_owned()),
        largest_difference(&gradients_of(&golden.layers, &gradients), &golden.gradients),
        largest_difference(&statistics, &golden.statistics),
    ]
}

/// The same in a pipeline. One micro-batch, since PyTorch normalizes over both images.
fn pipelined_step(golden: Golden, recompute: Recompute) -> Differences {
    let builder = Pipeline::builder(golden.layers).devices(vec![Device::flex(); 3]);
    let builder = builder
        .balance(Balance::Layers(vec![2, 3, 4]))
        .micro_batches(1);
    let pipeline = builder.recompute(recompute).build().unwrap();
    let batch = Batch::new(golden.input.inner(), golden.target.inner());
    let step = pipeline.train_step(batch.keep_outputs(), &CrossEntropy::new());
    let step = step.unwrap();
    let layers = pipeline.layers();
    let before = &golden.statistics_before;
    let statistics = statistics_of(golden.member, layers, before, 2);
    let logits = floats(step.outputs.unwrap().into_data());
    let of_logits = difference(&logits, &golden.train_logits);
    let loss = [step.loss as f32];
    vec![
        (of_logits, "logits".to_owned()),
        (difference(&loss, &golden.train_loss), "loss".to_owned()),
        largest_difference(&gradients_of(layers, &step.gradients), &golden.gradients),
        largest_difference(&statistics, &golden.statistics),
    ]
}
