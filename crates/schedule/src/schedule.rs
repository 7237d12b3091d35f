//! A checked order of actions for each worker.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::{
    Action, Pass, ScheduleError,
    error::Waiting,
    replay::replay,
    scheduler::one_stage_a_worker,
    validate::{Facts, validate},
};

/// Which actions each worker carries out, in which order.
///
/// A schedule that exists can be run to its end; see [`Schedule::new`] for what is checked. That
/// holds for one read by serde, too, which sees the lists of actions alone.
///
/// As text it has a line for each worker. Between actions there may be spaces or commas, so the
/// CSV files of `torch.distributed.pipelining` can be read as long as they hold no other actions
/// than `F` and `B`:
///
/// ```
/// use stovepipe_schedule::{Schedule, ScheduleError};
///
/// let schedule: Schedule = "0F0, 0F1, 0B0, 0B1\n1F0, 1B0, 1F1, 1B1".parse()?;
/// assert_eq!(schedule.stages(), 2);
/// assert_eq!(schedule.to_string(), "0F0 0F1 0B0 0B1\n1F0 1B0 1F1 1B1");
/// # Ok::<(), ScheduleError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Vec<Action>>", into = "Vec<Vec<Action>>")]
pub struct Schedule {
    workers: Vec<Vec<Action>>,
    /// The worker of each stage.
    owners: Vec<usize>,
    micro_batches: usize,
    training: bool,
}

impl Schedule {
    /// Checks a list of actions for each worker.
    ///
    /// A schedule has all of these properties:
    ///
    /// * There is at least one worker, and each has something to do.
    /// * Stages are numbered from 0 without a gap, and each belongs to exactly one worker.
    /// * Every stage has the forward pass of every micro-batch once. Either it has every
    ///   backward pass once as well (training), or no stage has any (inference).
    /// * A backward pass comes after its forward pass.
    /// * The forward passes of a stage ascend in micro-batch order, and so do its backward
    ///   passes. Sums of floating-point numbers depend on the order of their terms. With this
    ///   rule a stage adds its gradients, and updates running statistics such as those of batch
    ///   normalisation, in the same order under every schedule: changing the schedule changes
    ///   the time and memory that a step takes, and not one bit of its result.
    /// * Nobody waits for ever. A forward pass waits for that of the stage before, a backward
    ///   pass for that of the stage after; sending waits for nobody.
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
            owners,
            micro_batches,
            training,
        } = validate(&workers)?;
        Ok(Self {
            workers,
            owners,
            micro_batches,
            training,
        })
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
        self.owners.len()
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

    /// The one worker that has this stage; a worker may have several stages.
    ///
    /// ```
    /// # use stovepipe_schedule::Schedule;
    /// let schedule: Schedule = "0F0 2F0\n1F0".parse()?;
    /// assert_eq!([0, 1, 2].map(|stage| schedule.worker_of(stage)), [0, 1, 0]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn worker_of(&self, stage: usize) -> usize {
        self.owners[stage]
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

    /// Whether the backward pass of a micro-batch is what its worker does right after its
    /// forward pass.
    ///
    /// If so, dropping the activations in between and computing them anew saves no memory.
    ///
    /// ```
    /// # use stovepipe_schedule::{OneForwardOneBackward, Scheduler};
    /// let schedule = OneForwardOneBackward.schedule(2, 3)?;
    /// assert!(schedule.follows_directly(1, 0)); // the last stage turns around at once
    /// assert!(!schedule.follows_directly(0, 0));
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn follows_directly(&self, stage: usize, micro_batch: usize) -> bool {
        let pair = [
            Action::forward(stage, micro_batch),
            Action::backward(stage, micro_batch),
        ];
        let actions = &self.workers[self.worker_of(stage)];
        actions.windows(2).any(|neighbours| neighbours == pair)
    }

    /// For each stage, the most micro-batches that are at one time between their forward and
    /// their backward pass.
    ///
    /// It is what the memory for activations grows with: [`GPipe`](crate::GPipe) keeps all
    /// micro-batches, [`OneForwardOneBackward`](crate::OneForwardOneBackward) no more than there
    /// are stages. Without backward passes nothing is kept, and the numbers are 0.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, OneForwardOneBackward, Scheduler};
    /// assert_eq!(GPipe.schedule(3, 8)?.peak_in_flight(), [8, 8, 8]);
    /// assert_eq!(OneForwardOneBackward.schedule(3, 8)?.peak_in_flight(), [3, 2, 1]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn peak_in_flight(&self) -> Vec<usize> {
        let mut peaks = vec![0; self.stages()];
        if !self.training {
            return peaks;
        }
        let mut in_flight = peaks.clone();
        for action in self.workers.iter().flatten() {
            let stage = action.stage;
            match action.pass {
                Pass::Forward => in_flight[stage] += 1,
                Pass::Backward => in_flight[stage] -= 1,
            }
            peaks[stage] = peaks[stage].max(in_flight[stage]);
        }
        peaks
    }

    /// Visits the actions in an order in which they could really run.
    pub(crate) fn replay(&self, visit: impl FnMut(usize, Action)) -> Result<(), Vec<Waiting>> {
        replay(&self.workers, &self.owners, visit)
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
