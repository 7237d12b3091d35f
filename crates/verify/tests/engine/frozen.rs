//! Layers with nothing to train.

use burn::module::Lora;

use crate::models::*;

pub fn frozen(layers: usize, first: usize) -> Vec<Dense> {
    let all = dense(&vec![4; layers + 1]).into_iter().enumerate();
    all.map(|(index, layer)| if index < first { layer.freeze() } else { layer })
        .collect()
}

/// Bits of the gradients, what stages held, and how often each worker recomputed.
type Seen = (ByPath<u32>, Vec<Held>, Vec<usize>);

fn gradients(pipeline: &Pipeline<Dense>) -> Seen {
    let step = train(pipeline, vectors(6, 4), 4).unwrap();
    let recomputed = step.timeline.workers.iter().map(|spans| {
        let kinds = spans.iter().map(|span| span.kind);
        kinds.filter(|&kind| kind == SpanKind::Recompute).count()
    });
    let recomputed = recomputed.collect();
    let gradients = gradient_bits(pipeline, &step.gradients);
    (gradients, step.held, recomputed)
}

#[test]
fn no_gradient_is_made_before_the_first_layer_that_trains() {
    for first in 0..=6 {
        let all = built(frozen(6, 0), 1, GPipe, 3, Recompute::Never);
        let (expected, ..) = gradients(&all);
        for (rule, workers, recompute) in cuts(6) {
            let pipeline = built(frozen(6, first), workers, rule, 3, recompute.clone());
            let (found, held, _) = gradients(&pipeline);
            assert_eq!(found, expected[2 * first..], "{rule:?}, {recompute}");
            let stages = pipeline.stages();
            for (stage, held) in stages.iter().zip(&held).take(stages.len() - 1) {
                if stage.layers.end <= first {
                    let no_backward = Held {
                        activations: held.activations.min(1),
                        weight_versions: 1,
                        ..Held::default()
                    };
                    assert_eq!(*held, no_backward, "{rule:?}, {recompute}");
                }
            }
        }
    }
}

#[test]
fn a_frozen_stage_runs_forward_once() {
    let pipeline = built(frozen(4, 2), 2, OneForwardOneBackward, 3, Recompute::Always);
    let (_, held, recomputed) = gradients(&pipeline);
    // The last stage under 1F1B recomputes nothing: backward directly follows forward.
    assert_eq!(recomputed, [0, 0]);
    assert_eq!((held[0].inputs, held[1].activations), (0, 1));
    let pipeline = built(frozen(4, 2), 2, GPipe, 3, Recompute::Always);
    assert_eq!(gradients(&pipeline).2, [0, 3]);
}

/// Layers are frozen and thawed again, with an inference in between.
#[test]
fn what_is_frozen_can_be_thawed() {
    let pipeline = built(frozen(4, 0), 2, GPipe, 2, Recompute::Always);
    let expected = gradients(&pipeline).0;
    let still = pipeline.clone().freeze();
    assert!(gradients(&still).0.is_empty());
    let thawed = still.unfreeze();
    let _ = thawed.infer(vectors(3, 4)).unwrap();
    assert_eq!(gradients(&thawed).0, expected);
    // The loss does not depend on what is frozen.
    let layers = pipeline.valid().into_layers();
    let forward = |x, layer: &Dense| layer.forward(x);
    let _: Tensor<2> = layers.iter().fold(vectors(6, 4), forward);
}

const GPIPE: By = By(Rule::GPipe, 1);

/// Burn's own adapters make a layer's weight anew in each pass.
#[test]
fn adapters_of_burn_train_the_same_under_any_cut() {
    let layers = dense(&[4; 5]).into_iter();
    let layers: Vec<_> = layers
        .map(|layer| layer.apply_lora(Lora::new(2, 4.0)))
        .collect();
    let built = |(rule, workers, recompute)| built(layers.clone(), workers, rule, 3, recompute);
    let steps = |cut| two_steps(built(cut), (vectors(6, 4), vectors(3, 4)), 4);
    let expected = steps((GPIPE, 1, Recompute::Never));
    // The second step's: after the first one, neither factor is 0.
    let gradients = &expected[5];
    assert_eq!(gradients.len(), 2 * layers.len());
    let is_zero = |bits: &u32| f32::from_bits(*bits) == 0.0;
    assert!(!gradients.iter().any(|(_, bits)| bits.iter().all(is_zero)));
    for cut in cuts(4) {
        assert_eq!(steps(cut.clone()), expected, "{cut:?}");
    }
    let mut pipeline = built((GPIPE, 2, Recompute::Always));
    let input = || vectors(6, 4);
    let step = train(&pipeline, input(), 4).unwrap();
    pipeline = SgdConfig::new().init().step(0.5, pipeline, step.gradients);
    let step = train(&pipeline, input(), 4).unwrap();
    let found = gradients_of(&pipeline, &step.gradients);
    let none = |_| KeyedRng::none();
    let expected = plain_gradients(pipeline.layers(), input().autodiff(), 4, none);
    assert_close(&found, &expected, 1e-5);
}
