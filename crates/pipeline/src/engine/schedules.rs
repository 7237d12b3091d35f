//! Schedules that the engine can run, and what it needs to know of each.

use std::{
    collections::HashMap,
    iter,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use stovepipe_schedule::{Action, Recompute, Schedule, Scheduler, VersionUse, WeightPolicy};

use crate::{
    api::error::{StepError, WrongSchedule},
    engine::seats::{Seats, Turns},
};

/// A schedule of training, and the micro-batches that each stage records in their forward pass.
pub(crate) struct StepSchedule {
    /// The actions of each worker of the pipeline.
    pub(crate) actions: Vec<Vec<Action>>,
    /// What each of these does with versions of the weights; nothing in a step.
    pub(crate) versions: Vec<Vec<VersionUse>>,
    /// By stage and micro-batch, whether all activations are kept.
    pub(crate) recorded: Vec<Vec<bool>>,
    /// The layers of each stage that are recomputed otherwise.
    pub(crate) segments: Vec<Vec<Range<usize>>>,
    pub(crate) turns: Turns,
}

impl StepSchedule {
    /// The actions of a worker, and the versions that they use.
    pub(crate) fn with_versions(&self, worker: usize) -> Vec<(Action, VersionUse)> {
        let in_a_step = VersionUse {
            version: 0,
            dropped: None,
        };
        let own = self.versions.get(worker).into_iter().flatten().copied();
        let own = own.chain(iter::repeat(in_a_step));
        self.actions[worker].iter().copied().zip(own).collect()
    }
}

/// Makes the schedules of a pipeline and keeps them, by number of micro-batches: a small batch has
/// fewer.
pub(crate) struct Schedules {
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) recompute: Recompute,
    /// The layers of each stage.
    pub(crate) layers: Vec<Range<usize>>,
    pub(crate) seats: Seats,
    pub(crate) workers: usize,
    pub(crate) known: Mutex<HashMap<usize, Arc<StepSchedule>>>,
}

impl Schedules {
    pub(crate) fn of(&self, micro_batches: usize) -> Result<Arc<StepSchedule>, StepError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schedule) = known.get(&micro_batches) {
            return Ok(schedule.clone());
        }
        let stages = self.seats.stages();
        let schedule = self.scheduler.schedule(stages, micro_batches)?;
        check(&schedule, stages, micro_batches)?;
        if schedule.is_asynchronous() {
            return Err(WrongSchedule::Asynchronous.into());
        }
        let schedule = Arc::new(self.step_schedule(&schedule, Vec::new())?);
        known.insert(micro_batches, schedule.clone());
        Ok(schedule)
    }

    /// The schedule of a window of so many updates, each after so many micro-batches.
    pub(crate) fn of_window(
        &self,
        (updates, micro_batches): (usize, usize),
        policy: WeightPolicy,
    ) -> Result<StepSchedule, StepError> {
        let (stages, all) = (self.seats.stages(), updates.saturating_mul(micro_batches));
        let schedule = self.scheduler.schedule(stages, all)?;
        check(&schedule, stages, all)?;
        match schedule.update_every() {
            None => return Err(WrongSchedule::Synchronous.into()),
            Some(every) if every != micro_batches => {
                return Err(WrongSchedule::Updates {
                    every,
                    micro_batches,
                }
                .into());
            }
            Some(_) => {}
        }
        let versions = schedule.versions(policy)?;
        self.step_schedule(&schedule, versions.workers().to_vec())
    }

    fn step_schedule(
        &self,
        schedule: &Schedule,
        versions: Vec<Vec<VersionUse>>,
    ) -> Result<StepSchedule, StepError> {
        let stages = self.seats.stages();
        let actions = self.actions(schedule).ok_or(StepError::OtherWorkers)?;
        let recorded = (0..stages).map(|stage| self.recompute.kept(schedule, stage));
        let layers = self.layers.iter().cloned();
        Ok(StepSchedule {
            actions,
            versions,
            recorded: recorded.collect(),
            segments: layers
                .map(|layers| self.recompute.segments(layers))
                .collect(),
            turns: Turns((0..stages).map(|stage| turns(schedule, stage)).collect()),
        })
    }

    /// Which replicas take which micro-batches where no training schedule says so.
    pub(crate) fn turns(&self, micro_batches: usize) -> Turns {
        let of_training = self.of(micro_batches);
        of_training.map_or_else(
            |_| self.seats.in_turn(micro_batches),
            |schedule| schedule.turns.clone(),
        )
    }

    /// The actions of each worker, if the schedule gives stages to the same ones as when the pipeline was
    /// built. With few micro-batches, the last replicas may have nothing to do, and the workers of the
    /// schedule have other numbers.
    fn actions(&self, schedule: &Schedule) -> Option<Vec<Vec<Action>>> {
        let mut worker_of = HashMap::new();
        let mut are_all_busy = true;
        for stage in 0..self.seats.stages() {
            let (busy, all) = (schedule.replicas(stage), self.seats.of_stage(stage));
            if busy.len() > all.len() {
                return None;
            }
            are_all_busy &= busy.len() == all.len();
            for (&worker, seat) in busy.iter().zip(all) {
                if *worker_of.entry(worker).or_insert(seat.worker) != seat.worker {
                    return None;
                }
            }
        }
        let mut actions = vec![Vec::new(); self.workers];
        for (worker, own) in schedule.workers().iter().enumerate() {
            let place = *worker_of.get(&worker)?;
            let is_other = are_all_busy && place != worker;
            if is_other || !actions[place].is_empty() {
                return None;
            }
            actions[place].clone_from(own);
        }
        Some(actions)
    }
}

