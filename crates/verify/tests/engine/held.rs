//! What stages hold at once, counted twice: by the engine, and by tokens inside the values.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use crate::models::*;

/// The number of living tokens, and its maximum.
#[derive(Debug, Default)]
struct Census {
    alive: AtomicUsize,
    peak: AtomicUsize,
}

/// Counts itself while it lives.
#[derive(Debug)]
struct Token(Arc<Census>);

impl Token {
    fn new(census: &Arc<Census>) -> Arc<Self> {
        let alive = census.alive.fetch_add(1, Ordering::SeqCst) + 1;
        census.peak.fetch_max(alive, Ordering::SeqCst);
        Arc::new(Self(census.clone()))
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        self.0.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A tensor with the token of the layer that made it. The token lives while the value, or a
/// clone of it, is kept.
#[derive(Clone, Debug)]
struct Counted {
    tensor: Tensor<2>,
    _token: Option<Arc<Token>>,
}

impl Flow for Counted {
    fn map<M: FlowMapper>(self, mapper: &mut M) -> Self {
        Self {
            tensor: Flow::map(self.tensor, mapper),
            ..self
        }
    }

    fn batch_sizes(&self, sizes: &mut Vec<usize>) {
        self.tensor.batch_sizes(sizes);
    }
}

#[derive(Module, Debug)]
struct Counting {
    linear: Linear,
    /// Shared by the layers of a stage.
    #[module(skip)]
    census: Arc<Census>,
}

impl Layer for Counting {
    type Input = Tensor<2>;
    type Flow = Counted;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(tensor: Tensor<2>) -> Counted {
        let _token = None;
        Counted { tensor, _token }
    }

    fn forward(&self, x: Counted, _: &mut Context<'_, Self>) -> Result<Counted, LayerError> {
        let _token = Some(Token::new(&self.census));
        let tensor = self.linear.forward(x.tensor).tanh();
        Ok(Counted { tensor, _token })
    }

    fn leave(flow: Counted) -> Result<Tensor<2>, LayerError> {
        Ok(flow.tensor)
    }
}

/// More than the micro-batches in flight, so that one tape too many would show.
const LAYERS_A_STAGE: usize = 9;
const MICRO_BATCHES: usize = 6;

const GPIPE: By = By(Rule::GPipe, 1);
const ONE_FORWARD_ONE_BACKWARD: By = By(Rule::OneForwardOneBackward, 1);

/// What the engine reports for each stage, and the peak of tokens from the layers of each.
fn run(rule: By, recompute: Recompute, stages: usize) -> (Vec<Held>, Vec<usize>) {
    let census: Vec<Arc<Census>> = (0..stages).map(|_| Arc::default()).collect();
    let layer = |index: usize| Counting {
        linear: linear(3, 3),
        census: census[index / LAYERS_A_STAGE].clone(),
    };
    let layers = (0..stages * LAYERS_A_STAGE).map(layer).collect();
    let workers = stages / rule.stages(1);
    let pipeline = built(layers, workers, rule, MICRO_BATCHES, recompute);
    let step = pipeline.train_step((vectors(12, 3), vectors(12, 3)), &SQUARED);
    let held = step.unwrap().held;
    let read = |count: &AtomicUsize| count.load(Ordering::SeqCst);
    let is_freed = census.iter().all(|census| read(&census.alive) == 0);
    assert!(is_freed, "something was not freed");
    let peaks = census.iter().map(|census| read(&census.peak)).collect();
    (held, peaks)
}

fn held(inputs: usize, activations: usize) -> Held {
    Held {
        inputs,
        activations,
        weight_contexts: 0,
        weight_versions: 1,
    }
}

#[test]
fn inputs_and_activations_are_those_of_the_schedule() {
    let run = |rule, recompute, stages| run(rule, recompute, stages).0;
    // The last forward of the last stage does not precede its own backward under GPipe.
    let gpipe_recomputing = run(GPIPE, Recompute::Always, 2);
    assert_eq!(gpipe_recomputing, [held(MICRO_BATCHES, 1); 2]);
    let gpipe = run(GPIPE, Recompute::ExceptLast, 2);
    assert_eq!(gpipe, [held(MICRO_BATCHES - 1, 2); 2]);
    let gpipe_keeping = run(GPIPE, Recompute::Never, 2);
    assert_eq!(gpipe_keeping, [held(0, MICRO_BATCHES); 2]);

    let keeping = run(ONE_FORWARD_ONE_BACKWARD, Recompute::Never, 3);
    assert_eq!(keeping, [held(0, 3), held(0, 2), held(0, 1)]);
    let recomputing = run(ONE_FORWARD_ONE_BACKWARD, Recompute::Always, 3);
    assert_eq!(recomputing, [held(3, 1), held(2, 1), held(0, 1)]);
    let usual = run(ONE_FORWARD_ONE_BACKWARD, Recompute::ExceptLast, 3);
    assert_eq!(usual[2], held(0, 1));
    assert!(usual.iter().all(|held| held.activations <= 2));
}

/// Of nine layers a stage, the first keeps its activations, two segments of three layers follow, and the last two
/// keep theirs. Tokens are the outputs of layers: a micro-batch that waits keeps those of the first layer, of the
/// ones before the second segment and after it, and of the last two.
#[test]
fn segments_keep_their_inputs_and_other_layers_their_activations() {
    let run_with = |recompute: &str| run(GPIPE, recompute.parse().unwrap(), 1);
    let (found, peaks) = run_with("1-3,4-6");
    assert_eq!(found, [held(MICRO_BATCHES, MICRO_BATCHES)]);
    // Most are alive while all wait and the first one runs its second segment again.
    let waiting = 1 + 1 + 1 + 2;
    assert_eq!(peaks, [MICRO_BATCHES * waiting + 3]);
    // Everything in one segment is what `always` does.
    let (found, peaks) = run_with("0-8");
    let (always, peaks_of_always) = run(GPIPE, Recompute::Always, 1);
    assert_eq!((found, peaks), (always, peaks_of_always));
}

/// Compares the micro-batches in flight by the schedule with what the engine reports.
#[test]
fn stages_hold_what_the_schedule_says() {
    for rule in RULES {
        let workers = 6 / rule.stages(1);
        let held = |recompute| {
            let pipeline = built(conv_net(), workers, rule, MICRO_BATCHES, recompute);
            train(&pipeline, images(12), 4).unwrap().held
        };
        let schedule = rule.schedule(6, MICRO_BATCHES).unwrap();
        let never = held(Recompute::Never);
        let found: Vec<_> = never.iter().map(|held| held.activations).collect();
        assert_eq!(found, schedule.peak_in_flight(), "{rule:?}");
        assert!(never.iter().all(|held| held.inputs == 0), "{rule:?}");
        let always = held(Recompute::Always);
        assert!(always.iter().all(|held| held.activations <= 1), "{rule:?}");

        let mut expected = peak_weight_contexts(&schedule);
        expected[5] = 0; // a linear layer of Burn's alone
        for held in [never, always] {
            let contexts: Vec<_> = held.iter().map(|held| held.weight_contexts).collect();
            assert_eq!(contexts, expected, "{rule:?}");
        }
    }
}

/// The timeline has a span of the right kind for each action, in the order of the schedule, and one
/// more before a backward pass that recomputes.
#[test]
fn every_action_has_its_span() {
    for rule in RULES {
        let workers = 6 / rule.stages(1);
        let schedule = rule.schedule(6, 3).unwrap();
        for recompute in modes(7, 1).into_iter().chain([Recompute::ExceptLast]) {
            let pipeline = built(conv_net(), workers, rule, 3, recompute.clone());
            let layers: Vec<_> = pipeline
                .stages()
                .into_iter()
                .map(|stage| stage.layers)
                .collect();
            let timeline = train(&pipeline, images(6), 4).unwrap().timeline;
            assert_eq!(timeline.workers.len(), workers);
            for (spans, actions) in timeline.workers.iter().zip(schedule.workers()) {
                let found: Vec<_> = (spans.iter())
                    .map(|span| (span.action.unwrap(), span.kind))
                    .collect();
                let expected = actions.iter().flat_map(|&action| {
                    let kept = recompute.kept(&schedule, action.stage)[action.micro_batch];
                    let is_backward = matches!(action.pass, Pass::Backward | Pass::InputGradient);
                    let has_segments = !recompute.segments(layers[action.stage].clone()).is_empty();
                    let is_again = is_backward && !kept && has_segments;
                    let again = is_again.then_some((action, SpanKind::Recompute));
                    again.into_iter().chain([(action, action.pass.into())])
                });
                assert_eq!(found, expected.collect::<Vec<_>>(), "{rule:?}, {recompute}");
            }
        }
    }
}

/// For each stage, the most micro-batches between the two halves of their backward pass.
fn peak_weight_contexts(schedule: &Schedule) -> Vec<usize> {
    let (mut open, mut peaks) = (vec![0; schedule.stages()], vec![0; schedule.stages()]);
    for action in schedule.workers().iter().flatten() {
        match action.pass {
            Pass::InputGradient => open[action.stage] += 1,
            Pass::WeightGradient => open[action.stage] -= 1,
            _ => {}
        }
        peaks[action.stage] = peaks[action.stage].max(open[action.stage]);
    }
    peaks
}

/// The tokens are the independent count. The outputs of a stage's layers live in its tapes, one per
/// layer and micro-batch, and the output of its last layer also as input of the next stage.
#[test]
fn the_values_that_live_are_those_that_the_engine_counts() {
    for rule in RULES {
        for recompute in Recompute::MODES {
            for stages in [1, 2, 3].map(|workers| rule.stages(workers)) {
                let (held, peaks) = run(rule, recompute.clone(), stages);
                for stage in 0..stages {
                    let tapes = held[stage].activations * LAYERS_A_STAGE;
                    // On their way to the next stage, or kept there: at most one per micro-batch
                    // in flight there; one more value is being computed.
                    let sent = if stage + 1 < stages { MICRO_BATCHES } else { 0 };
                    let peak = peaks[stage];
                    let place = format!("{rule:?}, {recompute}, stage {stage} of {stages}");
                    let possible = tapes..=tapes + sent + 1;
                    assert!(possible.contains(&peak), "{place}: {peak}, {possible:?}");
                }
            }
        }
    }
}
