//! Backward passes of several threads at once. Run these tests again at each upgrade of Burn.
//!
//! At the end of a backward pass, Burn frees the parts of all graphs that nothing uses any more. In
//! tracel-ai/burn#5573, it took a part for unused that another thread was about to use: the input of an
//! operation that was moved into it, while the operation ran. A leaf that had been through a backward pass
//! made that possible, since the next operation on it begins a graph of its own. Then the leaf had no
//! gradient, or a part of it, and there was no error. Since 0.22.0, Burn panics where a part is missing.
//!
//! The engine does all of this: it uses copies of the parameters for one micro-batch after another, and
//! workers run backward at the same time. Burn keeps inputs until the operation is recorded (`NodeGuard`);
//! operations of our own must do so, too. The first test fails if `float_cat` of burn-autodiff drops its
//! guards before it runs.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use burn::{
    module::{ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use stovepipe_amoebanet::{AmoebaNetDConfig, Stem};
use stovepipe_pipeline::{Batch, CrossEntropy, Flow, Layer, Objective, Pipeline};
use stovepipe_transformer::LmConfig;

use crate::palette::{cpu, labels, pattern};

const THREADS: usize = 4;
/// Large, since an operation takes longer then.
const WIDTH: usize = 256;
const ROUNDS: usize = 400;
const STEPS: usize = 30;

/// What is wrong with the gradient of a leaf that is used a second time, by values that are moved.
fn fault_of_reused_leaf(values: &Tensor<2>) -> Option<String> {
    let leaf = values.clone().autodiff().require_grad();
    let _ = leaf.clone().mul_scalar(7.0).sum().backward();
    let moved = vec![leaf.clone().mul_scalar(2.0), leaf.clone().mul_scalar(3.0)];
    let gradients = Tensor::cat(moved, 0).sum().backward();
    let Some(gradient) = leaf.grad(&gradients) else {
        return Some("no gradient".to_owned());
    };
    let numbers = gradient.into_data();
    let mut wrong = numbers.iter::<f32>().filter(|&number| number != 5.0);
    wrong.next().map(|number| format!("{number} instead of 5"))
}

#[test]
fn concurrent_backward_passes_lose_no_gradient() {
    let values = pattern([WIDTH, WIDTH]);
    let done = AtomicBool::new(false);
    let faults: Vec<_> = thread::scope(|scope| {
        // These only free what is unused.
        for _ in 0..THREADS {
            scope.spawn(|| {
                let small = pattern([2, 2]);
                while !done.load(Ordering::Relaxed) {
                    let leaf = small.clone().autodiff().require_grad();
                    let _ = leaf.mul_scalar(2.0).sum().backward();
                }
            });
        }
        let rounds = || {
            (0..ROUNDS)
                .filter_map(|_| fault_of_reused_leaf(&values))
                .collect()
        };
        let threads: Vec<_> = [(); THREADS].map(|()| scope.spawn(rounds)).into();
        let joined: Vec<_> = threads.into_iter().map(|own| own.join()).collect();
        done.store(true, Ordering::Relaxed);
        let panicked = |_| vec!["a panic".to_owned()];
        let of_threads = joined.into_iter();
        of_threads
            .flat_map(|own| own.unwrap_or_else(panicked))
            .collect()
    });
    let rounds = THREADS * ROUNDS;
    assert!(
        faults.is_empty(),
        "{} of {rounds}: {:?}",
        faults.len(),
        faults.first()
    );
}

/// Trains the same step again and again, on four workers, and compares all gradients bit for bit. The
/// operations of `stovepipe-kernels` are among those that run.
fn repeat<L: Layer, T: Flow>(
    layers: Vec<L>,
    batch: Batch<L::Input, T, L::Side>,
    objective: &impl Objective<L::Output, T>,
) {
    let devices = [(); THREADS].map(|()| cpu());
    let pipeline = Pipeline::builder(layers).devices(devices).micro_batches(8);
    let pipeline = pipeline.build().unwrap();
    let mut first = None;
    for round in 0..STEPS {
        pipeline.set_steps(0);
        let step = pipeline.train_step(batch.clone(), objective).unwrap();
        let found = bits(pipeline.layers(), &step.gradients);
        let first = first.get_or_insert_with(|| found.clone());
        assert!(found.iter().all(Option::is_some), "round {round}");
        assert!(found == *first, "round {round}");
    }
}

/// The bits of each parameter's gradient.
fn bits<L: Layer>(layers: &[L], gradients: &GradientsParams) -> Vec<Option<Vec<u32>>> {
    struct Collect<'a>(&'a GradientsParams, Vec<Option<Vec<u32>>>);

    impl ModuleVisitor for Collect<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                let gradient = self.0.get::<D>(param.id).map(Tensor::into_data);
                let bits = gradient.map(|all| all.iter::<f32>().map(f32::to_bits).collect());
                self.1.push(bits);
            }
        }
    }

    let mut collect = Collect(gradients, Vec::new());
    layers.iter().for_each(|layer| layer.visit(&mut collect));
    collect.1
}

#[test]
fn workers_of_a_transformer_lose_no_gradient() {
    let layers = LmConfig::new(7, 5, 2, 8, 2).init(&cpu()).unwrap();
    let batch = Batch::new(labels([8, 5], 7), labels([8, 5], 7));
    repeat(layers, batch, &CrossEntropy::new());
}

#[test]
fn workers_of_amoebanet_lose_no_gradient() {
    let config = AmoebaNetDConfig::new(3, 4, 3).with_stem(Stem::Small);
    let batch = Batch::new(pattern([8, 3, 8, 8]), labels([8], 3));
    repeat(config.init(&cpu()).unwrap(), batch, &CrossEntropy::new());
}
