//! Windows of asynchronous training, compared with a loop over plain Burn that keeps all versions.

use std::{collections::HashMap, ops::Range};

use burn::{
    module::{ModuleMapper, Param},
    nn::BatchNorm,
    optim::{GradientsAccumulator, ModuleOptimizer},
    tensor::ElementConversion,
};
use proptest::prelude::*;
use stovepipe_pipeline::{
    error::{WindowError, WrongSchedule},
    nn::Dropout,
};
use stovepipe_schedule::{PipeDream, WeightPolicy};

use crate::{
    models::*,
    processes::{Fails, tied_words},
    ranks::*,
    ties::WORDS,
};

const CLASSES: usize = 4;
const RATE: f64 = 0.02;

type Examples<L> = (<L as Layer>::Input, Tensor<1, Int>);

/// What a window gives: losses, and all floats of the model.
type Seen = (Vec<u32>, ByPath<u32>);

fn optimizers(stages: usize) -> Vec<ModuleOptimizer> {
    (0..stages).map(|_| AdamConfig::new().init()).collect()
}

fn update<L: Layer>(
    _: usize,
    layers: Vec<L>,
    gradients: GradientsParams,
    mut optimizer: ModuleOptimizer,
    _: usize,
) -> (Vec<L>, ModuleOptimizer) {
    (optimizer.step(RATE, layers, gradients), optimizer)
}

/// Where and when passes run.
#[derive(Clone, Debug)]
struct Plan {
    replicas: Vec<usize>,
    policy: WeightPolicy,
    /// Of a mini-batch.
    micro_batches: usize,
}

impl Plan {
    fn scheduler(&self) -> PipeDream {
        PipeDream::new(self.replicas.clone()).with_update_every(self.micro_batches)
    }

    fn builder<L: Layer>(&self, layers: Vec<L>, recompute: Recompute) -> PipelineBuilder<L> {
        let workers = self.replicas.iter().sum();
        let builder = builder(
            layers,
            workers,
            self.scheduler(),
            self.micro_batches,
            recompute,
        );
        builder.weight_policy(self.policy)
    }

    /// The replica and the version of each stage and micro-batch.
    fn table(&self, mini_batches: usize) -> HashMap<(usize, usize), (usize, usize)> {
        let stages = self.replicas.len();
        let all = mini_batches * self.micro_batches;
        let schedule = self.scheduler().schedule(stages, all).unwrap();
        let versions = schedule.versions(self.policy).unwrap();
        let mut table = HashMap::new();
        for (worker, actions) in schedule.workers().iter().enumerate() {
            for (action, used) in actions.iter().zip(&versions.workers()[worker]) {
                if action.pass == Pass::Forward {
                    let replicas = schedule.replicas(action.stage);
                    let replica = replicas.iter().position(|own| *own == worker).unwrap();
                    table.insert((action.stage, action.micro_batch), (replica, used.version));
                }
            }
        }
        table
    }
}

