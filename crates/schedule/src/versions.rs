//! Versions of weights under asynchronous schedules.

use std::collections::{BTreeSet, HashMap};

use crate::{Action, Pass, Schedule, ScheduleError};

/// For each worker, the most versions of a stage's weights that it keeps at one time; see
/// [`Schedule::weight_versions`]. An error if some worker keeps more than `most`.
pub(crate) fn weight_versions(
    schedule: &Schedule,
    vertical_sync: bool,
    most: Option<usize>,
) -> Result<Vec<usize>, ScheduleError> {
    let mut peaks = vec![1; schedule.workers().len()];
    if !schedule.is_asynchronous() {
        return Ok(peaks);
    }
    let first = vertical_sync.then(|| updates_before_first_stage(schedule));
    for stage in 0..schedule.stages() {
        for &worker in schedule.replicas(stage) {
            let all = schedule.workers()[worker].iter().copied();
            let stash = Stash {
                worker,
                actions: all.filter(|action| action.stage == stage).collect(),
                replicas: schedule.replicas(stage).len(),
                first: first.as_deref(),
            };
            peaks[worker] = peaks[worker].max(stash.peak(most)?);
        }
    }
    Ok(peaks)
}

/// For each micro-batch, how many of those before have changed the first stage's weights when it goes
/// through. Replicas change their weights together, once each had a turn.
fn updates_before_first_stage(schedule: &Schedule) -> Vec<usize> {
    let mut updates = vec![0; schedule.micro_batches()];
    let replicas = schedule.replicas(0);
    for &worker in replicas {
        let mut rounds = 0;
        for action in schedule.workers()[worker].iter().filter(|a| a.stage == 0) {
            match action.pass {
                Pass::Forward => updates[action.micro_batch] = rounds * replicas.len(),
                Pass::Update => rounds += 1,
                _ => {}
            }
        }
    }
    updates
}

/// The versions of one stage's weights on one worker.
struct Stash<'a> {
    worker: usize,
    /// Those of the worker for this stage.
    actions: Vec<Action>,
    replicas: usize,
    /// With vertical sync, what the first stage had seen, by micro-batch.
    first: Option<&'a [usize]>,
}

impl Stash<'_> {
    /// The most versions at one time.
    fn peak(&self, most: Option<usize>) -> Result<usize, ScheduleError> {
        let mut to_come = self
            .actions
            .iter()
            .filter(|a| a.pass == Pass::Forward)
            .peekable();
        let mut in_use = HashMap::new();
        let (mut latest, mut peak) = (0, 1);
        for &action in &self.actions {
            match action.pass {
                Pass::Forward => {
                    to_come.next();
                    in_use.insert(action.micro_batch, self.version(action, latest)?);
                }
                Pass::Update => {
                    in_use.remove(&action.micro_batch);
                    latest += 1;
                }
                _ => {}
            }
            let next = to_come
                .peek()
                .and_then(|next| self.synced(next.micro_batch));
            let versions = count(in_use.values().copied(), next, latest);
            peak = peak.max(versions);
            if let Some(most) = most.filter(|&most| versions > most) {
                return Err(ScheduleError::WeightVersions {
                    worker: self.worker,
                    action,
                    versions,
                    most,
                });
            }
        }
        Ok(peak)
    }

    /// The version that a forward pass uses.
    fn version(&self, action: Action, latest: usize) -> Result<usize, ScheduleError> {
        let version = self.synced(action.micro_batch).unwrap_or(latest);
        match version <= latest {
            true => Ok(version),
            false => Err(ScheduleError::FutureWeights {
                worker: self.worker,
                action,
                version,
                latest,
            }),
        }
    }

    /// The version that the first stage used, in this stage's counting.
    fn synced(&self, micro_batch: usize) -> Option<usize> {
        self.first.map(|first| first[micro_batch] / self.replicas)
    }
}

/// Versions in use, and the latest. If the `next` micro-batch wants an older one, that and all since.
fn count(in_use: impl Iterator<Item = usize>, next: Option<usize>, latest: usize) -> usize {
    let mut versions: BTreeSet<_> = in_use.chain([latest]).collect();
    if let Some(next) = next {
        versions.extend(next..=latest);
    }
    versions.len()
}
