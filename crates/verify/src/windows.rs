//! Windows of asynchronous training, compared with a loop that keeps all versions of the weights.

use std::{collections::BTreeSet, fmt, ops::Range};

use burn::optim::{GradientsAccumulator, GradientsParams, ModuleOptimizer, SgdConfig};
use stovepipe_pipeline::{
    Flow, Layer, Objective, Pipeline, Recompute, StepError,
    error::{ProcessError, WindowError},
};
use stovepipe_schedule::{Pass, PipeDream, Schedule, Scheduler, Versions, WeightPolicy};

use crate::{
    case::CaseError,
    checks::allowed,
    report::Check,
    snapshot::Snapshot,
    subject::{LEARNING_RATE, Subject, copies, own_layers, parts},
    tested::Tested,
};

/// So many that stages use weights before and after updates.
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

    fn table(&self) -> Result<Table, CaseError> {
        let micro_batches = MINI_BATCHES * self.micro_batches;
        let schedule = (self.scheduler()).schedule(self.replicas.len(), micro_batches)?;
        let versions = schedule.versions(self.policy)?;
        Ok(Table { schedule, versions })
    }
}

impl fmt::Display for WindowCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            replicas,
            micro_batches,
            recompute,
            ..
        } = self;
        let es = if *micro_batches == 1 { "" } else { "es" };
        let policy = match self.policy {
            WeightPolicy::Stashing => "weight stashing",
            WeightPolicy::VerticalSync => "vertical sync",
        };
        let stages = match replicas.iter().all(|own| *own == 1) {
            true => format!("{} stages", replicas.len()),
            false => format!("stages with {replicas:?} replicas"),
        };
        write!(
            f,
            "pipedream, {policy}, {stages}, {micro_batches} micro-batch{es}, recompute {recompute}"
        )
    }
}

/// Where and with which weights passes run.
struct Table {
    schedule: Schedule,
    versions: Versions,
}

impl Table {
    /// The replica that has a micro-batch.
    fn replica(&self, stage: usize, micro_batch: usize) -> usize {
        let runs = |worker: usize| {
            let mut actions = self.schedule.workers()[worker].iter();
            actions.any(|own| {
                (own.pass, own.stage, own.micro_batch) == (Pass::Forward, stage, micro_batch)
            })
        };
        let mut replicas = self.schedule.replicas(stage).iter();
        replicas.position(|&worker| runs(worker)).unwrap_or(0)
    }
}

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether each pass of asynchronous training uses the weights that the schedule's table says. No one-stage
    /// run gives the same.
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
            let expected = self.plain_window(&case, &cut);
            check.compare(&self.processes, &case, &found, &expected)?;
        }
        Ok(check.finished(
            "a layer keeps something of other weights than those that it runs with: its forward and its \
             backward pass have the same, but others run in between",
        ))
    }

    /// The smallest numbers of stages and micro-batches show it: a window of many has few updates.
    fn window_cases(
        &self,
        stages: &BTreeSet<usize>,
        micro_batches: &BTreeSet<usize>,
    ) -> Vec<WindowCase> {
        let stages = stages.range(2..).take(2);
        let stages: Vec<_> = stages.map(|&stages| vec![1; stages]).collect();
        let few = micro_batches.range(1..=self.samples()).take(2).copied();
        let few: Vec<_> = few.collect();
        let mut cases = Vec::new();
        for &micro_batches in &few {
            for replicas in &stages {
                for policy in [WeightPolicy::Stashing, WeightPolicy::VerticalSync] {
                    for recompute in [Recompute::Never, Recompute::Always] {
                        cases.push(WindowCase {
                            replicas: replicas.clone(),
                            micro_batches,
                            policy,
                            recompute,
                        });
                    }
                }
            }
        }
        if let Some(&micro_batches) = few.last().filter(|n| **n >= 2 && !stages.is_empty()) {
            cases.push(WindowCase {
                replicas: vec![2, 1],
                micro_batches,
                policy: WeightPolicy::Stashing,
                recompute: Recompute::Always,
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
        let builder = self.with_settings(builder, case.micro_batches, case.recompute);
        Ok(builder.build()?)
    }

    fn train_window(&self, mut pipeline: Pipeline<L>) -> Result<Snapshot, CaseError> {
        let objective = Tested::new(self.objective.clone());
        let mut optimizers = vec![SgdConfig::new().init(); pipeline.stages().len()];
        let batches = vec![self.batch.clone(); MINI_BATCHES];
        let update = |_, layers, gradients, mut optimizer: ModuleOptimizer, _| {
            (optimizer.step(LEARNING_RATE, layers, gradients), optimizer)
        };
        let window = pipeline.train_window(batches, &objective, &mut optimizers, update)?;
        Ok(after_window(&window.losses, own_layers(&pipeline)))
    }

    /// The same with Burn alone: one micro-batch after another, each with its versions of the weights.
    fn plain_window(&self, case: &WindowCase, cut: &[Range<usize>]) -> Result<Snapshot, CaseError> {
        let table = case.table()?;
        let sizes = parts(self.samples(), case.micro_batches);
        let mut optimizer = SgdConfig::new().init();
        // By stage and version.
        let first = |range: &Range<usize>| vec![copies(&self.layers[range.clone()])];
        let mut versions: Vec<Vec<Vec<L>>> = cut.iter().map(first).collect();
        let mut losses = Vec::new();
        for number in 0..MINI_BATCHES {
            let mut sums: Vec<Vec<_>> = (case.replicas.iter())
                .map(|&replicas| (0..replicas).map(|_| GradientsAccumulator::new()).collect())
                .collect();
            let (mut loss_sum, mut next) = (0.0, number * case.micro_batches);
            let layers = |index| -> Vec<L> {
                let micro_batch = number * case.micro_batches + index;
                let used = |(stage, versions): (usize, &Vec<Vec<L>>)| {
                    copies(&versions[table.versions.of(stage, micro_batch)])
                };
                versions.iter().enumerate().flat_map(used).collect()
            };
            self.plain_passes_of(number as u64, &sizes, layers, |layers, plain, target, _| {
                let (loss, mut gradients) = self.plain_gradients(plain, target);
                loss_sum += loss;
                for (stage, range) in cut.iter().enumerate() {
                    let sum = &mut sums[stage][table.replica(stage, next)];
                    for layer in &layers[range.clone()] {
                        sum.accumulate(layer, GradientsParams::from_module(&mut gradients, layer));
                    }
                }
                next += 1;
            })?;
            losses.push(loss_sum);
            for (versions, replicas) in versions.iter_mut().zip(sums) {
                let newest = versions[number].clone();
                let mut sum = GradientsAccumulator::new();
                for mut own in replicas {
                    sum.accumulate(&newest, own.grads());
                }
                versions.push(optimizer.step(LEARNING_RATE, newest, sum.grads()));
            }
        }
        let last = versions.iter().flat_map(|own| &own[MINI_BATCHES]);
        Ok(after_window(&losses, last.enumerate()))
    }
}

fn cut<L: Layer>(pipeline: &Pipeline<L>) -> Vec<Range<usize>> {
    let stages = pipeline.stages().into_iter();
    stages.map(|stage| stage.layers).collect()
}

/// Losses and parameters. Running statistics are left out: no forward pass of a window reads them.
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
    let is_statistic = |name: &str| {
        [".running_mean", ".running_var"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    snapshot.0.retain(|(name, _)| !is_statistic(name));
    snapshot
}