/// The loop: one micro-batch after another, each on its versions.
fn plain<L>(layers: &[L], cut: &[Range<usize>], plan: &Plan, batches: &[Examples<L>]) -> Seen
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let table = plan.table(batches.len());
    let mut versions: Vec<Vec<Vec<L>>> = (cut.iter())
        .map(|range| vec![layers[range.clone()].to_vec().valid().train()])
        .collect();
    let mut optimizers = optimizers(cut.len());
    let (mut losses, mut counted) = (Vec::new(), Vec::new());
    for (number, (input, labels)) in batches.iter().enumerate() {
        let samples = labels.dims()[0];
        let size = |index| {
            samples / plan.micro_batches + usize::from(index < samples % plan.micro_batches)
        };
        let sizes: Vec<_> = (0..plan.micro_batches).map(size).collect();
        let parts = (input.clone(), labels.clone()).split(&sizes).into_iter();
        let mut sums: Vec<Vec<GradientsAccumulator<L>>> = (cut.iter().zip(&plan.replicas))
            .map(|(_, &replicas)| (0..replicas).map(|_| GradientsAccumulator::new()).collect())
            .collect();
        let (mut first, mut loss_sum) = (0, 0.0);
        for (index, (input, labels)) in parts.enumerate() {
            let own = first..first + sizes[index];
            first = own.end;
            let of = |stage: usize| table[&(stage, number * plan.micro_batches + index)];
            let chosen = (0..cut.len()).flat_map(|stage| versions[stage][of(stage).1].clone());
            let chosen: Vec<L> = chosen.collect::<Vec<_>>().valid().train();
            let output = run_plain(&chosen, input, &(), |layer| {
                KeyedRng::new(7, number as u64, layer, own.clone())
            });
            let loss = CrossEntropy::new().loss(output.unwrap().output, labels.autodiff());
            let loss = loss.div_scalar(samples as f64);
            loss_sum += f64::from(loss.clone().into_scalar::<f32>().elem::<f32>());
            let mut gradients = loss.backward();
            for (stage, range) in cut.iter().enumerate() {
                for layer in &chosen[range.clone()] {
                    let own = GradientsParams::from_module(&mut gradients, layer);
                    sums[stage][of(stage).0].accumulate(layer, own);
                }
            }
            counted.push((number, own.len(), bits(&chosen)));
        }
        losses.push((loss_sum as f32).to_bits());
        for (stage, sums) in sums.into_iter().enumerate() {
            // The sum of two does not depend on their order.
            assert!(sums.len() <= 2);
            let newest = versions[stage].last().unwrap().clone();
            let mut all = GradientsAccumulator::new();
            for mut own in sums {
                all.accumulate(&newest, own.grads());
            }
            let next = optimizers[stage].step(RATE, newest, all.grads());
            versions[stage].push(next);
        }
    }
    let last = versions.into_iter().flat_map(|mut own| own.pop().unwrap());
    let last: Vec<L> = last.collect();
    (
        losses,
        with_statistics(bits(&last), &bits(&layers.to_vec()), &counted),
    )
}

/// Puts the running statistics after the window into a model's floats: those of each mini-batch, one after
/// another.
fn with_statistics(
    mut floats: ByPath<u32>,
    start: &ByPath<u32>,
    counted: &[(usize, usize, ByPath<u32>)],
) -> ByPath<u32> {
    const MOMENTUM: f32 = 0.1;
    let number =
        |own: &ByPath<u32>, place: usize, index: usize| f32::from_bits(own[place].1[index]);
    let mini_batches = 1 + counted.last().unwrap().0;
    for (place, (path, floats)) in floats.iter_mut().enumerate() {
        let is_variance = path.ends_with("running_var");
        if !is_variance && !path.ends_with("running_mean") {
            continue;
        }
        let mean = start
            .iter()
            .position(|(own, _)| *own == path.replace("_var", "_mean"));
        for (index, float) in floats.iter_mut().enumerate() {
            let mut now = number(start, place, index);
            for mini_batch in 0..mini_batches {
                let own = counted.iter().filter(|own| own.0 == mini_batch);
                let own: Vec<_> = own.collect();
                let samples: usize = own.iter().map(|(_, size, _)| size).sum();
                let moved = |all: &ByPath<u32>, place: usize| {
                    number(all, place, index) - (1.0 - MOMENTUM) * number(start, place, index)
                };
                let mean_of = |of: &dyn Fn(&ByPath<u32>) -> f32| -> f32 {
                    let share = |size: usize| size as f32 / samples as f32;
                    own.iter()
                        .map(|(_, size, all)| share(*size) * of(all))
                        .sum()
                };
                let mut change = mean_of(&|all| moved(all, place));
                if let Some(mean) = mean.filter(|_| is_variance) {
                    let middle = mean_of(&|all| moved(all, mean));
                    let spread = mean_of(&|all| (moved(all, mean) - middle).powi(2));
                    change += spread / MOMENTUM;
                }
                now = (1.0 - MOMENTUM) * now + change;
            }
            *float = now.to_bits();
        }
    }
    floats
}

