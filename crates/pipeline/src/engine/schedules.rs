//! Schedules that the engine can run, and what it needs to know of each.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use stovepipe_schedule::{Recompute, Schedule, Scheduler};

use crate::api::error::{StepError, WrongSchedule};

/// A schedule, and the micro-batches that each stage records in their forward pass.
pub(crate) struct StepSchedule {
    pub(crate) schedule: Schedule,
    pub(crate) recorded: Vec<Vec<bool>>,
}

/// Makes the schedules of a pipeline and keeps them, by number of micro-batches: a small batch has
/// fewer.
pub(crate) struct Schedules {
    pub(crate) scheduler: Arc<dyn Scheduler>,
    pub(crate) recompute: Recompute,
    /// The worker of each stage.
    pub(crate) owners: Vec<usize>,
    pub(crate) workers: usize,
    pub(crate) known: Mutex<HashMap<usize, Arc<StepSchedule>>>,
}

impl Schedules {
    pub(crate) fn of(&self, micro_batches: usize) -> Result<Arc<StepSchedule>, StepError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(schedule) = known.get(&micro_batches) {
            return Ok(schedule.clone());
        }
        let stages = self.owners.len();
        let schedule = self.scheduler.schedule(stages, micro_batches)?;
        if owners(&schedule, stages, micro_batches, self.workers)? != self.owners {
            return Err(StepError::OtherWorkers);
        }
        let recorded = (0..stages)
            .map(|stage| self.recompute.kept(&schedule, stage))
            .collect();
        let schedule = Arc::new(StepSchedule { schedule, recorded });
        known.insert(micro_batches, schedule.clone());
        Ok(schedule)
    }
}

/// Checks that a pipeline with this number of devices can run a schedule.
///
/// ```
/// use stovepipe_pipeline::{check_schedule, error::WrongSchedule};
/// use stovepipe_schedule::{Interleaved, PipeDream, Scheduler};
///
/// assert_eq!(check_schedule(&Interleaved { chunks: 2 }.schedule(4, 8)?, 2), Ok(()));
/// let asynchronous = PipeDream::default().schedule(2, 8)?;
/// assert_eq!(check_schedule(&asynchronous, 2), Err(WrongSchedule::Asynchronous));
/// # Ok::<(), stovepipe_schedule::ScheduleError>(())
/// ```
///
/// # Errors
///
/// The reason if it cannot.
pub fn check_schedule(schedule: &Schedule, devices: usize) -> Result<(), WrongSchedule> {
    let (stages, micro_batches) = (schedule.stages(), schedule.micro_batches());
    owners(schedule, stages, micro_batches, devices).map(|_| ())
}

/// The worker of each stage. Schedulers may be custom, so this checks that the schedule is the
/// requested one, trains, and is one that the engine runs.
pub(crate) fn owners(
    schedule: &Schedule,
    stages: usize,
    micro_batches: usize,
    devices: usize,
) -> Result<Vec<usize>, WrongSchedule> {
    let (found_stages, found_micro_batches) = (schedule.stages(), schedule.micro_batches());
    let fits = (found_stages, found_micro_batches) == (stages, micro_batches);
    if !(fits && schedule.is_training()) {
        return Err(WrongSchedule::Other {
            stages,
            micro_batches,
            found_stages,
            found_micro_batches,
        });
    }
    if schedule.is_asynchronous() {
        return Err(WrongSchedule::Asynchronous);
    }
    let owner = |stage| match *schedule.replicas(stage) {
        [worker] => Ok(worker),
        ref replicas => Err(WrongSchedule::Replicas {
            stage,
            replicas: replicas.len(),
        }),
    };
    let owners = (0..stages).map(owner).collect::<Result<_, _>>()?;
    let workers = schedule.workers().len();
    if workers == devices {
        Ok(owners)
    } else {
        Err(WrongSchedule::Workers { workers, devices })
    }
}
