//! Skips in pipelines: the same bits for any stages, schedule and recomputation, and the same results as
//! without a pipeline.

use std::sync::Mutex;

use crate::common::{SkipChange, difference, floats, gradients_of, run, unchanged};
use burn::{
    module::Module,
    optim::GradientsParams,
    tensor::{Device, Int, Tensor},
};
use stovepipe_pipeline::{Balance, KeyedRng, MeanOf, Objective, Pipeline, Profiler, Recompute};
use stovepipe_schedule::{OneForwardOneBackward, Rule, RuleOptions, Schedule, Scheduler};
use stovepipe_unet::{UNetConfig, UNetLayer};

const SEED: u64 = 7;
/// B = 2, at three levels.
const LAYERS: usize = 3 * 2 + 2 + 3 * 2 + 1;

/// Rules, with the stages of a worker.
const RULES: [(Rule, usize); 10] = [
    (Rule::GPipe, 1),
    (Rule::OneForwardOneBackward, 1),
    (Rule::Interleaved, 2),
    (Rule::Interleaved, 3),
    (Rule::ZeroBubbleH1, 1),
    (Rule::ZeroBubbleH2, 1),
    (Rule::ZeroBubbleV, 1),
    (Rule::VMin, 1),
    (Rule::VHalf, 1),
    (Rule::VOneForwardOneBackward, 1),
];

/// Layers with the same parameters each time, initialized once: other tests use Burn's generator, too.
fn layers() -> Vec<UNetLayer> {
    static DRAWN: Mutex<Option<Vec<UNetLayer>>> = Mutex::new(None);
    let mut drawn = DRAWN.lock().unwrap();
    let drawn = drawn.get_or_insert_with(|| {
        let config = UNetConfig::new(2, 4).with_depth(2).with_dropout(0.3);
        let layers = config.init(&Device::flex()).unwrap();
        let builder = Pipeline::builder(layers).devices([Device::flex()]);
        builder.seed(SEED).build().unwrap().into_layers()
    });
    drawn.iter().map(|layer| layer.valid().train()).collect()
}

fn waves(shape: [usize; 4], pitch: f64) -> Tensor<4> {
    let count = shape.iter().product::<usize>() as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, &Device::flex()).float();
    numbers.mul_scalar(pitch).sin().reshape(shape)
}

/// Their sides become odd when they are halved.
fn images(samples: usize) -> Tensor<4> {
    waves([samples, 3, 11, 14], 1.7)
}

fn target(samples: usize) -> Tensor<4> {
    waves([samples, 1, 11, 14], 0.3)
}

fn squared() -> impl Objective<Tensor<4>, Tensor<4>> {
    MeanOf(|y: Tensor<4>, t: Tensor<4>| (y - t).powi_scalar(2).mean())
}

fn pipeline(
    workers: usize,
    schedule: impl Scheduler + 'static,
    micro_batches: usize,
    recompute: Recompute,
) -> Pipeline<UNetLayer> {
    let builder = Pipeline::builder(layers()).devices(vec![Device::flex(); workers]);
    let builder = builder.schedule(schedule).micro_batches(micro_batches);
    builder.recompute(recompute).seed(SEED).build().unwrap()
}

/// The losses and gradients of two steps, which drop different channels, and an output.
fn two_steps(pipeline: &Pipeline<UNetLayer>, samples: usize) -> Vec<Vec<u32>> {
    let mut bits = Vec::new();
    let mut add = |floats: Vec<f32>| bits.push(floats.into_iter().map(f32::to_bits).collect());
    for _ in 0..2 {
        let (images, target) = (images(samples), target(samples));
        let step = pipeline.train_step((images, target), &squared()).unwrap();
        add(vec![step.loss as f32]);
        let gradients = gradients_of(pipeline.layers(), &step.gradients);
        gradients.into_iter().for_each(|(_, values)| add(values));
    }
    add(floats(pipeline.infer(images(3)).unwrap()));
    bits
}

