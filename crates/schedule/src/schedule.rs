//! A checked order of actions for each worker.

use std::{collections::HashMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    Action, Pass, ScheduleError,
    action::{words, write_lines},
    validate::{Facts, validate},
};

/// Which actions each worker runs, in which order.
///
/// Every schedule can run to its end; see [`Schedule::new`] for the checks. Reading one with serde
/// runs the same checks.
///
/// As text it has a line for each worker, with spaces or commas between actions. Files use the CSV
/// format of `torch.distributed.pipelining`; see [`Schedule::from_csv`].
///
/// ```
/// use stovepipe_schedule::{Action, Schedule, ScheduleError};
///
/// let schedule: Schedule = "0F0, 0F1, 0B0, 0B1\n1F0, 1B0, 1F1, 1B1".parse()?;
/// assert_eq!(schedule.to_string(), "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1");
/// assert_eq!((schedule.stages(), schedule.micro_batches()), (2, 2));
/// assert_eq!(schedule.workers()[1][0], Action::forward(1, 0));
/// assert!(schedule.is_training() && schedule.is_ascending() && !schedule.is_asynchronous());
///
/// // What an action receives from a neighbouring stage, and what receives its result.
/// assert_eq!(schedule.input(Action::forward(1, 1)), Some(Action::forward(0, 1)));
/// assert_eq!(schedule.input(Action::backward(1, 1)), None); // the last stage starts at the loss
/// assert_eq!(schedule.output(Action::backward(1, 1)), Some(Action::backward(0, 1)));
/// assert_eq!(schedule.output(Action::backward(0, 1)), None);
///
/// // For each micro-batch, whether the backward pass comes right after the forward pass.
/// assert_eq!(schedule.follows_directly(1), [true, true]);
/// assert_eq!(schedule.follows_directly(0), [false, false]);
///
/// let error = Schedule::new(vec![vec![Action::backward(0, 0)]]).unwrap_err();
/// assert_eq!(error.to_string(), "worker 0 lacks 0F0");
///
/// let schedule = Schedule::inference(2, 3)?;
/// assert_eq!(schedule.to_string(), "0F0 0F1 0F2\n1F0 1F1 1F2");
/// assert!(!schedule.is_training());
///
/// // A worker may have several stages.
/// let schedule: Schedule = "0F0 2F0\n1F0".parse()?;
/// assert_eq!([0, 1, 2].map(|stage| schedule.replicas(stage)), [[0], [1], [0]]);
/// assert_eq!(schedule.stages_of_workers(), [2, 1]);
/// # Ok::<(), ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<Action>>", into = "Vec<Vec<Action>>")]
pub struct Schedule {
    workers: Vec<Vec<Action>>,
    facts: Facts,
}

impl Schedule {
    /// Checks a list of actions for each worker.
    ///
    /// A schedule has all of these properties:
    ///
    /// * There is at least one worker, and each has an action.
    /// * Stages are numbered from 0 without a gap. Each belongs to one worker, or to several replicas,
    ///   each with micro-batches of its own.
    /// * Every stage has the forward pass of every micro-batch once. In training it also has every
    ///   backward pass once, whole or in two halves. In inference no stage has any.
    /// * A backward pass comes after its forward pass, the second half after the first.
    /// * Either no stage has updates, or all have one after every `n` micro-batches (asynchronous
    ///   training). On each replica, an update comes after the backward passes of its `n` micro-batches,
    ///   one or more of which are the replica's, and before any gradient of weights of later ones.
    /// * There is no deadlock. A forward pass waits for that of the previous stage, a backward pass
    ///   for that of the next stage, an update until all replicas have come to it. Sending never waits.
    ///   ([`Program`](crate::Program) is for sends that do.)
    ///
    /// Micro-batches may be in any order, but should [ascend](Self::is_ascending).
    ///
    /// # Errors
    ///
    /// The first property that does not hold.
    pub fn new(workers: Vec<Vec<Action>>) -> Result<Self, ScheduleError> {
        let facts = validate(&workers)?;
        let schedule = Self { workers, facts };
        let replayed = schedule.replay(|_, _| {});
        replayed.map_err(|waiting| ScheduleError::Deadlock { waiting })?;
        Ok(schedule)
    }

