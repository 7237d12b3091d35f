//! Gradients that lie in a store during a step.

use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use burn::module::{ParamId, list_param_ids};
use stovepipe_pipeline::error::{BoxedError, FailureCause};

use stovepipe_schedule::DataParallel;

use crate::{
    models::*,
    ties::{WORDS, words},
};

/// Gradients in memory.
struct InMemory {
    kept: Mutex<GradientsParams>,
    /// How often gradients may be put there.
    room: AtomicUsize,
}

impl InMemory {
    fn new(room: usize) -> Arc<Self> {
        Arc::new(Self {
            kept: Mutex::default(),
            room: AtomicUsize::new(room),
        })
    }
}

/// Moves the gradients of a layer, and returns whose these are.
fn moved<M: Module>(
    module: &M,
    from: &mut GradientsParams,
    to: &mut GradientsParams,
) -> Vec<ParamId> {
    struct Move<'a> {
        from: &'a mut GradientsParams,
        to: &'a mut GradientsParams,
        moved: Vec<ParamId>,
    }

    impl ModuleVisitor for Move<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.from.remove::<D>(param.id) {
                self.to.register(param.id, gradient);
                self.moved.push(param.id);
            }
        }
    }

    let moved = Vec::new();
    let mut visitor = Move { from, to, moved };
    module.visit(&mut visitor);
    visitor.moved
}

impl<L: Layer> GradientStore<L> for InMemory {
    fn take(&self, layer: &L) -> Result<GradientsParams, BoxedError> {
        let mut taken = GradientsParams::new();
        moved(layer, &mut self.kept.lock().unwrap(), &mut taken);
        Ok(taken)
    }

    fn put(&self, layer: &L, mut gradients: GradientsParams) -> Result<(), BoxedError> {
        let room = |room: usize| room.checked_sub(1);
        let left = self
            .room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        left.map_err(|_| "the disk is full")?;
        moved(layer, &mut gradients, &mut self.kept.lock().unwrap());
        Ok(())
    }

    fn clear(&self) {
        *self.kept.lock().unwrap() = GradientsParams::new();
    }
}

/// Compares two steps, with the gradients of all stages here, and in stores. Returns how many of them were in stores.
fn compare<L, T: Flow>(
    build: impl Fn() -> PipelineBuilder<L>,
    batch: (L::Input, T),
    objective: &impl Objective<L::Output, T>,
) -> usize
where
    L: Layer<Side = ()>,
{
    let pipeline = build().build().unwrap();
    let stages = pipeline.stages().len();
    let stores: Vec<_> = (0..stages).map(|_| InMemory::new(usize::MAX)).collect();
    let as_stores: Vec<_> = (stores.iter())
        .map(|store| Some(store.clone() as Arc<dyn GradientStore<L>>))
        .collect();
    let mut count = 0;
    for step in 0..2 {
        pipeline.set_steps(step); // draws the same numbers
        let expected = pipeline.train_step(batch.clone(), objective).unwrap();
        pipeline.set_steps(step);
        let mut found = pipeline
            .train_step_into(batch.clone(), objective, &as_stores)
            .unwrap();
        assert_eq!(found.loss.to_bits(), expected.loss.to_bits());
        let of_all: Vec<_> = pipeline
            .stages()
            .into_iter()
            .map(|stage| stage.layers)
            .collect();
        let mut away = HashSet::new();
        for (store, layers) in stores.iter().zip(of_all) {
            for layer in &pipeline.layers()[layers] {
                let kept = &mut store.kept.lock().unwrap();
                for id in moved(layer, kept, &mut found.gradients) {
                    assert!(away.insert(id));
                }
            }
        }
        let bits = |step: &Step<L>| gradient_bits(&pipeline, &step.gradients);
        assert!(!bits(&expected).is_empty());
        assert!(
            bits(&found) == bits(&expected),
            "step {step} of {stages} stages"
        );
        count = away.len();
    }
    count
}

#[test]
fn gradients_in_stores_are_those_of_a_step() {
    let all = list_param_ids(&conv_net()).len() - 2 * 5; // without the statistics of five norms
    for (rule, workers, recompute) in cuts(4) {
        let build = || builder(conv_net(), workers, rule, 3, recompute.clone());
        let batch = (images(7), labels(7, 4));
        let found = compare(build, batch, &CrossEntropy::new());
        assert_eq!(found, all, "{rule:?}, {recompute:?}");
    }
}

/// In f16 they are divided by the scale of the loss at the end.
#[test]
fn gradients_in_stores_are_those_of_mixed_precision() {
    for precision in [Precision::Bf16, Precision::F16] {
        let build = || {
            let builder = builder(conv_net(), 2, By(Rule::GPipe, 1), 3, Recompute::Never);
            builder.precision(precision)
        };
        assert!(compare(build, (images(7), labels(7, 4)), &CrossEntropy::new()) > 0);
    }
}

/// What is added over layers or replicas has to be here.
#[test]
fn what_has_several_places_stays_on_the_device() {
    let scheduler = || DataParallel::equal(By(Rule::GPipe, 1), 2);
    let build = || builder(conv_net(), 4, scheduler(), 3, Recompute::Never);
    assert_eq!(
        compare(build, (images(7), labels(7, 4)), &CrossEntropy::new()),
        0
    );
    let inputs = || labels(9, WORDS);
    for workers in [1, 2, 5] {
        let build = || builder(words(), workers, By(Rule::GPipe, 1), 3, Recompute::Always);
        // Only the layers in between have gradients of their own.
        assert_eq!(
            compare(build, (inputs(), inputs()), &CrossEntropy::new()),
            4
        );
    }
}

#[test]
fn gradients_that_are_not_finite_are_found_in_stores() {
    let pipeline = builder(
        dense(&[3, 4, 2]),
        2,
        By(Rule::GPipe, 1),
        2,
        Recompute::Never,
    );
    let pipeline = pipeline.build().unwrap();
    let store = || Some(InMemory::new(usize::MAX) as Arc<dyn GradientStore<Dense>>);
    let batch = (vectors(4, 3).mul_scalar(f32::NAN), labels(4, 2));
    let step = pipeline.train_step_into(batch, &CrossEntropy::new(), &[store(), store()]);
    assert!(matches!(step, Err(StepError::NotFinite { .. })));
}

#[test]
fn a_store_that_fails_fails_the_step_and_the_next_one_works() {
    for room in 0..4 {
        let pipeline = builder(
            dense(&[3, 4, 2]),
            2,
            By(Rule::GPipe, 1),
            2,
            Recompute::Never,
        );
        let pipeline = pipeline.build().unwrap();
        let mut stores = [usize::MAX, room].map(|room| {
            let store = InMemory::new(room);
            Some(store as Arc<dyn GradientStore<Dense>>)
        });
        let step = |stores: &[_]| {
            let batch = (vectors(4, 3), labels(4, 2));
            pipeline.train_step_into(batch, &CrossEntropy::new(), stores)
        };
        // Of two micro-batches.
        match step(&stores) {
            Ok(_) => assert!(room >= 2, "{room}"),
            Err(StepError::Failed(failure)) => {
                assert!(room < 2, "{room}");
                assert!(matches!(failure.cause, FailureCause::GradientStore(_)));
                assert_eq!(failure.stage, 1);
                assert!(failure.cause.to_string().ends_with(": the disk is full"));
            }
            Err(other) => panic!("{other}"),
        }
        assert_eq!(pipeline.steps(), u64::from(room >= 2));
        stores[1] = Some(InMemory::new(usize::MAX));
        let _ = step(&stores).unwrap();
    }
}