/// The replica of a stage that takes each micro-batch.
fn turns(schedule: &Schedule, stage: usize) -> Arc<[usize]> {
    let replicas = schedule.replicas(stage);
    let turn = |micro_batch| {
        let worker = schedule.worker_of(stage, micro_batch);
        let mut replicas = replicas.iter();
        replicas.position(|&replica| replica == worker).unwrap_or(0)
    };
    (0..schedule.micro_batches()).map(turn).collect()
}

/// Checks that a pipeline with this number of devices can run a schedule.
///
/// ```
/// use stovepipe_pipeline::{check_schedule, error::WrongSchedule};
/// use stovepipe_schedule::{Interleaved, Scheduler};
///
/// let schedule = Interleaved { chunks: 2 }.schedule(4, 8)?;
/// assert_eq!(check_schedule(&schedule, 2), Ok(()));
/// let (workers, devices) = (2, 4);
/// assert_eq!(check_schedule(&schedule, 4), Err(WrongSchedule::Workers { workers, devices }));
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
///
/// # Errors
///
/// The reason if it cannot.
pub fn check_schedule(schedule: &Schedule, devices: usize) -> Result<(), WrongSchedule> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    seats(schedule, stages, micro_batches, devices).map(|_| ())
}

/// Where each stage runs.
pub(crate) fn seats(
    schedule: &Schedule,
    stages: usize,
    micro_batches: usize,
    devices: usize,
) -> Result<Seats, WrongSchedule> {
    check(schedule, stages, micro_batches)?;
    let workers = schedule.workers().len();
    if workers == devices {
        Ok(Seats::new(
            (0..stages).map(|stage| schedule.replicas(stage)),
        ))
    } else {
        Err(WrongSchedule::Workers { workers, devices })
    }
}

/// Schedulers may be custom, so this checks that the schedule is the requested one and trains.
fn check(schedule: &Schedule, stages: usize, micro_batches: usize) -> Result<(), WrongSchedule> {
    let requested = [stages, micro_batches];
    let found = [schedule.stages(), schedule.micro_batches()];
    if found != requested || !schedule.is_training() {
        return Err(WrongSchedule::Other { requested, found });
    }
    Ok(())
}