    /// Forward passes only, one stage on each worker.
    ///
    /// # Errors
    ///
    /// Zero stages or zero micro-batches.
    pub fn inference(stages: usize, micro_batches: usize) -> Result<Self, ScheduleError> {
        Self::one_stage_a_worker(stages, micro_batches, |stage| {
            let forward = |micro_batch| Action::forward(stage, micro_batch);
            (0..micro_batches).map(forward).collect()
        })
    }

    /// Worker `i` has only stage `i`, with these actions.
    pub(crate) fn one_stage_a_worker(
        stages: usize,
        micro_batches: usize,
        actions: impl FnMut(usize) -> Vec<Action>,
    ) -> Result<Self, ScheduleError> {
        Self::check_size(stages, micro_batches)?;
        Self::new((0..stages).map(actions).collect())
    }

    /// No rule has a schedule of nothing.
    pub(crate) fn check_size(stages: usize, micro_batches: usize) -> Result<(), ScheduleError> {
        match (stages, micro_batches) {
            (0, _) => Err(ScheduleError::NoStages),
            (_, 0) => Err(ScheduleError::NoMicroBatches),
            _ => Ok(()),
        }
    }

    /// The actions of each worker, in order.
    #[must_use]
    pub fn workers(&self) -> &[Vec<Action>] {
        &self.workers
    }

    /// The number of stages.
    #[must_use]
    pub fn stages(&self) -> usize {
        self.facts.placement.len()
    }

