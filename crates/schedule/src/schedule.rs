//! A checked order of actions for each worker.

use std::{collections::HashMap, fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    Action, Pass, ScheduleError,
    error::Waiting,
    replay::replay,
    schedulers::one_stage_a_worker,
    table::Table,
    validate::{Facts, validate},
};

/// Which actions each worker carries out, in which order.
///
/// A schedule that exists can be run to its end; see [`Schedule::new`] for what is checked. That
/// holds for one read by serde, too, which sees the lists of actions alone.
///
/// As text it has a line for each worker, with spaces or commas between actions:
///
/// ```
/// use stovepipe_schedule::{Schedule, ScheduleError};
///
/// let schedule: Schedule = "0F0, 0F1, 0B0, 0B1\n1F0, 1B0, 1F1, 1B1".parse()?;
/// assert_eq!(schedule.stages(), 2);
/// assert_eq!(schedule.to_string(), "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1");
/// # Ok::<(), ScheduleError>(())
/// ```
///
/// For files there is the CSV of `torch.distributed.pipelining`: see [`Schedule::from_csv`].
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<Action>>", into = "Vec<Vec<Action>>")]
pub struct Schedule {
    workers: Vec<Vec<Action>>,
    /// The workers of each stage, in the order in which they take micro-batches.
    placement: Vec<Vec<usize>>,
    micro_batches: usize,
    /// Which backward passes come in halves; none if none does.
    split: Option<Table<bool>>,
    training: bool,
    asynchronous: bool,
}

impl Schedule {
    /// Checks a list of actions for each worker.
    ///
    /// A schedule has all of these properties:
    ///
    /// * There is at least one worker, and each has something to do.
    /// * Stages are numbered from 0 without a gap. Each belongs to one worker, or to several, its
    ///   replicas, that take its micro-batches in turn.
    /// * Every stage has the forward pass of every micro-batch once. Either it also has every
    ///   backward pass once, whole or in two halves (training), or no stage has any (inference).
    ///   Either all stages update their weights for every micro-batch (asynchronous training), or
    ///   none does.
    /// * A backward pass comes after its forward pass, the second half after the first, an update
    ///   after both.
    /// * Nobody waits for ever. A forward pass waits for that of the stage before, a backward
    ///   pass for that of the stage after; sending waits for nobody. (For sends that do wait see
    ///   [`Program`](crate::Program).)
    ///
    /// Micro-batches need not ascend, but [it is better](Self::is_ascending) if they do.
    ///
    /// ```
    /// use stovepipe_schedule::{Action, Schedule, ScheduleError};
    ///
    /// let schedule = Schedule::new(vec![vec![Action::forward(0, 0), Action::backward(0, 0)]])?;
    /// assert!(schedule.is_training());
    ///
    /// let backward_only = Schedule::new(vec![vec![Action::backward(0, 0)]]);
    /// assert_eq!(
    ///     backward_only.unwrap_err().to_string(),
    ///     "worker 0 lacks 0F0"
    /// );
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first property that does not hold.
    pub fn new(workers: Vec<Vec<Action>>) -> Result<Self, ScheduleError> {
        let Facts {
            placement,
            micro_batches,
            split,
            training,
            asynchronous,
        } = validate(&workers)?;
        let schedule = Self {
            workers,
            placement,
            micro_batches,
            split,
            training,
            asynchronous,
        };
        match replay(&schedule, |_, _| {}) {
            Ok(()) => Ok(schedule),
            Err(waiting) => Err(ScheduleError::Deadlock { waiting }),
        }
    }

    /// Forward passes only, one stage on each worker.
    ///
    /// ```
    /// use stovepipe_schedule::{Schedule, ScheduleError};
    ///
    /// let schedule = Schedule::inference(2, 3)?;
    /// assert_eq!(schedule.to_string(), "0F0 0F1 0F2\n1F0 1F1 1F2");
    /// # Ok::<(), ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Zero stages or zero micro-batches.
    pub fn inference(stages: usize, micro_batches: usize) -> Result<Self, ScheduleError> {
        one_stage_a_worker(stages, micro_batches, |stage| {
            (0..micro_batches)
                .map(|micro_batch| Action::forward(stage, micro_batch))
                .collect()
        })
    }

