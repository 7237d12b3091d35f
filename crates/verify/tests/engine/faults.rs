//! A panic, an error and a hang at every action of every small schedule.
//!
//! The layers multiply by a weight, in a custom operation whose backward pass, and whose deferred half, can
//! fail. So every action has a place for a fault. In all cases, the error names the place, the model does
//! not change, and the next step is that of an untouched model.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use burn::{
    backend::{
        Autodiff, Flex,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
        tensor::FloatTensor,
    },
    nn::Initializer,
};
use stovepipe_autodiff::{deferrable, postpone};

use crate::models::*;

const WORKERS: usize = 2;
const MICRO_BATCHES: usize = 2;
const LAYERS: usize = 6;

/// A moment in a layer's work on a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Forward,
    /// Forward again, as a part of the backward pass.
    Recompute,
    Backward,
    /// The deferred half of the backward pass.
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    layer: usize,
    micro_batch: usize,
    moment: Moment,
}

impl Place {
    /// Where a forward pass is run again.
    fn recomputed(self) -> Self {
        match self.moment {
            Moment::Forward => Self {
                moment: Moment::Recompute,
                ..self
            },
            _ => self,
        }
    }
}

enum Fault {
    Panic,
    Miswire,
    /// Waits until the other end is dropped.
    Hang(Receiver<()>),
}

/// Where a fault happens, once.
#[derive(Clone, Default)]
struct Trap(Arc<Mutex<Option<(Place, Fault)>>>);

impl Trap {
    fn set(&self, place: Place, fault: Fault) {
        *self.0.lock().unwrap() = Some((place, fault));
    }

    fn spring(&self, here: Place) -> Result<(), LayerError> {
        let mut set = self.0.lock().unwrap();
        match &mut *set {
            Some((place, _)) if *place == here => {}
            // The first run is the forward pass, the second one the recomputation.
            Some((place, _)) if *place == here.recomputed() => {
                *place = here;
                return Ok(());
            }
            _ => return Ok(()),
        }
        let fault = set.take().map(|(_, fault)| fault);
        drop(set);
        match fault.unwrap() {
            // Hundreds of them: they print nothing.
            Fault::Panic => std::panic::resume_unwind(Box::new("on purpose")),
            Fault::Miswire => Err(LayerError::new("a cat", "a dog")),
            Fault::Hang(until) => {
                let _ = until.recv();
                Ok(())
            }
        }
    }
}

impl fmt::Debug for Trap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trap")
    }
}

#[derive(Module, Debug)]
struct Snared {
    norm: BatchNorm,
    weight: Param<Tensor<2>>,
    #[module(skip)]
    index: usize,
    #[module(skip)]
    trap: Trap,
}

impl Layer for Snared {
    // The side input is the micro-batch of each sample.
    flow!(Tensor<2>, side: Tensor<1, Int>);

    fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        let micro_batches = context.side().clone().into_data();
        let micro_batch = micro_batches.iter::<i64>().next().unwrap();
        let snare = Snare {
            place: Place {
                layer: self.index,
                micro_batch: usize::try_from(micro_batch).unwrap(),
                moment: Moment::Forward,
            },
            trap: self.trap.clone(),
        };
        self.trap.spring(snare.place)?;
        Ok(self.norm.forward(scaled(x, self.weight.val(), snare)))
    }
}

type Primitive = FloatTensor<Flex>;
type Tracked = Autodiff<Flex, NoCheckpointing>;

/// A product with a row, whose gradients run into the trap.
#[derive(Clone, Debug)]
struct Snare {
    place: Place,
    trap: Trap,
}

impl Snare {
    fn spring(&self, moment: Moment) {
        let sprung = self.trap.spring(Place {
            moment,
            ..self.place
        });
        sprung.expect("only forward passes can say that they fail");
    }
}