/// Parameters and losses have the same bits, running statistics are close, or the same, too.
#[track_caller]
fn assert_same_window(found: &Seen, expected: &Seen, (to_the_bit, what): (bool, &str)) {
    assert_eq!(found.0, expected.0, "losses, {what}");
    for (path, bits) in &found.1 {
        let expected = expected.1.iter().find(|(own, _)| own == path);
        let (_, expected) = expected.unwrap();
        if path.contains("running_") && !to_the_bit {
            let [found, expected] =
                [bits, expected].map(|own| own.iter().map(|own| f32::from_bits(*own)).collect());
            let found: Vec<f32> = found;
            let difference = relative_difference(&found, &expected);
            assert!(difference < 1e-5, "{path}: {difference}, {what}");
        } else {
            assert_eq!(bits, expected, "{path}, {what}");
        }
    }
}

fn window<L>(pipeline: &mut Pipeline<L>, batches: Vec<Examples<L>>) -> Result<Window, StepError>
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let mut states = optimizers(pipeline.stages().len());
    pipeline.train_window(batches, &CrossEntropy::new(), &mut states, update)
}

fn seen<L>(mut pipeline: Pipeline<L>, batches: Vec<Examples<L>>) -> Seen
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let count = batches.len() as u64;
    let window = window(&mut pipeline, batches).unwrap();
    assert_eq!(pipeline.steps(), count);
    pipeline.check_replicas().unwrap();
    let losses = window.losses.iter().map(|loss| (*loss as f32).to_bits());
    // Of this process; without the name that a pipeline gives to its layers.
    let model = bits(&pipeline).into_iter();
    let model = model.map(|(path, bits)| (path.replacen("layers.", "", 1), bits));
    (losses.collect(), model.collect())
}

fn cut<L: Layer>(pipeline: &Pipeline<L>) -> Vec<Range<usize>> {
    pipeline
        .stages()
        .into_iter()
        .map(|stage| stage.layers)
        .collect()
}

fn check<L>(layers: impl Fn() -> Vec<L>, batches: &[Examples<L>], plan: &Plan)
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let count = layers().len();
    for recompute in modes(count, 1) {
        let pipeline = plan.builder(layers(), recompute.clone()).build().unwrap();
        compare(pipeline, batches, plan, &format!("{plan:?}, {recompute}"));
    }
}

fn compare<L>(pipeline: Pipeline<L>, batches: &[Examples<L>], plan: &Plan, what: &str)
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let start = pipeline.layers().to_vec().valid().train();
    let expected = plain(&start, &cut(&pipeline), plan, batches);
    let before = bits(&start);
    let found = seen(pipeline, batches.to_vec());
    // All trains: parameters that stay as they are would be right under any version.
    let changed = found.1.iter().map(|(path, bits)| {
        let before = before.iter().find(|(own, _)| own == path);
        bits.iter().zip(&before.unwrap().1).filter(|(a, b)| a != b)
    });
    let (changed, all) = (
        changed.map(Iterator::count).sum::<usize>(),
        before.iter().map(|(_, bits)| bits.len()).sum::<usize>(),
    );
    assert!(
        2 * changed > all,
        "only {changed} of {all} floats changed, {what}"
    );
    // The statistics of several micro-batches are joined, and rounded otherwise.
    assert_same_window(&found, &expected, (plan.micro_batches == 1, what));
}

/// Mini-batches of unequal sizes.
fn pictures(count: usize) -> Vec<Examples<ConvNet>> {
    let batch = |index: usize| {
        let samples = 6 + index % 2;
        let images = images(samples).mul_scalar(1.0 + 0.1 * index as f64);
        (
            images,
            labels(samples + index, CLASSES).narrow(0, index, samples),
        )
    };
    (0..count).map(batch).collect()
}

