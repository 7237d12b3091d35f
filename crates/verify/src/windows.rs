//! Windows of asynchronous training, compared with a loop that keeps all versions of the weights.

use std::{
    collections::BTreeSet,
    fmt,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use burn::{
    optim::{GradientsAccumulator, ModuleOptimizer, SgdConfig},
    tensor::Tensor,
};
use stovepipe_pipeline::{
    Flow, Layer, Objective, Pipeline, Recompute, Step, StepError,
    error::{ProcessError, WindowError},
};
use stovepipe_schedule::{OneForwardOneBackward, PipeDream, Scheduler, Versions, WeightPolicy};

use crate::{
    case::CaseError,
    checks::allowed,
    report::Check,
    snapshot::Snapshot,
    subject::{LEARNING_RATE, Subject, copies, own_layers},
};

/// So many that stages use weights of before and after updates.
const MINI_BATCHES: usize = 3;

/// One way to train a window.
struct WindowCase {
    /// Of each stage.
    replicas: Vec<usize>,
    micro_batches: usize,
    policy: WeightPolicy,
    recompute: Recompute,
}

impl WindowCase {
    fn scheduler(&self) -> PipeDream {
        PipeDream::new(self.replicas.clone()).with_update_every(self.micro_batches)
    }

    /// The version that each pass uses.
    fn versions(&self) -> Result<Versions, CaseError> {
        let micro_batches = MINI_BATCHES * self.micro_batches;
        let schedule = (self.scheduler()).schedule(self.replicas.len(), micro_batches)?;
        Ok(schedule.versions(self.policy)?)
    }
}

impl fmt::Display for WindowCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let es = if self.micro_batches == 1 { "" } else { "es" };
        let policy = self.policy;
        let stages = match self.replicas.iter().all(|own| *own == 1) {
            true => format!("{} stages", self.replicas.len()),
            false => format!("stages of {:?} replicas", self.replicas),
        };
        let (n, recompute) = (self.micro_batches, self.recompute.clone());
        write!(
            f,
            "pipedream, {policy}, {stages}, {n} micro-batch{es}, recompute {recompute}"
        )
    }
}

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether each pass of asynchronous training uses the weights that the schedule's table says.
    pub(crate) fn check_windows(
        &self,
        stages: &BTreeSet<usize>,
        micro_batches: &BTreeSet<usize>,
    ) -> Result<Check, ProcessError> {
        let compared = "windows of PipeDream with a loop over versions";
        let mut check = Check::new("windows", compared, allowed(&self.device));
        let cases = self.window_cases(stages, micro_batches);
        let skipped = match () {
            () if self.training_step.is_some() => Some("a training step of your own has none"),
            () if self.processes.size() > 1 => Some("they are compared in one process only"),
            () if cases.is_empty() => {
                Some("they need two stages, and a sample in each micro-batch")
            }
            () => None,
        };
        if let Some(why) = skipped {
            return Ok(check.skipped(why));
        }
        for case in cases {
            let pipeline = self.build_window(&case);
            let cut = pipeline.as_ref().map_or_else(|_| Vec::new(), cut);
            let found = pipeline.and_then(|pipeline| self.train_window(pipeline));
            if let Err(CaseError::Step(StepError::Window(why @ WindowError::SharedParameters))) =
                &found
            {
                return Ok(check.skipped(&why.to_string()));
            }
            let expected = self.loop_over_versions(&case, &cut);
            check.compare(&self.processes, &case, &found, &expected)?;
        }
        Ok(check.finished(
            "a layer keeps something that it computed of other weights: between the forward and the \
             backward pass of a micro-batch, it runs with newer ones",
        ))
    }

    /// The smallest numbers of stages and micro-batches. Of these, policies and recomputation, any three take
    /// all combinations.
    fn window_cases(
        &self,
        stages: &BTreeSet<usize>,
        micro_batches: &BTreeSet<usize>,
    ) -> Vec<WindowCase> {
        use Recompute::{Always, Never};
        use WeightPolicy::{Stashing, VerticalSync};

        let mut cases = Vec::new();
        for (row, &n) in micro_batches.range(1..=self.samples()).take(2).enumerate() {
            for (column, &stages) in stages.range(2..).take(2).enumerate() {
                let of_policies = match (row + column) % 2 {
                    0 => [(Stashing, Always), (VerticalSync, Never)],
                    _ => [(Stashing, Never), (VerticalSync, Always)],
                };
                cases.extend(of_policies.map(|(policy, recompute)| WindowCase {
                    replicas: vec![1; stages],
                    micro_batches: n,
                    policy,
                    recompute,
                }));
            }
        }
        // A sum of two does not depend on their order.
        if cases.iter().any(|case| case.micro_batches >= 2) {
            cases.push(WindowCase {
                replicas: vec![2, 1],
                micro_batches: 2,
                policy: Stashing,
                recompute: Always,
            });
        }
        cases
    }

    fn build_window(&self, case: &WindowCase) -> Result<Pipeline<L>, CaseError> {
        let workers = case.replicas.iter().sum();
        let builder = Pipeline::builder(copies(&self.layers))
            .devices(vec![self.device.clone(); workers])
            .schedule(case.scheduler())
            .weight_policy(case.policy);
        let builder = self.with_settings(builder, case.micro_batches, case.recompute.clone());
        Ok(builder.build()?)
    }

    fn train_window(&self, mut pipeline: Pipeline<L>) -> Result<Snapshot, CaseError> {
        let mut optimizers = vec![SgdConfig::new().init(); pipeline.stages().len()];
        let batches = vec![self.batch.clone(); MINI_BATCHES];
        let update = |_, layers, gradients, mut optimizer: ModuleOptimizer, _| {
            let layers = optimizer.step(LEARNING_RATE, layers, gradients);
            (layers, optimizer)
        };
        let window = pipeline.train_window(batches, &self.objective, &mut optimizers, update)?;
        Ok(after_window(&window.losses, own_layers(&pipeline)))
    }

    /// The same with one micro-batch after another, each through one stage that has its versions of the weights.
    fn loop_over_versions(
        &self,
        case: &WindowCase,
        cut: &[Range<usize>],
    ) -> Result<Snapshot, CaseError> {
        let used = case.versions()?;
        let mut optimizer = SgdConfig::new().init();
        let (mut versions, mut losses) = (vec![copies(&self.layers)], Vec::new());
        for number in 0..MINI_BATCHES {
            let (mut loss, mut sum) = (0.0, GradientsAccumulator::new());
            for index in 0..case.micro_batches {
                let micro_batch = number * case.micro_batches + index;
                let layers = cut.iter().enumerate().flat_map(|(stage, range)| {
                    copies(&versions[used.of(stage, micro_batch)][range.clone()])
                });
                let step = self.micro_batch(layers.collect(), (number, index), case)?;
                loss += step.loss;
                sum.accumulate(&versions[number], step.gradients);
            }
            losses.push(loss);
            let newest = versions[number].clone();
            versions.push(optimizer.step(LEARNING_RATE, newest, sum.grads()));
        }
        let last = versions[MINI_BATCHES].iter().enumerate();
        Ok(after_window(&losses, last))
    }

    /// The share of one micro-batch in the step of a mini-batch.
    fn micro_batch(
        &self,
        layers: Vec<L>,
        (mini_batch, micro_batch): (usize, usize),
        case: &WindowCase,
    ) -> Result<Step<L>, CaseError> {
        let builder = Pipeline::builder(layers)
            .devices([self.device.clone()])
            .schedule(OneForwardOneBackward);
        let builder = self.with_settings(builder, case.micro_batches, Recompute::Never);
        let pipeline = builder.build()?;
        pipeline.set_steps(mini_batch as u64);
        let objective = OnlyOne {
            objective: self.objective.clone(),
            micro_batch,
            ended: Arc::default(),
        };
        Ok(pipeline.train_step(self.batch.clone(), &objective)?)
    }
}

