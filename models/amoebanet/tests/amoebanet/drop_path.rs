//! Drop-path: stages, schedules and recomputation drop the same operations.

use std::ops::Range;

use crate::common::{batch, bits, copies, difference, drawn, floats, pipeline};
use burn::tensor::Device;
use stovepipe_amoebanet::{AmoebaFlow, AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::{Context, CrossEntropy, KeyedRng, Layer, Pipeline, Recompute};
use stovepipe_schedule::{OneForwardOneBackward, Rule, RuleOptions};
use stovepipe_train::{load_model, save_model};

const SAMPLES: usize = 6;
const MICRO_BATCHES: usize = 3;

type Init = fn(f64) -> Vec<AmoebaLayer>;

const MEMBERS: [(&str, Init); 2] = [
    ("D", |drop_path| {
        let config = AmoebaNetDConfig::new(3, 4, 10).with_drop_path(drop_path);
        config.with_stem(Stem::Small).init(&Device::flex()).unwrap()
    }),
    ("B", |drop_path| {
        let config = AmoebaNetBConfig::new(3, 4, 10).with_drop_path(drop_path);
        config.with_stem(Stem::Small).init(&Device::flex()).unwrap()
    }),
];

/// Layers with another rate of drop-path and the same parameters.
fn with_parameters_of(layers: &[AmoebaLayer], others: Vec<AmoebaLayer>) -> Vec<AmoebaLayer> {
    let device = [Device::flex()];
    let [from, mut to] = [copies(layers), others].map(|layers| {
        let builder = Pipeline::builder(layers).devices(device.clone());
        builder.build().unwrap()
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save_model(&from, path.clone()).unwrap();
    load_model(&mut to, &path).unwrap();
    to.into_layers()
}

/// Loss, gradients and running statistics of two steps, which drop different operations.
fn two_steps(pipeline: &Pipeline<AmoebaLayer>) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for _ in 0..2 {
        let step = pipeline.train_step(batch(SAMPLES), &CrossEntropy::new());
        let step = step.unwrap();
        all.push(vec![(step.loss as f32).to_bits()]);
        for gradients in [Some(&step.gradients), None] {
            all.append(&mut bits(pipeline, gradients));
        }
    }
    all
}

#[test]
fn stages_schedules_and_recomputation_drop_the_same() {
    for (member, init) in MEMBERS {
        let layers = drawn(init(0.3));
        let one = |layers| {
            let recompute = Recompute::Never;
            let scheduler = OneForwardOneBackward;
            two_steps(&pipeline(layers, 1, scheduler, MICRO_BATCHES, recompute))
        };
        let expected = one(copies(&layers));
        let other = one(with_parameters_of(&layers, init(0.0)));
        assert!(expected != other, "{member}: nothing was dropped");
        for (rule, chunks, workers) in [
            (Rule::GPipe, 1, 3),
            (Rule::OneForwardOneBackward, 1, 9),
            (Rule::Interleaved, 2, 2),
            (Rule::ZeroBubbleH1, 1, 3),
            (Rule::ZeroBubbleH2, 1, 2),
            (Rule::ZeroBubbleV, 1, 2),
        ] {
            let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
            let stages = scheduler.stages(workers);
            let schedule = scheduler.schedule(stages, MICRO_BATCHES).unwrap();
            for recompute in Recompute::MODES {
                let (layers, schedule) = (copies(&layers), schedule.clone());
                let pipeline =
                    pipeline(layers, workers, schedule, MICRO_BATCHES, recompute.clone());
                let same = two_steps(&pipeline) == expected;
                assert!(same, "{member}, {rule}, {workers} workers, {recompute}");
            }
        }
    }
}

/// The last cell's state for some of the images, with the random numbers of a training step.
fn state(
    layers: &[AmoebaLayer],
    samples: Range<usize>,
    rng: impl Fn(usize) -> KeyedRng,
) -> Vec<f32> {
    let mut flow = AmoebaLayer::enter(batch(SAMPLES).0.narrow(0, samples.start, samples.len()));
    let (_, body) = layers.split_last().unwrap();
    for (index, layer) in body.iter().enumerate() {
        let mut context = Context::new(&(), true).with_rng(rng(index));
        flow = layer.forward(flow, &mut context).unwrap();
    }
    match flow {
        AmoebaFlow::Pair(last, _) => floats(last.into_data()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_sample_drops_for_itself_in_training_only() {
    for (member, init) in MEMBERS {
        let layers = drawn(init(0.0));
        let dropping = with_parameters_of(&layers, init(0.6));
        let [without, with] = [copies(&layers), dropping].map(|layers| {
            let (scheduler, recompute) = (OneForwardOneBackward, Recompute::Always);
            let pipeline = pipeline(layers, 2, scheduler, MICRO_BATCHES, recompute);
            let logits = pipeline.infer(batch(SAMPLES).0).unwrap();
            floats(logits.into_data())
        });
        assert_eq!(without, with, "{member}: evaluation dropped");

        // Without autodiff batch norm uses the running statistics: samples are independent.
        let layers = init(0.6);
        let run = |samples: Range<usize>, step| {
            let rng = |index| KeyedRng::new(0, step, index, samples.clone());
            state(&layers, samples.clone(), rng)
        };
        let whole = run(0..SAMPLES, 0);
        let evaluated = state(&layers, 0..SAMPLES, |_| KeyedRng::none());
        let sample = whole.len() / SAMPLES;
        assert!(difference(&run(2..4, 0), &whole[2 * sample..4 * sample]) < 1e-5);
        assert!(difference(&run(0..SAMPLES, 1), &whole) > 0.1);
        for (dropped, evaluated) in whole.chunks(sample).zip(evaluated.chunks(sample)) {
            assert!(difference(dropped, evaluated) > 0.1, "{member}");
        }
    }
}