const POLICIES: [WeightPolicy; 2] = [WeightPolicy::Stashing, WeightPolicy::VerticalSync];

#[test]
fn a_window_is_a_loop_over_versions() {
    for policy in POLICIES {
        for (stages, micro_batches, count) in [
            (1, 1, 3),
            (2, 1, 5),
            (2, 3, 3),
            (3, 2, 4),
            (4, 1, 6),
            (4, 4, 2),
        ] {
            let plan = Plan {
                replicas: vec![1; stages],
                policy,
                micro_batches,
            };
            check(|| without_statistics(conv_net()), &pictures(count), &plan);
        }
    }
}

#[test]
fn replicas_meet_at_updates() {
    for policy in POLICIES {
        for (replicas, micro_batches, count) in [
            (vec![2], 2, 3),
            (vec![2, 1], 2, 4),
            (vec![1, 2], 3, 3),
            (vec![2, 2], 4, 2),
            (vec![1, 2, 1], 2, 4),
        ] {
            let plan = Plan {
                replicas,
                policy,
                micro_batches,
            };
            check(|| without_statistics(conv_net()), &pictures(count), &plan);
        }
    }
}

/// A linear layer with any of a batch norm, dropout and skips.
#[derive(Module, Debug)]
struct Drawn {
    linear: Linear,
    norm: Option<BatchNorm>,
    dropout: Option<Dropout>,
    #[module(skip)]
    uses: Vec<SkipUse>,
}

impl Layer for Drawn {
    flow!(Tensor<2>);

    fn skips(&self) -> Vec<SkipUse> {
        self.uses.clone()
    }

    fn forward(&self, x: Tensor<2>, context: &mut Context<'_, Self>) -> Forward<Tensor<2>> {
        let mut y = self.linear.forward(x).tanh();
        for skip in &self.uses {
            match skip {
                SkipUse::Send(name) => context.send(name, y.clone()),
                SkipUse::Take(name) => y = y + context.take(name)?.mul_scalar(0.7),
            }
        }
        if let Some(norm) = &self.norm {
            y = norm.forward(y);
        }
        Ok(match &self.dropout {
            Some(dropout) => dropout.forward(y, context.rng()),
            None => y,
        })
    }
}

#[derive(Clone, Debug)]
struct Model {
    /// Whether each layer has a batch norm and dropout.
    layers: Vec<[bool; 2]>,
    /// Layers that a skip goes from and to, if the second comes later.
    skips: Vec<[usize; 2]>,
}

impl Model {
    fn layers(&self) -> Vec<Drawn> {
        let layer = |&[has_norm, drops]: &[bool; 2]| Drawn {
            linear: linear(CLASSES, CLASSES),
            norm: has_norm.then(|| without_statistics(norm(CLASSES))),
            dropout: drops.then(|| Dropout::new(0.3)),
            uses: Vec::new(),
        };
        let mut layers: Vec<_> = self.layers.iter().map(layer).collect();
        for (number, [from, to]) in self.skips.iter().enumerate() {
            let name = format!("skip {number}");
            if from < to && *to < layers.len() {
                layers[*from].uses.push(SkipUse::send(&*name));
                layers[*to].uses.push(SkipUse::take(&*name));
            }
        }
        layers
    }
}

/// Running statistics of zero: what a mini-batch adds to them can then be read without rounding.
fn without_statistics<M: Module>(module: M) -> M {
    /// Whether it is in a cell of statistics.
    struct Zero(bool);

    impl ModuleMapper for Zero {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.0 = name.starts_with("running_");
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.0 = false;
        }

        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0 {
                true => param.map(|tensor| tensor.zeros_like()),
                false => param,
            }
        }
    }

    module.map(&mut Zero(false))
}