    /// The number of micro-batches.
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.facts.micro_batches
    }

    /// The workers of a stage, in the order of their first micro-batches: one, or several replicas.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn replicas(&self, stage: usize) -> &[usize] {
        &self.facts.placement[stage]
    }

    /// The worker that has all actions of a stage for a micro-batch.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn worker_of(&self, stage: usize, micro_batch: usize) -> usize {
        let turns = &self.facts.turns[stage];
        match turns[..] {
            [worker] => worker,
            _ => turns[micro_batch % turns.len()],
        }
    }

    /// The action of the neighbouring stage whose result an action receives.
    ///
    /// None for the first stage's forward pass, which reads the data set; the last stage's backward
    /// pass, which starts at the loss; weight gradients and updates.
    #[must_use]
    pub fn input(&self, action: Action) -> Option<Action> {
        let (stage, micro_batch) = (action.stage, action.micro_batch);
        match action.pass {
            Pass::Forward => Some(Action::forward(stage.checked_sub(1)?, micro_batch)),
            Pass::Backward | Pass::InputGradient => {
                Some(self.gradient_of(self.after(stage)?, micro_batch))
            }
            Pass::WeightGradient | Pass::Update => None,
        }
    }

    /// The action of the neighbouring stage that receives an action's result: the inverse of
    /// [`Schedule::input`].
    #[must_use]
    pub fn output(&self, action: Action) -> Option<Action> {
        let (stage, micro_batch) = (action.stage, action.micro_batch);
        match action.pass {
            Pass::Forward => Some(Action::forward(self.after(stage)?, micro_batch)),
            Pass::Backward | Pass::InputGradient if self.is_training() => {
                Some(self.gradient_of(stage.checked_sub(1)?, micro_batch))
            }
            _ => None,
        }
    }

    fn after(&self, stage: usize) -> Option<usize> {
        let after = stage.checked_add(1)?;
        (after < self.stages()).then_some(after)
    }

    /// The action of a stage that computes the gradient of its input.
    pub(crate) fn gradient_of(&self, stage: usize, micro_batch: usize) -> Action {
        let whole = Action::backward(stage, micro_batch);
        match &self.facts.split {
            Some(split) if split[whole] => whole.with(Pass::InputGradient),
            _ => whole,
        }
    }

    /// Whether each replica of each stage runs its forward passes, and its backward passes (each half
    /// on its own), in ascending order of micro-batches.
    ///
    /// The sum of floating-point numbers depends on their order. If micro-batches ascend, a stage adds
    /// gradients and updates running statistics in the same order under every schedule. Then the
    /// schedule changes the time and memory of a step, but not one bit of its result.
    #[must_use]
    pub fn is_ascending(&self) -> bool {
        // Replicas of a stage are told apart: each has a part of the micro-batches.
        let ascends = |passes: &[Pass]| {
            self.workers.iter().all(|actions| {
                let mut due = HashMap::new();
                let mut of_passes = actions.iter().filter(|a| passes.contains(&a.pass));
                of_passes.all(|action| {
                    let before = due.insert(action.stage, action.micro_batch);
                    before.is_none_or(|before| before < action.micro_batch)
                })
            })
        };
        ascends(&[Pass::Forward])
            && ascends(&[Pass::Backward, Pass::InputGradient])
            && ascends(&[Pass::Backward, Pass::WeightGradient])
    }

    /// Whether weights change within the schedule, and not only at its end.
    #[must_use]
    pub fn is_asynchronous(&self) -> bool {
        self.facts.update_every.is_some()
    }

    /// The number of micro-batches of each update, if the schedule is asynchronous.
    ///
    /// Every stage has the same updates. Update `u`, counted from 0, applies the gradients of the
    /// micro-batches from `u · n` to `u · n + n − 1`. Its [`Action`] has the last of them.
    ///
    /// ```
    /// use stovepipe_schedule::{PipeDream, Schedule, Scheduler};
    ///
    /// let schedule = PipeDream::default().with_update_every(2).schedule(2, 4)?;
    /// assert_eq!(schedule.to_string(), "0F0 0F1 0B0 0F2 0B1 0U1 0F3 0B2 0B3 0U3\n\
    ///                                   1F0 1B0 1F1 1B1 1U1 1F2 1B2 1F3 1B3 1U3");
    /// assert_eq!((schedule.update_every(), schedule.updates()), (Some(2), 2));
    /// assert_eq!([1, 2].map(|micro_batch| schedule.update_of(micro_batch)), [Some(0), Some(1)]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn update_every(&self) -> Option<usize> {
        self.facts.update_every
    }

    /// The number of updates of each stage: 0 unless the schedule is asynchronous.
    #[must_use]
    pub fn updates(&self) -> usize {
        self.update_every()
            .map_or(0, |every| self.micro_batches() / every)
    }

    /// The number of the update that applies a micro-batch's gradients, counted from 0.
    #[must_use]
    pub fn update_of(&self, micro_batch: usize) -> Option<usize> {
        Some(micro_batch / self.update_every()?)
    }

    /// Whether there are backward passes.
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.facts.training
    }

    /// For each micro-batch, whether its worker runs the backward pass (or its first half) right after
    /// the forward pass.
    ///
    /// If so, dropping the activations in between and recomputing them saves no memory.
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn follows_directly(&self, stage: usize) -> Vec<bool> {
        self.facts.direct.of_stage(stage).to_vec()
    }
}

impl TryFrom<Vec<Vec<Action>>> for Schedule {
    type Error = ScheduleError;

    fn try_from(workers: Vec<Vec<Action>>) -> Result<Self, Self::Error> {
        Self::new(workers)
    }
}

impl From<Schedule> for Vec<Vec<Action>> {
    fn from(schedule: Schedule) -> Self {
        schedule.workers
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(formatter, &self.workers)
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let line = |line| Ok(words(line).map(str::parse).collect::<Result<_, _>>()?);
        let workers: Result<_, ScheduleError> = text.lines().map(line).collect();
        Self::new(workers?)
    }
}
