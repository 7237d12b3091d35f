//! Drop-path: the same operations are dropped wherever, whenever and however often they run.

use std::ops::Range;

use crate::common::{copies, difference, drawn, floats};
use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Int, Tensor},
};
use stovepipe_amoebanet::{AmoebaFlow, AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::{Context, CrossEntropy, KeyedRng, Layer, Pipeline, Recompute};
use stovepipe_schedule::{OneForwardOneBackward, Rule, RuleOptions, Scheduler};
use stovepipe_train::{load_model, save_model};

const SAMPLES: usize = 6;
const MICRO_BATCHES: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Member {
    D,
    B,
}

impl Member {
    fn layers(self, drop_path: f64) -> Vec<AmoebaLayer> {
        let device = Device::flex();
        match self {
            Self::D => AmoebaNetDConfig::new(3, 4, 10)
                .with_stem(Stem::Small)
                .with_drop_path(drop_path)
                .init(&device),
            Self::B => AmoebaNetBConfig::new(3, 4, 10)
                .with_stem(Stem::Small)
                .with_drop_path(drop_path)
                .init(&device),
        }
        .unwrap()
    }
}

fn pipeline(
    layers: Vec<AmoebaLayer>,
    workers: usize,
    scheduler: impl Scheduler + 'static,
    recompute: Recompute,
) -> Pipeline<AmoebaLayer> {
    Pipeline::builder(layers)
        .devices(vec![Device::flex(); workers])
        .schedule(scheduler)
        .micro_batches(MICRO_BATCHES)
        .recompute(recompute)
        .build()
        .unwrap()
}

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

fn images() -> Tensor<4> {
    let count = (SAMPLES * 3 * 16 * 16) as i64;
    let numbers = Tensor::<1, Int>::arange(0..count, &Device::flex()).float();
    numbers.sin().reshape([SAMPLES, 3, 16, 16])
}

/// All floats of a model, or their gradients, as bits.
struct Bits<'a> {
    gradients: Option<&'a GradientsParams>,
    found: Vec<Vec<u32>>,
}

impl ModuleVisitor for Bits<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        let floats = tensor.map(|tensor| floats(tensor.into_data()));
        (self.found).extend(floats.map(|all| all.into_iter().map(f32::to_bits).collect()));
    }
}

/// Loss, gradients and running statistics of two steps, which drop different operations.
fn two_steps(pipeline: &Pipeline<AmoebaLayer>) -> Vec<Vec<u32>> {
    let mut all = Vec::new();
    for _ in 0..2 {
        let labels = Tensor::<1, Int>::arange(0..SAMPLES as i64, &Device::flex());
        let step = pipeline
            .train_step((images(), labels), &CrossEntropy::new())
            .unwrap();
        all.push(vec![(step.loss as f32).to_bits()]);
        for gradients in [Some(&step.gradients), None] {
            let found = Vec::new();
            let mut bits = Bits { gradients, found };
            pipeline.valid().visit(&mut bits);
            all.append(&mut bits.found);
        }
    }
    all
}

#[test]
fn stages_schedules_and_recomputation_drop_the_same() {
    for member in [Member::D, Member::B] {
        let layers = drawn(member.layers(0.3));
        let one = |layers| {
            let recompute = Recompute::Never;
            two_steps(&pipeline(layers, 1, OneForwardOneBackward, recompute))
        };
        let expected = one(copies(&layers));
        let other = one(with_parameters_of(&layers, member.layers(0.0)));
        assert!(expected != other, "{member:?}: nothing was dropped");
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
            for recompute in Recompute::ALL {
                let pipeline = pipeline(copies(&layers), workers, schedule.clone(), recompute);
                let same = two_steps(&pipeline) == expected;
                assert!(same, "{member:?}, {rule}, {workers} workers, {recompute}");
            }
        }
    }
}

/// The state that the last cell makes of some of the images, by the draws of a training step.
fn state(
    layers: &[AmoebaLayer],
    samples: Range<usize>,
    draws: impl Fn(usize) -> KeyedRng,
) -> Vec<f32> {
    let mut flow = AmoebaLayer::enter(images().narrow(0, samples.start, samples.len()));
    let (_, body) = layers.split_last().unwrap();
    for (index, layer) in body.iter().enumerate() {
        let mut context = Context::new(&(), true).with_rng(draws(index));
        flow = layer.forward(flow, &mut context).unwrap();
    }
    match flow {
        AmoebaFlow::Pair(last, _) => floats(last.into_data()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_sample_drops_for_itself_in_training_only() {
    for member in [Member::D, Member::B] {
        let layers = drawn(member.layers(0.0));
        let dropping = with_parameters_of(&layers, member.layers(0.6));
        let [without, with] = [copies(&layers), dropping].map(|layers| {
            let pipeline = pipeline(layers, 2, OneForwardOneBackward, Recompute::Always);
            let logits = pipeline.infer(images()).unwrap();
            floats(logits.into_data())
        });
        assert_eq!(without, with, "{member:?}: evaluation dropped");

        // Without autodiff batch norm goes by the running statistics: a sample depends on nothing but
        // itself.
        let layers = member.layers(0.6);
        let run = |samples: Range<usize>, step| {
            let draws = |index| KeyedRng::new(0, step, index, samples.clone());
            state(&layers, samples.clone(), draws)
        };
        let (whole, evaluated) = (
            run(0..SAMPLES, 0),
            state(&layers, 0..SAMPLES, |_| KeyedRng::none()),
        );
        let sample = whole.len() / SAMPLES;
        assert!(difference(&run(2..4, 0), &whole[2 * sample..4 * sample]) < 1e-5);
        assert!(difference(&run(0..SAMPLES, 1), &whole) > 0.1);
        for (dropped, evaluated) in whole.chunks(sample).zip(evaluated.chunks(sample)) {
            assert!(difference(dropped, evaluated) > 0.1, "{member:?}");
        }
    }
}