prop_compose! {
    /// A model, and a cut of it.
    fn cut_model()(layers in prop::collection::vec(any::<[bool; 2]>(), 1..8))(
        boundaries in prop::sample::subsequence(
            (1..layers.len()).collect::<Vec<_>>(), 0..=(layers.len() - 1).min(3),
        ),
        skips in prop::collection::vec([0..layers.len(), 0..layers.len()], 0..3),
        layers in Just(layers),
    ) -> (Model, Vec<usize>) {
        let ends = boundaries.into_iter().chain([layers.len()]);
        let cut = ends.scan(0, |begin, end| Some(end - std::mem::replace(begin, end)));
        let cut = cut.collect();
        (Model { layers, skips }, cut)
    }
}

prop_compose! {
    fn any_plan()((model, cut) in cut_model())(
        replicas in prop::collection::vec(1..=2_usize, cut.len()),
        micro_batches in 1..=3_usize,
        policy in prop::sample::select(POLICIES.to_vec()),
        (model, cut) in Just((model, cut)),
    ) -> (Model, Vec<usize>, Plan) {
        let micro_batches = micro_batches.max(*replicas.iter().max().unwrap());
        (model, cut, Plan { replicas, policy, micro_batches })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_window_is_a_loop_over_versions(
        (model, cut, plan) in any_plan(), updates in 1..6_usize, mode in 0..3_usize,
    ) {
        let samples = |index| 2 * plan.micro_batches + index % 2;
        let batch = |index| (vectors(samples(index), CLASSES), labels(samples(index), CLASSES));
        let batches: Vec<_> = (0..updates).map(batch).collect();
        let builder = plan.builder(model.layers(), Recompute::MODES[mode].clone());
        let pipeline = builder.balance(Balance::Layers(cut)).build().unwrap();
        compare(pipeline, &batches, &plan, &format!("{model:?}, {plan:?}"));
    }
}

/// Each rank trains its stages: losses are the same in all.
#[test]
fn processes_leave_windows_alone() {
    for (replicas, of_workers) in [
        (vec![1, 1], vec![0, 1]),
        (vec![1, 1, 1], vec![0, 1, 0]),
        (vec![2, 1], vec![0, 1, 1]),
        (vec![1, 2], vec![0, 0, 1]),
        (vec![2, 2], vec![0, 1, 2, 0]),
    ] {
        for policy in POLICIES {
            let plan = Plan {
                replicas: replicas.clone(),
                policy,
                micro_batches: 2,
            };
            let batches = pictures(4);
            let build = || plan.builder(conv_net(), Recompute::Always).bucket(1);
            let (losses, model) = seen(build().build().unwrap(), batches.clone());
            let expected = joined(vec![vec![vec![("losses".to_owned(), losses)], model]]);
            let processes = of_workers.iter().max().unwrap() + 1;
            let found = ranks(processes, |comm| {
                let builder = build().devices(devices(&of_workers)).communicator(comm);
                let (losses, model) = seen(builder.build().unwrap(), batches.clone());
                vec![vec![("losses".to_owned(), losses)], model]
            });
            assert_same(
                &joined(found),
                &expected,
                &format!("{plan:?} in {of_workers:?}"),
            );
        }
    }
}

/// Without stashing: a micro-batch runs forward on one version, and again and backward on a newer one.
#[test]
fn weights_that_are_not_stashed() {
    let plan = Plan {
        replicas: vec![1; 3],
        policy: WeightPolicy::Newest,
        micro_batches: 1,
    };
    let build = |recompute| {
        plan.builder(dense(&[4, 5, 6, 4]), recompute)
            .build()
            .unwrap()
    };
    let pipeline = build(Recompute::Always);
    let batch = |index: usize| (vectors(5 + index, 4), labels(5 + index, CLASSES));
    let batches: Vec<_> = (0..5).map(batch).collect();
    let table = plan.table(batches.len());
    let layers = pipeline.layers().to_vec().valid().train().into_iter();
    let mut versions: Vec<_> = layers.map(|layer| vec![vec![layer]]).collect();
    let (mut optimizers, mut losses) = (optimizers(3), Vec::new());
    for (index, (input, labels)) in batches.iter().enumerate() {
        let fresh = |layers: &Vec<Dense>| layers.clone().valid().train();
        let mut inputs = vec![input.clone()];
        for stage in 0..2 {
            let (_, version) = table[&(stage, index)];
            let layers = fresh(&versions[stage][version]);
            inputs.push(layers[0].forward(inputs[stage].clone().autodiff()).inner());
        }
        let mut gradient: Option<Tensor<2>> = None;
        for stage in (0..3).rev() {
            // An update has followed each backward pass.
            let layers = fresh(&versions[stage][index]);
            let input = inputs[stage].clone().autodiff().require_grad();
            let output = layers[0].forward(input.clone());
            let seed = match gradient {
                Some(gradient) => (output * gradient.autodiff()).sum(),
                None => {
                    let loss = CrossEntropy::new().loss(output, labels.clone().autodiff());
                    let loss = loss.div_scalar(labels.dims()[0] as f64);
                    losses.push(loss.clone().into_scalar::<f32>().to_bits());
                    loss
                }
            };
            let mut gradients = seed.backward();
            gradient = input.grad(&gradients);
            let own = GradientsParams::from_module(&mut gradients, &layers);
            let newest = versions[stage][index].clone();
            let next = optimizers[stage].step(RATE, newest, own);
            versions[stage].push(next);
        }
    }
    let last: Vec<_> = versions
        .into_iter()
        .flat_map(|mut own| own.pop().unwrap())
        .collect();
    let expected = (losses, bits(&last));
    assert_same_window(
        &seen(pipeline, batches.clone()),
        &expected,
        (true, "not stashed"),
    );

    let failed = window(&mut build(Recompute::Never), batches).unwrap_err();
    assert_contains(
        failed,
        "weights that are not stashed need Recompute::Always",
    );
}

#[test]
fn no_more_versions_are_kept_than_the_table_has() {
    for (policy, expected) in [
        (WeightPolicy::Stashing, [4, 3, 2, 1]),
        (WeightPolicy::VerticalSync, [4; 4]),
        (WeightPolicy::Newest, [1; 4]),
    ] {
        let plan = Plan {
            replicas: vec![1; 4],
            policy,
            micro_batches: 1,
        };
        let mut pipeline = plan.builder(conv_net(), Recompute::Always).build().unwrap();
        let held = window(&mut pipeline, pictures(8)).unwrap().held;
        let held = held.iter().map(|held| held.weight_versions);
        assert_eq!(held.collect::<Vec<_>>(), expected);
    }
}

/// A window that fails changes nothing, and the next one works.
#[test]
fn a_window_succeeds_or_fails_whole() {
    let net = |fails: Option<usize>| {
        let layer = |index| Fails::new(fails == Some(index));
        (0..4).map(layer).collect::<Vec<_>>()
    };
    let plan = Plan {
        replicas: vec![1, 2],
        policy: WeightPolicy::Stashing,
        micro_batches: 2,
    };
    let batches = || {
        (0..4)
            .map(|_| (vectors(6, 4), labels(6, 4)))
            .collect::<Vec<_>>()
    };
    let sound = seen(
        plan.builder(net(None), Recompute::Never).build().unwrap(),
        batches(),
    );
    for layer in 0..4 {
        let builder = plan.builder(net(Some(layer)), Recompute::Never);
        let mut pipeline = builder.build().unwrap();
        let before = bits(&pipeline);
        let mut states = optimizers(2);
        let objective = CrossEntropy::new();
        let failed = pipeline.train_window(batches(), &objective, &mut states, update);
        assert_contains(failed.unwrap_err(), "a bad layer");
        assert_eq!((bits(&pipeline), pipeline.steps()), (before, 0));
        assert_eq!(seen(pipeline, batches()), sound, "layer {layer}");
    }
    // An update that panics, and a loss that is NaN in the third mini-batch.
    let mut pipeline = plan.builder(net(None), Recompute::Never).build().unwrap();
    let before = bits(&pipeline);
    let failing = |stage, layers: Vec<Fails>, gradients, state, number| {
        assert!((stage, number) != (1, 2), "a bad update");
        update(stage, layers, gradients, state, number)
    };
    let mut states = optimizers(2);
    let failed = pipeline.train_window(batches(), &CrossEntropy::new(), &mut states, failing);
    assert_contains(failed.unwrap_err(), "a bad update");
    let mut spoiled = batches();
    spoiled[2].0 = spoiled[2].0.clone().mul_scalar(f32::NAN);
    let failed = window(&mut pipeline, spoiled).unwrap_err();
    assert_contains(failed, "loss of mini-batch 2 of the window is not finite");
    assert_eq!((bits(&pipeline), pipeline.steps()), (before, 0));
    assert_eq!(seen(pipeline, batches()), sound);
}

/// Says that it has more batches than it has.
struct Short<I>(I);

impl<I: Iterator> Iterator for Short<I> {
    type Item = I::Item;

    fn next(&mut self) -> Option<I::Item> {
        self.0.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (5, Some(5))
    }
}

impl<I: Iterator> ExactSizeIterator for Short<I> {}

#[test]
fn windows_that_cannot_be_trained() {
    let plan = Plan {
        replicas: vec![1, 1],
        policy: WeightPolicy::Stashing,
        micro_batches: 2,
    };
    let batch = |samples| (vectors(samples, 4), labels(samples, 4));
    let net = || dense(&[4, 4, 4]);
    let error = |builder: PipelineBuilder<Dense>, batches: Vec<Examples<Dense>>| {
        window(&mut builder.build().unwrap(), batches).unwrap_err()
    };
    let usual = || plan.builder(net(), Recompute::Never);
    let is = |error: StepError, expected: WindowError| {
        assert!(
            matches!(&error, StepError::Window(own) if *own == expected),
            "{error}"
        );
    };
    is(error(usual(), vec![]), WindowError::Empty);
    let f16 = usual().precision(Precision::F16);
    is(error(f16, vec![batch(4)]), WindowError::F16);
    let few = WindowError::FewSamples {
        samples: 1,
        micro_batches: 2,
    };
    is(error(usual(), vec![batch(4), batch(1)]), few);
    let synchronous = usual().schedule(GPipe);
    let wrong = |error: StepError, expected: WrongSchedule| {
        assert!(
            matches!(&error, StepError::WrongSchedule(own) if *own == expected),
            "{error}"
        );
    };
    wrong(
        error(synchronous, vec![batch(4)]),
        WrongSchedule::Synchronous,
    );
    let rhythm = usual().schedule(PipeDream::default());
    let expected = WrongSchedule::Updates {
        every: 1,
        micro_batches: 2,
    };
    wrong(error(rhythm, vec![batch(4)]), expected);
    let pipeline = usual().build().unwrap();
    let step = pipeline.train_step(batch(4), &CrossEntropy::new());
    wrong(step.unwrap_err(), WrongSchedule::Asynchronous);
    // An evaluation does not depend on the schedule.
    assert!(pipeline.evaluate(batch(4), &CrossEntropy::new()).is_ok());

    let mut pipeline = usual().build().unwrap();
    let short = Short((0..3).map(|_| batch(4)));
    let mut states = optimizers(2);
    let failed = pipeline.train_window(short, &CrossEntropy::new(), &mut states, update);
    let expected = WindowError::Ended {
        found: 3,
        expected: 5,
    };
    is(failed.unwrap_err(), expected);
    assert!(window(&mut pipeline, vec![batch(4)]).is_ok());

    let plan = Plan {
        replicas: vec![1, 1],
        ..plan
    };
    let tied = plan.builder(tied_words(false, None), Recompute::Never);
    let batch = (labels(6, WORDS), labels(6, WORDS));
    let failed = window(&mut tied.build().unwrap(), vec![batch]).unwrap_err();
    is(failed, WindowError::SharedParameters);
}
