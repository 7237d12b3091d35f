//! Schedules change no bit of a training step of AmoebaNet, whose convolutions defer the gradients of
//! their weights if the schedule does.

use crate::common::{batch, bits, copies, drawn, pipeline};
use burn::tensor::Device;
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig, Stem};
use stovepipe_pipeline::{CrossEntropy, Recompute};
use stovepipe_schedule::{
    Interleaved, OneForwardOneBackward, Scheduler, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV,
};

const MICRO_BATCHES: usize = 4;

/// The bits of a training step, and the most contexts of weight gradients that it held.
fn train(
    layers: &[AmoebaLayer],
    workers: usize,
    scheduler: impl Scheduler + 'static,
    recompute: Recompute,
) -> (Vec<Vec<u32>>, usize) {
    let pipeline = pipeline(copies(layers), workers, scheduler, MICRO_BATCHES, recompute);
    let step = pipeline.train_step(batch(8), &CrossEntropy::new()).unwrap();
    let of_gradients = bits(&pipeline, Some(&step.gradients));
    assert!(of_gradients.len() > 100);
    let loss = vec![vec![(step.loss as f32).to_bits()]];
    let contexts = step.held.iter().map(|held| held.weight_contexts).max();
    let all = [loss, of_gradients, bits(&pipeline, None)].concat();
    (all, contexts.unwrap())
}

#[test]
fn schedules_change_no_bit_of_amoebanet() {
    let device = Device::flex();
    let d = AmoebaNetDConfig::new(3, 4, 10).with_stem(Stem::Small);
    let b = AmoebaNetBConfig::new(3, 4, 10).with_stem(Stem::Small);
    let d = d.with_auxiliary(true).init(&device).unwrap();
    for (member, layers) in [("D", d), ("B", b.init(&device).unwrap())] {
        let layers = &drawn(layers);
        let (expected, _) = train(layers, 1, OneForwardOneBackward, Recompute::Never);
        let check = |(found, contexts): (Vec<Vec<u32>>, usize), halves, what: &str| {
            assert!(found == expected, "{member}, {what}");
            assert_eq!(contexts > 0, halves, "{member}, {what}");
        };
        for recompute in Recompute::MODES {
            let run = recompute.to_string();
            let interleaved = Interleaved { chunks: 2 };
            check(
                train(layers, 2, interleaved, recompute.clone()),
                false,
                &run,
            );
            check(
                train(layers, 3, ZeroBubbleH1, recompute.clone()),
                true,
                &run,
            );
            check(
                train(layers, 3, ZeroBubbleH2, recompute.clone()),
                true,
                &run,
            );
            check(train(layers, 2, ZeroBubbleV, recompute), true, &run);
        }
    }
}