fn cut<L: Layer>(pipeline: &Pipeline<L>) -> Vec<Range<usize>> {
    let stages = pipeline.stages().into_iter();
    stages.map(|stage| stage.layers).collect()
}

/// Losses and parameters. Running statistics are left out: no pass of a window reads those of another.
fn after_window<'a, L: Layer>(
    losses: &[f64],
    layers: impl Iterator<Item = (usize, &'a L)>,
) -> Snapshot {
    let mut snapshot = Snapshot::default();
    for (number, loss) in losses.iter().enumerate() {
        let name = format!("loss of mini-batch {} of the window", number + 1);
        snapshot.0.push((name, vec![*loss as f32]));
    }
    snapshot.layers("after the window, ", layers);
    let is_parameter =
        |name: &str| !(name.ends_with(".running_mean") || name.ends_with(".running_var"));
    snapshot.0.retain(|(name, _)| is_parameter(name));
    snapshot
}

/// An objective whose loss is 0 for all but one micro-batch. They come one after another.
#[derive(Clone)]
struct OnlyOne<O> {
    objective: O,
    micro_batch: usize,
    ended: Arc<AtomicUsize>,
}

impl<O> OnlyOne<O> {
    fn share(&self, loss: Tensor<1>, micro_batch: usize) -> Tensor<1> {
        match micro_batch == self.micro_batch {
            true => loss,
            false => loss.mul_scalar(0.0),
        }
    }
}

impl<Out, T, O: Objective<Out, T>> Objective<Out, T> for OnlyOne<O> {
    fn loss(&self, output: Out, target: T) -> Tensor<1> {
        let micro_batch = self.ended.fetch_add(1, Ordering::SeqCst);
        self.share(self.objective.loss(output, target), micro_batch)
    }

    fn weight(&self, target: &T) -> f64 {
        self.objective.weight(target)
    }

    /// Heads come before the last layer.
    fn auxiliary_loss(&self, output: Out, target: T) -> Tensor<1> {
        let micro_batch = self.ended.load(Ordering::SeqCst);
        self.share(self.objective.auxiliary_loss(output, target), micro_batch)
    }
}