    /// The actions of each worker, in order.
    ///
    /// ```
    /// # use stovepipe_schedule::{Action, Schedule};
    /// # let schedule = Schedule::inference(2, 3)?;
    /// assert_eq!(schedule.workers()[1][0], Action::forward(1, 0));
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn workers(&self) -> &[Vec<Action>] {
        &self.workers
    }

    /// The number of stages.
    ///
    /// ```
    /// # use stovepipe_schedule::Schedule;
    /// assert_eq!(Schedule::inference(2, 3)?.stages(), 2);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn stages(&self) -> usize {
        self.placement.len()
    }

    /// The number of micro-batches.
    ///
    /// ```
    /// # use stovepipe_schedule::Schedule;
    /// assert_eq!(Schedule::inference(2, 3)?.micro_batches(), 3);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The workers of a stage, in the order in which they take its micro-batches: one, unless the
    /// stage has replicas. A worker may have several stages.
    ///
    /// ```
    /// # use stovepipe_schedule::Schedule;
    /// let schedule: Schedule = "0F0 2F0\n1F0".parse()?;
    /// assert_eq!([0, 1, 2].map(|stage| schedule.replicas(stage)), [[0], [1], [0]]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn replicas(&self, stage: usize) -> &[usize] {
        &self.placement[stage]
    }

    /// The worker that has all actions of a stage for a micro-batch.
    ///
    /// ```
    /// # use stovepipe_schedule::{RoundRobin, Scheduler};
    /// let schedule = RoundRobin::new(vec![2, 1]).schedule(2, 4)?;
    /// assert_eq!([0, 1, 2, 3].map(|micro_batch| schedule.worker_of(0, micro_batch)), [0, 1, 0, 1]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn worker_of(&self, stage: usize, micro_batch: usize) -> usize {
        let replicas = &self.placement[stage];
        match replicas[..] {
            [worker] => worker,
            _ => replicas[micro_batch % replicas.len()],
        }
    }

    /// The action of the neighbouring stage whose result an action receives, if there is one.
    ///
    /// The first stage's forward pass reads the data set, and the last stage's backward pass starts
    /// at the loss: neither receives anything. The gradients of weights, and updates, need nothing of
    /// other stages.
    ///
    /// ```
    /// # use stovepipe_schedule::{Action, GPipe, Scheduler};
    /// let schedule = GPipe.schedule(3, 8)?;
    /// assert_eq!(schedule.input(Action::forward(1, 5)), Some(Action::forward(0, 5)));
    /// assert_eq!(schedule.input(Action::backward(1, 5)), Some(Action::backward(2, 5)));
    /// assert_eq!(schedule.input(Action::backward(2, 5)), None);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn input(&self, action: Action) -> Option<Action> {
        let Action {
            stage, micro_batch, ..
        } = action;
        match action.pass {
            Pass::Forward => Some(Action::forward(stage.checked_sub(1)?, micro_batch)),
            Pass::Backward | Pass::InputGradient => {
                let after = stage
                    .checked_add(1)
                    .filter(|&after| after < self.stages())?;
                Some(self.gradient_of(after, micro_batch))
            }
            Pass::WeightGradient | Pass::Update => None,
        }
    }

    /// The action of the neighbouring stage that receives an action's result, if there is one.
    ///
    /// The inverse of [`Schedule::input`].
    ///
    /// ```
    /// # use stovepipe_schedule::{Action, GPipe, Scheduler};
    /// let schedule = GPipe.schedule(3, 8)?;
    /// assert_eq!(schedule.output(Action::forward(1, 5)), Some(Action::forward(2, 5)));
    /// assert_eq!(schedule.output(Action::backward(0, 5)), None);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn output(&self, action: Action) -> Option<Action> {
        let Action {
            stage, micro_batch, ..
        } = action;
        match action.pass {
            Pass::Forward => {
                let after = stage
                    .checked_add(1)
                    .filter(|&after| after < self.stages())?;
                Some(Action::forward(after, micro_batch))
            }
            Pass::Backward | Pass::InputGradient => self
                .training
                .then_some(self.gradient_of(stage.checked_sub(1)?, micro_batch)),
            Pass::WeightGradient | Pass::Update => None,
        }
    }

    /// The action of a stage that finds the gradient of its input.
    fn gradient_of(&self, stage: usize, micro_batch: usize) -> Action {
        let whole = Action::backward(stage, micro_batch);
        match &self.split {
            Some(split) if split[whole] => whole.with(Pass::InputGradient),
            _ => whole,
        }
    }

    /// Whether each stage's forward passes ascend in micro-batch order, and so do its backward
    /// passes, each half for itself, on each of its replicas.
    ///
    /// Sums of floating-point numbers depend on the order of their terms. A stage that goes through
    /// micro-batches in ascending order adds its gradients, and updates running statistics such as
    /// those of batch normalisation, in the same order under every such schedule: changing the schedule
    /// then changes the time and memory that a step takes, and not one bit of its result.
    ///
    /// ```
    /// # use stovepipe_schedule::Schedule;
    /// assert!("0F0 0F1 0B0 0B1".parse::<Schedule>()?.is_ascending());
    /// assert!(!"0F0 0F1 0B1 0B0".parse::<Schedule>()?.is_ascending());
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
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

    /// Whether weights change in the midst of a step, after each micro-batch.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, PipeDream, Scheduler};
    /// assert!(PipeDream::default().schedule(2, 3)?.is_asynchronous());
    /// assert!(!GPipe.schedule(2, 3)?.is_asynchronous());
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn is_asynchronous(&self) -> bool {
        self.asynchronous
    }

    /// Whether there are backward passes.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, Schedule, Scheduler};
    /// assert!(GPipe.schedule(2, 3)?.is_training());
    /// assert!(!Schedule::inference(2, 3)?.is_training());
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Whether the backward pass of a micro-batch, or its first half, is what its worker does right
    /// after its forward pass.
    ///
    /// If so, dropping the activations in between and computing them anew saves no memory.
    ///
    /// ```
    /// # use stovepipe_schedule::{OneForwardOneBackward, Scheduler};
    /// let schedule = OneForwardOneBackward.schedule(2, 3)?;
    /// assert_eq!(schedule.follows_directly(1), [true, true, true]); // it turns around at once
    /// assert_eq!(schedule.follows_directly(0), [false, false, false]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn follows_directly(&self, stage: usize) -> Vec<bool> {
        let mut follows = vec![false; self.micro_batches];
        for &worker in self.replicas(stage) {
            for pair in self.workers[worker].windows(2) {
                let forward = Action::forward(stage, pair[1].micro_batch);
                let is_backward = pair[1].pass.sends_gradient() && pair[1].stage == stage;
                if is_backward && pair[0] == forward {
                    follows[forward.micro_batch] = true;
                }
            }
        }
        follows
    }

    /// Visits the actions in an order in which they could really run.
    pub(crate) fn replay(&self, visit: impl FnMut(usize, Action)) -> Result<(), Vec<Waiting>> {
        replay(self, visit)
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
        let lines: Vec<_> = self.workers.iter().map(|actions| line(actions)).collect();
        formatter.write_str(&lines.join("\n"))
    }
}

fn line(actions: &[Action]) -> String {
    let words: Vec<_> = actions.iter().map(Action::to_string).collect();
    words.join(" ")
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text.lines().map(read_line).collect::<Result<_, _>>()?)
    }
}

fn read_line(line: &str) -> Result<Vec<Action>, ScheduleError> {
    let words = line.split(|c: char| c == ',' || c.is_whitespace());
    let actions = words.filter(|word| !word.is_empty()).map(str::parse);
    Ok(actions.collect::<Result<_, _>>()?)
}