fn scaled(x: Tensor<2>, weight: Tensor<2>, snare: Snare) -> Tensor<2> {
    if !x.is_autodiff() {
        return x * weight;
    }
    let [x, weight] = [x, weight].map(|tensor| tensor.try_into_primitive::<Tracked>().unwrap());
    let nodes = [x.node(), weight.node()];
    let state = [x.into_primitive(), weight.into_primitive()];
    let [x, weight] = state.clone().map(tensor);
    let output = primitive(x * weight);
    let recorded = snare.prepare::<NoCheckpointing>(nodes);
    let output = match recorded.compute_bound().stateful() {
        OpsKind::Tracked(step) => step.finish(state, output),
        OpsKind::UnTracked(step) => step.finish(output),
    };
    Tensor::from_primitive::<Tracked>(output)
}

fn tensor(primitive: Primitive) -> Tensor<2> {
    Tensor::from_primitive::<Flex>(primitive)
}

fn primitive(tensor: Tensor<2>) -> Primitive {
    tensor.try_into_primitive::<Flex>().unwrap()
}

impl Backward<Flex, 2> for Snare {
    type State = [Primitive; 2];

    fn backward(self, step: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<Flex>(&step.node);
        self.spring(Moment::Backward);
        let [x, weight] = step.state;
        let [of_x, of_weight] = step.parents;
        if let Some(of_x) = of_x {
            let found = tensor(gradient.clone()) * tensor(weight);
            gradients.register::<Flex>(of_x.id, primitive(found));
        }
        let Some(of_weight) = of_weight else { return };
        let find = move || (tensor(gradient) * tensor(x)).sum_dim(0);
        match deferrable(of_weight.id) {
            Some(parameter) => postpone(parameter, move || {
                self.spring(Moment::Late);
                Some(find().into_dispatch())
            }),
            None => gradients.register::<Flex>(of_weight.id, primitive(find())),
        }
    }
}

/// A pipeline with a trap, and an equal one without.
struct Pair {
    pipeline: Pipeline<Snared>,
    untouched: Pipeline<Snared>,
    trap: Trap,
}

impl Pair {
    fn new(rule: By, recompute: Recompute, limit: Option<Duration>) -> Self {
        let build = |trap: &Trap, limit| {
            let layers = (0..LAYERS).map(|index| Snared {
                norm: norm(4),
                weight: Initializer::Uniform { min: 0.5, max: 1.5 }.init([1, 4], &cpu()),
                index,
                trap: trap.clone(),
            });
            let recompute = recompute.clone();
            let builder = builder(layers.collect(), WORKERS, rule, MICRO_BATCHES, recompute);
            builder.stall_timeout(limit).build().unwrap()
        };
        let trap = Trap::default();
        Self {
            pipeline: build(&trap, limit),
            untouched: build(&Trap::default(), None),
            trap,
        }
    }

    /// Sets the trap and runs a step into it. The model must not change.
    fn step_into(&self, place: Place, fault: Fault) -> StepError {
        let before = bits(&self.pipeline);
        self.trap.set(place, fault);
        let error = step(&self.pipeline).expect_err("the step should fail");
        assert_eq!(bits(&self.pipeline), before);
        error
    }

    /// Compares the next step with that of the untouched pipeline, once the pipeline is not stuck.
    fn step_well(&self) {
        let gradients = loop {
            match step(&self.pipeline) {
                // On a busy machine, a short limit may also end a good step.
                Err(StepError::Stuck { .. } | StepError::Stalled { .. }) => thread::yield_now(),
                other => break other.unwrap(),
            }
        };
        assert_eq!(gradients, step(&self.untouched).unwrap());
        assert_eq!(bits(&self.pipeline), bits(&self.untouched));
    }

    /// Checks that an error names the place.
    fn check(&self, failure: &StageFailure, action: Action, place: Place, cause: &str) {
        assert_eq!((failure.stage, failure.action), (action.stage, action));
        assert_eq!(failure.layer, Some((place.layer, "Snared".to_owned())));
        assert_eq!(failure.device, "cpu");
        assert_eq!(failure.cause.to_string(), cause);
        assert_eq!(failure.flight.workers.len(), WORKERS);
    }
}

/// Every gradient, as bits.
fn step(pipeline: &Pipeline<Snared>) -> Result<ByPath<u32>, StepError> {
    let micro_batches = [0, 0, 0, 0, 1, 1, 1, 1]; // of MICRO_BATCHES
    let side = Tensor::from_ints(micro_batches, &cpu());
    let batch = (vectors(8, 4), labels(8, 4), side);
    let step = pipeline.train_step(batch, &CrossEntropy::new())?;
    Ok(gradient_bits(pipeline, &step.gradients))
}

