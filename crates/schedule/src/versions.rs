//! Versions of weights under asynchronous schedules.

use std::collections::{BTreeMap, HashMap};

use crate::{Action, Pass, Schedule, ScheduleError};

/// See [`Schedule::weight_versions`]. An error if a worker keeps more than `most`.
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
    let mut by_stage = BTreeMap::<_, Vec<_>>::new();
    for (worker, actions) in schedule.workers().iter().enumerate() {
        for &action in actions {
            let of_both = by_stage.entry((action.stage, worker));
            of_both.or_default().push(action);
        }
    }
    for ((stage, worker), actions) in by_stage {
        let stash = Stash {
            worker,
            actions,
            replicas: schedule.replicas(stage).len(),
            first: first.as_deref(),
        };
        peaks[worker] = peaks[worker].max(stash.peak(most)?);
    }
    Ok(peaks)
}

/// For each micro-batch, how many others have changed the first stage's weights before its forward
/// pass. Replicas change their weights together, after each had a turn.
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
    actions: Vec<Action>,
    replicas: usize,
    /// With vertical sync, the updates before the first stage, by micro-batch.
    first: Option<&'a [usize]>,
}

impl Stash<'_> {
    fn peak(&self, most: Option<usize>) -> Result<usize, ScheduleError> {
        let forwards = self.actions.iter().filter(|a| a.pass == Pass::Forward);
        let mut to_come = forwards.peekable();
        let mut in_use = InUse::default();
        let (mut latest, mut peak) = (0, 1);
        for &action in &self.actions {
            match action.pass {
                Pass::Forward => {
                    to_come.next();
                    in_use.insert(action.micro_batch, self.version(action, latest)?);
                }
                Pass::Update => {
                    in_use.remove(action.micro_batch);
                    latest += 1;
                }
                _ => {}
            }
            let next = (to_come.peek()).and_then(|next| self.synced(next.micro_batch));
            let versions = in_use.versions(next, latest);
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
        match self.synced(action.micro_batch) {
            Some(version) if version > latest => Err(ScheduleError::FutureWeights {
                worker: self.worker,
                action,
                version,
                latest,
            }),
            synced => Ok(synced.unwrap_or(latest)),
        }
    }

    /// The version that the first stage used, in this stage's count.
    fn synced(&self, micro_batch: usize) -> Option<usize> {
        self.first.map(|first| first[micro_batch] / self.replicas)
    }
}

/// The versions that micro-batches in flight use.
#[derive(Default)]
struct InUse {
    of_micro_batch: HashMap<usize, usize>,
    /// How many use each version.
    uses: BTreeMap<usize, usize>,
}

impl InUse {
    fn insert(&mut self, micro_batch: usize, version: usize) {
        self.of_micro_batch.insert(micro_batch, version);
        *self.uses.entry(version).or_default() += 1;
    }

    fn remove(&mut self, micro_batch: usize) {
        let version = self.of_micro_batch.remove(&micro_batch);
        if let Some((version, uses)) = version.and_then(|v| Some((v, self.uses.get_mut(&v)?))) {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&version);
            }
        }
    }

    /// The number of versions in use, and the latest. If the `next` micro-batch needs an older one, that
    /// and all since.
    fn versions(&self, next: Option<usize>, latest: usize) -> usize {
        let kept = next.unwrap_or(latest).min(latest)..=latest;
        // Called after each action: there are few versions from there on, and many before.
        let in_both = self.uses.range(kept.clone()).count();
        self.uses.len() - in_both + kept.count()
    }
}
