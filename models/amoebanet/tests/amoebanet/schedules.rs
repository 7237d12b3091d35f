//! Schedules change no bit of a training step of AmoebaNet, whose convolutions find the gradients of
//! their weights later where a schedule asks for it.

use crate::common::{copies, drawn};
use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, Int, Tensor},
};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::{CrossEntropy, Pipeline, Recompute, Step};
use stovepipe_schedule::{
    Interleaved, OneForwardOneBackward, Scheduler, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV,
};

const MICRO_BATCHES: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Member {
    D,
    B,
}

impl Member {
    fn layers(self) -> Vec<AmoebaLayer> {
        let device = Device::flex();
        match self {
            Self::D => AmoebaNetDConfig::new(3, 4, 10)
                .with_stem(Stem::Small)
                .with_auxiliary(true)
                .init(&device),
            Self::B => AmoebaNetBConfig::new(3, 4, 10)
                .with_stem(Stem::Small)
                .init(&device),
        }
        .unwrap()
    }
}

/// Every float that it visits, as bits: parameters and running statistics, or their gradients.
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
        if let Some(tensor) = tensor {
            let floats = tensor.into_data().try_to_vec::<f32>().unwrap();
            self.found
                .push(floats.into_iter().map(f32::to_bits).collect());
        }
    }
}

/// A training step: what it leaves, and the most that it kept for gradients of weights.
fn train(
    layers: &[AmoebaLayer],
    workers: usize,
    scheduler: impl Scheduler + 'static,
    recompute: Recompute,
) -> (Vec<Vec<u32>>, usize) {
    let pipeline = Pipeline::builder(copies(layers))
        .devices(vec![Device::flex(); workers])
        .schedule(scheduler)
        .micro_batches(MICRO_BATCHES)
        .recompute(recompute)
        .build()
        .unwrap();
    let count = 8 * 3 * 16 * 16;
    let images = Tensor::<1, Int>::arange(0..count, &Device::flex()).float();
    let images = images.sin().reshape([8, 3, 16, 16]);
    let labels = Tensor::<1, Int>::arange(0..8, &Device::flex());
    let step: Step<_> = pipeline
        .train_step((images, labels), &CrossEntropy::new())
        .unwrap();
    let see = |gradients| {
        let found = Vec::new();
        let mut bits = Bits { gradients, found };
        pipeline.valid().visit(&mut bits);
        bits.found
    };
    let of_gradients = see(Some(&step.gradients));
    assert!(of_gradients.len() > 100);
    let bits = [
        vec![vec![(step.loss as f32).to_bits()]],
        of_gradients,
        see(None),
    ]
    .concat();
    let contexts = step.held.iter().map(|held| held.weight_contexts).max();
    (bits, contexts.unwrap())
}

#[test]
fn schedules_change_no_bit_of_amoebanet() {
    for member in [Member::D, Member::B] {
        let layers = &drawn(member.layers());
        let (expected, _) = train(layers, 1, OneForwardOneBackward, Recompute::Never);
        let check = |(found, contexts): (Vec<Vec<u32>>, usize), halves, what: &str| {
            assert!(found == expected, "{member:?}, {what}");
            assert_eq!(contexts > 0, halves, "{member:?}, {what}");
        };
        for recompute in Recompute::ALL {
            let run = recompute.to_string();
            let interleaved = Interleaved { chunks: 2 };
            check(train(layers, 2, interleaved, recompute), false, &run);
            check(train(layers, 3, ZeroBubbleH1, recompute), true, &run);
            check(train(layers, 3, ZeroBubbleH2, recompute), true, &run);
            check(train(layers, 2, ZeroBubbleV, recompute), true, &run);
        }
    }
}
