//! The checks.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use burn::{
    module::Module,
    tensor::{Device, Distribution, Tensor},
};
use stovepipe_pipeline::{
    Balance, Flow, Held, KeyedRng, Layer, Objective, Pipeline, Recompute, StepError,
    error::ProcessError, run_plain,
};
use stovepipe_schedule::{Pass, Rule, Schedule, Scheduler};

use crate::{
    case::{Case, CaseError},
    report::Check,
    snapshot::Snapshot,
    subject::{Subject, own_layers, parts},
    tested::Tested,
};

/// What each stage held in each case.
pub(crate) type HeldInCases = Vec<(Case, Vec<Held>)>;

/// The numbers of replicas.
const REPLICAS: [usize; 2] = [2, 3];
/// Allowed between two ways to add up the same numbers.
const ROUNDING: f64 = 1e-5;
/// Allowed between running statistics.
const STATISTICS: f64 = 1e-4;
/// Allowed on devices that do not promise the same bits.
const OTHER_DEVICES: f64 = 1e-4;

/// Allowed where the CPU gives the same bits.
pub(crate) fn allowed(device: &Device) -> f64 {
    if *device == Device::flex() {
        0.0
    } else {
        OTHER_DEVICES
    }
}

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether the model is a function of its parameters, its input and its key. All other checks need this.
    pub(crate) fn check_repeated(&self) -> Result<Check, ProcessError> {
        let compared = "two runs of the same step";
        let mut check = Check::new("repeatable", compared, allowed(&self.device));
        let case = self.simplest(2);
        let first = self.step_after_draws(&case, 0);
        let second = self.step_after_draws(&case, 5);
        check.compare(&self.processes, &case, &second, &first)?;
        Ok(check.finished(
            "a layer draws random numbers that are not keyed (use those of `Context::rng`), or keeps \
             something between runs",
        ))
    }

    /// A first step, after something else drew numbers from Burn's generator.
    fn step_after_draws(&self, case: &Case, draws: usize) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let _ = Tensor::<1>::random([draws], Distribution::Default, &self.device);
        let step = self.train(&pipeline)?;
        let mut snapshot = Snapshot::default();
        snapshot.step("step 1", &pipeline, &step);
        Ok(snapshot)
    }

    fn first_step(&self, case: &Case) -> Result<Snapshot, CaseError> {
        self.step_after_draws(case, 0)
    }

    /// Whether training and evaluation give the same for every number of stages, schedule and mode of
    /// recomputation. Also returns what each stage held. Calls `done` after each case.
    pub(crate) fn check_cut(
        &self,
        cases: &[Case],
        mut done: impl FnMut(),
    ) -> Result<(Check, HeldInCases), ProcessError> {
        let compared = "stages × schedules × recomputation with one stage";
        let mut check = Check::new("same bits", compared, allowed(&self.device));
        let (mut one_stage, mut held) = (BTreeMap::new(), Vec::new());
        for case in cases {
            let run = |case: &Case, held: &mut Vec<_>| {
                let (snapshot, stages) = self.run(case)?;
                held.push((case.clone(), stages));
                Ok(snapshot)
            };
            let found = run(case, &mut held);
            let expected = (one_stage.entry(case.micro_batches))
                .or_insert_with_key(|&n| run(&Case::simplest(n), &mut Vec::new()));
            check.compare(&self.processes, case, &found, expected)?;
            done();
        }
        let check = check.finished(
            "a layer computes something else when it runs again, on another thread, or next to \
             other layers: it must be a function of its parameters, its input and its context",
        );
        Ok((check, held))
    }

    /// Whether loss and gradients are those that Burn computes without a pipeline: of the mini-batch in one
    /// piece or, if layers normalize over the batch, of its micro-batches one after another.
    pub(crate) fn check_mini_batch(&self, micro_batches: &[usize]) -> Result<Check, ProcessError> {
        let in_parts = self.has_batch_statistics();
        let compared = if in_parts {
            "loss and gradients with those of plain micro-batches, added up"
        } else {
            "loss and gradients with those of the mini-batch in one piece"
        };
        let mut check = Check::new("whole mini-batch", compared, ROUNDING);
        for &micro_batches in micro_batches {
            let case = self.simplest(micro_batches);
            let found = self.loss_and_gradients(&case);
            let pieces = if in_parts { micro_batches } else { 1 };
            let expected = self.plain_step(&parts(self.samples(), pieces));
            check.compare(&self.processes, &case, &found, &expected)?;
        }
        Ok(check.finished(
            "the objective's `weight` is not what its `loss` is a sum over, or a layer reads other \
             samples than its own",
        ))
    }

    fn loss_and_gradients(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let step = self.train(&pipeline)?;
        let mut snapshot = Snapshot::default();
        let layers = own_layers(&pipeline);
        snapshot.loss_and_gradients("step 1", step.loss, layers, &step.gradients);
        Ok(snapshot)
    }

    /// Whether running means were updated once, by the mean of the mini-batch. It is computed from what
    /// plain Burn gives for each micro-batch alone.
    pub(crate) fn check_statistics(&self, micro_batches: &[usize]) -> Result<Check, ProcessError> {
        let compared = "running means with the mean over plain micro-batches";
        let mut check = Check::new("running statistics", compared, STATISTICS);
        if !self.has_batch_statistics() {
            return Ok(check.skipped("no layer has any"));
        }
        for &micro_batches in micro_batches {
            let case = Case {
                rule: Rule::OneForwardOneBackward,
                workers: 2.min(self.layers.len()).max(self.processes.size()),
                replicas: 1,
                micro_batches,
                recompute: Recompute::Always,
            };
            let found = self.means_after_step(&case);
            let expected = self.plain_means(micro_batches);
            check.compare(&self.processes, &case, &found, &expected)?;
        }
        Ok(check.finished("statistics were not counted once per micro-batch"))
    }

    fn means_after_step(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let _ = self.train(&pipeline)?;
        Ok(means(own_layers(&pipeline)))
    }

    fn plain_means(&self, micro_batches: usize) -> Result<Snapshot, CaseError> {
        let samples = self.samples();
        let mut sum: Option<Snapshot> = None;
        self.plain_passes(&parts(samples, micro_batches), |layers, _, _, size| {
            let mut means = means(layers.iter().enumerate());
            let share = size as f32 / samples as f32;
            numbers(&mut means).for_each(|mean| *mean *= share);
            if let Some(sum) = &mut sum {
                let means = numbers(&mut means);
                numbers(sum)
                    .zip(means)
                    .for_each(|(sum, mean)| *sum += *mean);
            } else {
                sum = Some(means);
            }
        })?;
        Ok(sum.unwrap_or_default())
    }

    /// Whether replicas, which add up their gradients in another order, give what the same stages give without
    /// them.
    pub(crate) fn check_replicas(&self, cases: &[Case]) -> Result<Check, ProcessError> {
        let compared = "replicas of stages with the same stages alone";
        let mut check = Check::new("replicas", compared, ROUNDING);
        let few = self.processes.size() + 1;
        let chosen = cases.iter().filter(|case| {
            case.rule == Rule::OneForwardOneBackward
                && case.recompute == Recompute::Never
                && case.workers <= few
        });
        for case in chosen.filter(|case| case.micro_batches >= REPLICAS[0]) {
            let expected = self.run_alone(case);
            for replicas in REPLICAS
                .into_iter()
                .filter(|own| *own <= case.micro_batches)
            {
                let replicated = Case {
                    replicas,
                    ..case.clone()
                };
                let found = self.run_replicas(&replicated, case);
                check.compare(&self.processes, &replicated, &found, &expected)?;
            }
        }
        if check.cases == 0 {
            return Ok(check.skipped("they need two micro-batches"));
        }
        Ok(check.finished(
            "the training step takes something from one replica that is the sum or mean over all",
        ))
    }

    /// Whether a pipeline evaluates like the plain model, and does not change it.
    pub(crate) fn check_evaluation(&self, cases: &[Case]) -> Result<Check, ProcessError> {
        let compared = "outputs with those of the plain model, and the model with itself";
        let mut check = Check::new("evaluation", compared, ROUNDING);
        let expected = self.evaluated_plainly();
        // Schedules and recomputation are for training.
        let mut checked = BTreeSet::new();
        for case in cases {
            if checked.insert((case.rule.stages(1), case.workers, case.micro_batches)) {
                check.compare(&self.processes, case, &self.evaluated(case), &expected)?;
            }
        }
        let cause = "a layer reads other samples than its own when it does not train";
        Ok(check.finished(cause))
    }

    fn evaluated_plainly(&self) -> Result<Snapshot, CaseError> {
        let layers = self.layers.valid();
        let (input, side) = self.evaluation.clone();
        let output = run_plain(&layers, input, &side, |_| KeyedRng::none())?.output;
        Ok(evaluation(&output, layers.iter().enumerate()))
    }

    fn evaluated(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let output = self.evaluate(&pipeline)?;
        Ok(evaluation(&output, own_layers(&pipeline)))
    }

    /// Whether a step with a loss of NaN fails with an error that names the place, and changes neither the
    /// model nor the next step.
    pub(crate) fn check_failed_step(&self, cases: &[Case]) -> Result<Check, ProcessError> {
        let compared = "the step after a failed one with a first step";
        let mut check = Check::new("failed step", compared, allowed(&self.device));
        let has_more_workers = cases.iter().any(|case| case.workers > 1);
        // One number of micro-batches is enough: the place of the failure does not depend on it.
        let micro_batches = cases.last().map(|last| last.micro_batches);
        for case in cases {
            let is_tried = case.workers > 1 || !has_more_workers;
            if is_tried && Some(case.micro_batches) == micro_batches {
                let first = self.first_step(case);
                let found = self.step_after_failure(case);
                check.compare(&self.processes, case, &found, &first)?;
            }
        }
        Ok(check.finished("a layer keeps something of a step that failed"))
    }

    fn step_after_failure(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        self.processes.agree(self.fail(&pipeline))?;
        let step = self.train(&pipeline)?;
        let mut snapshot = Snapshot::default();
        snapshot.step("step 1", &pipeline, &step);
        Ok(snapshot)
    }

    /// Trains a step whose loss is NaN.
    fn fail(&self, pipeline: &Pipeline<L>) -> Result<(), CaseError> {
        let model = || {
            let mut snapshot = Snapshot::default();
            snapshot.layers("", own_layers(pipeline));
            snapshot
        };
        let before = model();
        match self.train_with(pipeline, &Tested::failing(self.objective.clone())) {
            Err(error) if names_last_stage(pipeline, &error) => {}
            Err(error) => return Err(CaseError::WrongError(error)),
            Ok(_) => return Err(CaseError::NoError),
        }
        let change = model().largest_difference(&before, true);
        match change.size {
            0.0 => Ok(()),
            _ => Err(CaseError::Changed(change.place)),
        }
    }
}