#[test]
fn stages_schedules_and_recomputation_change_no_bit() {
    for (samples, micro_batches) in [(4, 4), (5, 3)] {
        let one = pipeline(1, OneForwardOneBackward, micro_batches, Recompute::Never);
        let expected = two_steps(&one, samples);
        // A loss and a gradient of each convolution, twice, and an output.
        assert_eq!(expected.len(), 2 * (1 + 11) + 1);
        let drops_others = expected[0] != expected[12];
        assert!(drops_others, "the same channels were dropped");
        assert!(Rule::synchronous().all(|rule| RULES.iter().any(|tested| tested.0 == rule)));
        for (rule, chunks) in RULES {
            let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
            for workers in [1, 2, 4, LAYERS] {
                let stages = scheduler.stages(workers);
                if stages > LAYERS {
                    continue;
                }
                let schedule: Schedule = scheduler.schedule(stages, micro_batches).unwrap();
                for recompute in Recompute::MODES {
                    let pipeline =
                        pipeline(workers, schedule.clone(), micro_batches, recompute.clone());
                    let what = format!("{samples} samples, {rule}, {workers} workers, {recompute}");
                    assert!(two_steps(&pipeline, samples) == expected, "{what}");
                }
            }
        }
    }
}

#[test]
fn a_cut_by_measured_time_changes_no_bit() {
    let build = |balance| {
        let pipeline = Pipeline::builder(layers())
            .devices(vec![Device::flex(); 3])
            .balance(balance)
            .micro_batches(2)
            .seed(SEED);
        two_steps(&pipeline.build().unwrap(), 4)
    };
    let profiler = Profiler::new(&Device::flex());
    let profile = profiler.measure(&layers(), images(2)).unwrap();
    assert_eq!(profile.layers.len(), LAYERS);
    let measured = build(Balance::by_time(&profile));
    assert!(measured == build(Balance::Layers(vec![1, 2, 12])));
}

/// The first step on the whole mini-batch, with Burn alone.
fn plain(
    layers: &[UNetLayer],
    samples: usize,
    change: SkipChange,
) -> (f32, Vec<(usize, Vec<f32>)>) {
    let rng = |layer| KeyedRng::new(SEED, 0, layer, 0..samples);
    let images = images(samples).autodiff();
    let output = run(layers, images, rng, change).unwrap();
    let loss = (output - target(samples).autodiff()).powi_scalar(2).mean();
    let gradients = GradientsParams::from_grads(loss.backward(), &layers.to_vec());
    (loss.into_scalar::<f32>(), gradients_of(layers, &gradients))
}

#[test]
fn losses_and_gradients_equal_those_without_a_pipeline() {
    for (workers, micro_batches) in [(1, 1), (4, 1), (4, 3), (LAYERS, 2)] {
        let (schedule, recompute) = (OneForwardOneBackward, Recompute::ExceptLast);
        let pipeline = pipeline(workers, schedule, micro_batches, recompute);
        let step = pipeline.train_step((images(6), target(6)), &squared());
        let step = step.unwrap();
        let (loss, expected) = plain(pipeline.layers(), 6, unchanged);
        assert!((step.loss - f64::from(loss)).abs() < 1e-5 * f64::from(loss));
        let found = gradients_of(pipeline.layers(), &step.gradients);
        assert_eq!(found.len(), 11);
        for ((layer, found), (_, expected)) in found.iter().zip(&expected) {
            let apart = difference(found, expected);
            assert!(apart < 1e-5, "layer {layer}: {apart}, {workers} workers");
        }

        // Without the gradients of the skips, the encoder would have other gradients.
        let (same_loss, without) = plain(pipeline.layers(), 6, Tensor::detach);
        assert!((same_loss - loss).abs() < 1e-6);
        let apart = difference(&without[0].1, &expected[0].1);
        assert!(apart > 1e-2, "{apart}");
    }
}

#[test]
fn channels_are_dropped_in_training_only() {
    let pipeline = pipeline(2, OneForwardOneBackward, 2, Recompute::Never);
    let once = floats(pipeline.infer(images(4)).unwrap());
    let plain = |rng: fn(usize) -> KeyedRng| {
        let layers = pipeline.layers();
        floats(run(layers, images(4).autodiff(), rng, unchanged).unwrap())
    };
    assert!(difference(&once, &plain(|_| KeyedRng::none())) < 1e-5);
    assert!(difference(&once, &plain(|layer| KeyedRng::new(SEED, 0, layer, 0..4))) > 1e-2);
}