/// All places for a fault in the schedule of a rule, with their actions.
fn places(pair: &Pair, rule: By, recompute: Recompute) -> Vec<(Action, Place)> {
    let schedule = rule.schedule(rule.stages(WORKERS), MICRO_BATCHES).unwrap();
    let mut places = Vec::new();
    for &action in schedule.workers().iter().flatten() {
        let layers = &pair.pipeline.stages()[action.stage].layers;
        let micro_batch = action.micro_batch;
        let is_recorded = recompute.kept(&schedule, action.stage)[micro_batch];
        let moments: &[Moment] = match action.pass {
            Pass::Forward => &[Moment::Forward],
            Pass::WeightGradient => &[Moment::Late],
            _ if is_recorded => &[Moment::Backward],
            _ => &[Moment::Recompute, Moment::Backward],
        };
        // The first and the last layer of a stage in turn.
        let layer = [layers.start, layers.end - 1][(micro_batch + action.stage) % 2];
        let place = |&moment| Place {
            layer,
            micro_batch,
            moment,
        };
        places.extend(moments.iter().map(|moment| (action, place(moment))));
    }
    places
}

/// Runs `check` for each rule and recompute mode, some at once.
fn for_each_rule(check: impl Fn(By, Recompute) + Sync) {
    thread::scope(|scope| {
        for rule in RULES {
            for recompute in [Recompute::Always, Recompute::Never] {
                let check = &check;
                scope.spawn(move || check(rule, recompute));
            }
        }
    });
}

#[test]
fn a_panic_or_an_error_at_any_action_names_its_place_and_the_next_step_works() {
    for_each_rule(|rule, recompute| {
        let pair = Pair::new(rule, recompute.clone(), None);
        for (action, place) in places(&pair, rule, recompute) {
            let check = |fault, cause| {
                let failure = failure(Err::<(), _>(pair.step_into(place, fault)));
                pair.check(&failure, action, place, cause);
                pair.step_well();
            };
            check(Fault::Panic, "panicked: on purpose");
            if matches!(place.moment, Moment::Forward | Moment::Recompute) {
                check(Fault::Miswire, "expected a cat, found a dog");
            }
        }
    });
}

#[test]
fn a_hang_at_any_action_names_its_place_and_once_it_is_over_the_next_step_works() {
    for_each_rule(|rule, recompute| {
        let pair = |limit| {
            let pair = Pair::new(rule, recompute.clone(), Some(Duration::from_millis(limit)));
            // The first step runs the layers more often, to find the momenta of their norms.
            pair.step_well();
            pair
        };
        let impatient = pair(40);
        for (action, place) in places(&impatient, rule, recompute.clone()) {
            // If a busy machine is too slow for the limit, use a longer one.
            let hung = hangs_at(&impatient, action, place)
                || [400, 4000, 40_000]
                    .into_iter()
                    .any(|limit| hangs_at(&pair(limit), action, place));
            assert!(hung, "the step should hang at {action}, {place:?}");
        }
    });
}

/// Whether the step hung at this place only, and the pipeline was stuck meanwhile.
fn hangs_at(pair: &Pair, action: Action, place: Place) -> bool {
    let (release, until): (Sender<()>, _) = channel();
    let error = pair.step_into(place, Fault::Hang(until));
    let StepError::Stalled { flight, .. } = error else {
        panic!("the step should stall at {action}: {error}");
    };
    let layer = Some((place.layer, "Snared".to_owned()));
    let here = WorkerState::Running { action, layer };
    let mut workers = flight.workers.iter();
    let worker = workers.position(|worker| worker.state == here);
    let is_said = worker.is_some_and(|worker| {
        let stuck = step(&pair.pipeline);
        matches!(stuck, Err(StepError::Stuck { worker: found }) if found == worker)
    });
    // Later steps must not run into the trap.
    pair.trap.0.lock().unwrap().take();
    drop(release);
    pair.step_well();
    is_said
}