/// Whether an error names the last stage or, in another process, the rank that has it.
fn names_last_stage<L: Layer>(pipeline: &Pipeline<L>, error: &StepError) -> bool {
    let stages = pipeline.stages();
    let process = match error {
        StepError::NotFinite { place, .. } => {
            return (place.as_ref()).is_some_and(|failure| failure.stage + 1 == stages.len());
        }
        StepError::Processes(error) => Some(error),
        StepError::Cancelled(source) => source.downcast_ref(),
        _ => None,
    };
    let last = stages.last().map(|stage| stage.process);
    matches!(process, Some(ProcessError::Failed { rank, .. }) if Some(*rank) == last)
}

fn means<'a, L: Layer>(layers: impl Iterator<Item = (usize, &'a L)>) -> Snapshot {
    let mut all = Snapshot::default();
    all.layers("", layers);
    all.0.retain(|(name, _)| name.ends_with(".running_mean"));
    all
}

fn numbers(snapshot: &mut Snapshot) -> impl Iterator<Item = &mut f32> {
    snapshot.0.iter_mut().flat_map(|(_, numbers)| numbers)
}

fn evaluation<'a, L: Layer>(
    output: &impl Flow,
    layers: impl Iterator<Item = (usize, &'a L)>,
) -> Snapshot {
    let mut snapshot = Snapshot::default();
    snapshot.flow("the output", output);
    snapshot.layers("after evaluation, ", layers);
    snapshot
}

/// Whether no stage holds more micro-batches than its schedule allows.
pub(crate) fn memory((samples, layers): (usize, usize), held: &[(Case, Vec<Held>)]) -> Check {
    let compared = "micro-batches held by each stage with the schedule's bound";
    let mut check = Check::new("memory", compared, 0.0);
    for (case, held) in held {
        let micro_batches = parts(samples, case.micro_batches).len();
        let cut = Balance::Even.cut(layers, case.stages()).unwrap_or_default();
        match case.rule.schedule(case.stages(), micro_batches) {
            Ok(schedule) => {
                for (stage, found) in held.iter().enumerate() {
                    let first = cut[..stage].iter().sum();
                    let bound = bound(&schedule, stage, (case, first..first + cut[stage]));
                    let excess = found.inputs.saturating_sub(bound.inputs)
                        + found.activations.saturating_sub(bound.activations);
                    check.case(excess as f64, || {
                        format!("stage {stage}: {found:?} for {bound:?} ({case})")
                    });
                }
            }
            Err(error) => check.failed(format!("{case}: {error}")),
        }
    }
    check.finished("a stage kept more than its schedule asks for: please report this")
}

/// The most that a stage may hold at once, by its actions.
fn bound(schedule: &Schedule, stage: usize, (case, layers): (&Case, Range<usize>)) -> Held {
    let segments = case.recompute.segments(layers.clone());
    let recomputed: usize = segments.iter().map(Range::len).sum();
    let has_inputs = usize::from(recomputed > 0);
    let has_activations = usize::from(recomputed < layers.len());
    let kept = case.recompute.kept(schedule, stage);
    let (mut now, mut most) = (Held::default(), Held::default());
    let actions = schedule.workers().iter().flatten();
    for action in actions.filter(|action| action.stage == stage) {
        let records = kept[action.micro_batch];
        match action.pass {
            Pass::Forward if records => now.activations += 1,
            Pass::Forward => {
                now.inputs += has_inputs;
                now.activations += has_activations;
            }
            Pass::Backward | Pass::InputGradient if records => now.activations -= 1,
            Pass::Backward | Pass::InputGradient => {
                // The input becomes a tape.
                now.inputs -= has_inputs;
                let own = 1 - has_activations;
                most.activations = most.activations.max(now.activations + own);
                now.activations -= has_activations;
            }
            Pass::WeightGradient | Pass::Update => {}
        }
        most.inputs = most.inputs.max(now.inputs);
        most.activations = most.activations.max(now.activations);
    }
    most
}
