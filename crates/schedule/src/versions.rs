//! Versions of weights under asynchronous schedules.

use std::{collections::HashMap, fmt};

use crate::{Action, Pass, Schedule, ScheduleError, table::Table};

/// Which version of the weights the passes of a micro-batch use, under asynchronous schedules.
///
/// Version `v` of a stage's weights is what the first `v` updates of the schedule have made; version 0 is
/// what the stage starts with. All passes of a micro-batch through a stage use one version (forward, recomputation and
/// backward), unless weights are not stashed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum WeightPolicy {
    /// Weight stashing: the newest version that the stage has at the micro-batch's forward pass. Each
    /// micro-batch of an update may use another one.
    #[default]
    Stashing,
    /// Vertical sync: in all stages the version that the first stage uses for the micro-batch.
    VerticalSync,
    /// No stashing, for comparisons: each pass uses the newest version that the stage has then. A
    /// micro-batch's gradient mixes versions, and is the gradient of none.
    Newest,
}

/// The name in papers.
impl fmt::Display for WeightPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Stashing => "weight stashing",
            Self::VerticalSync => "vertical sync",
            Self::Newest => "no stashing",
        })
    }
}

/// What an action does with the versions of its stage's weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct VersionUse {
    /// The version that a pass uses, or that an update makes.
    pub version: usize,
    /// The version that the worker can drop after the action: neither the newest one nor used later.
    pub dropped: Option<usize>,
}

/// The version of the weights of every pass; see [`Schedule::versions`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Versions {
    passes: PassVersions,
    /// By worker.
    workers: Vec<Vec<VersionUse>>,
}

impl Versions {
    /// The version that the passes of a micro-batch through a stage use; its forward pass, if weights are not
    /// stashed.
    ///
    /// # Panics
    ///
    /// If there is no such stage or micro-batch.
    #[must_use]
    pub fn of(&self, stage: usize, micro_batch: usize) -> usize {
        self.passes.of(stage, micro_batch)
    }

    /// For each worker, what each of its actions does, in order.
    #[must_use]
    pub fn workers(&self) -> &[Vec<VersionUse>] {
        &self.workers
    }

    /// The most versions of a stage's weights that each of its replicas keeps at one time, counted after
    /// each action. In the order of [`Schedule::replicas`].
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn peaks(&self, stage: usize) -> &[usize] {
        self.passes.peaks(stage)
    }
}

impl Schedule {
    /// The version of the weights that every pass uses, and what every update makes: a function of the
    /// schedule alone. Under synchronous schedules all are version 0.
    ///
    /// Under [`PipeDream`](crate::PipeDream) with weight stashing, a worker with a warm-up of `w` forward
    /// passes keeps at most `w` + 1 versions of its stage. Without replicas and with an update after every
    /// `n` micro-batches, it keeps at most ⌈`w` / `n`⌉ + 1; with vertical sync as many, where `w` is that
    /// of the first stage. During an update the new version is there besides.
    ///
    /// ```
    /// use stovepipe_schedule::{PipeDream, Scheduler, VersionUse, WeightPolicy};
    ///
    /// let schedule = PipeDream::default().schedule(2, 3)?;
    /// let versions = schedule.versions(WeightPolicy::Stashing)?;
    /// let mut worker = schedule.workers()[0].iter().zip(&versions.workers()[0]);
    /// let words = worker.map(|(action, VersionUse { version, .. })| format!("{action}:{version}"));
    /// let words = words.collect::<Vec<_>>().join(" ");
    /// assert_eq!(words, "0F0:0 0F1:0 0B0:0 0U0:1 0F2:1 0B1:0 0U1:2 0B2:1 0U2:3");
    /// // After the backward pass of micro-batch 1, no pass needs the first version.
    /// assert_eq!(versions.workers()[0][5], VersionUse { version: 0, dropped: Some(0) });
    /// assert_eq!([versions.peaks(0), versions.peaks(1)], [[2], [1]]);
    ///
    /// // With vertical sync, the second stage uses the version that the first one used.
    /// let versions = schedule.versions(WeightPolicy::VerticalSync)?;
    /// assert_eq!(schedule.workers()[1][3].to_string(), "1F1");
    /// assert_eq!(versions.workers()[1][3].version, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// With vertical sync, if a stage would need weights that it does not have yet.
    pub fn versions(&self, policy: WeightPolicy) -> Result<Versions, ScheduleError> {
        let passes = PassVersions::new(self, policy)?;
        let workers = self.workers().iter();
        let workers = workers.map(|actions| uses(actions, &passes.used, policy));
        let workers = workers.collect();
        Ok(Versions { passes, workers })
    }

    /// For each worker, the most versions of a stage's weights that it keeps at one time; see
    /// [`Versions::peaks`]. 1 unless the schedule is asynchronous.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, PipeDream, Scheduler, WeightPolicy};
    /// let schedule = PipeDream::default().schedule(3, 8)?;
    /// assert_eq!(schedule.weight_versions(WeightPolicy::Stashing)?, [3, 2, 1]); // warm-up + 1
    /// assert_eq!(schedule.weight_versions(WeightPolicy::VerticalSync)?, [3, 3, 3]);
    /// let schedule = GPipe.schedule(2, 8)?;
    /// assert_eq!(schedule.weight_versions(WeightPolicy::Stashing)?, [1, 1]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`versions`](Self::versions).
    pub fn weight_versions(&self, policy: WeightPolicy) -> Result<Vec<usize>, ScheduleError> {
        let mut most = vec![1; self.workers().len()];
        if self.is_asynchronous() {
            let versions = PassVersions::new(self, policy)?;
            for stage in 0..self.stages() {
                for (&worker, &peak) in self.replicas(stage).iter().zip(versions.peaks(stage)) {
                    most[worker] = most[worker].max(peak);
                }
            }
        }
        Ok(most)
    }

    /// For each stage, by how many updates its gradients are late: the most updates that it makes between the
    /// version that a micro-batch uses and the update that applies the micro-batch's gradients. 0 unless the
    /// schedule is asynchronous.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, PipeDream, Scheduler, WeightPolicy};
    /// let schedule = PipeDream::default().schedule(3, 8)?;
    /// assert_eq!(schedule.staleness(WeightPolicy::Stashing)?, [2, 1, 0]); // the warm-up
    /// assert_eq!(schedule.staleness(WeightPolicy::VerticalSync)?, [2, 2, 2]);
    /// let schedule = PipeDream::default().with_update_every(2).schedule(3, 8)?;
    /// assert_eq!(schedule.staleness(WeightPolicy::Stashing)?, [1, 1, 0]);
    /// assert_eq!(GPipe.schedule(2, 8)?.staleness(WeightPolicy::Stashing)?, [0, 0]);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`versions`](Self::versions).
    pub fn staleness(&self, policy: WeightPolicy) -> Result<Vec<usize>, ScheduleError> {
        let versions = PassVersions::new(self, policy)?;
        let of_stage = |stage| {
            let late = (0..self.micro_batches())
                .filter_map(|index| Some(self.update_of(index)? - versions.of(stage, index)));
            late.max().unwrap_or(0)
        };
        Ok((0..self.stages()).map(of_stage).collect())
    }

    /// The first action after which a worker keeps more than `most` versions with weight stashing.
    pub(crate) fn check_weight_versions(&self, most: usize) -> Result<(), ScheduleError> {
        let used = used(self, None)?;
        for (worker, actions) in self.workers().iter().enumerate() {
            let mut kept = HashMap::<_, Kept>::new();
            let uses = uses(actions, &used, WeightPolicy::Stashing);
            for (&action, of_action) in actions.iter().zip(uses) {
                let versions = kept
                    .entry(action.stage)
                    .or_default()
                    .after(action, of_action);
                if versions > most {
                    return Err(ScheduleError::WeightVersions {
                        worker,
                        action,
                        versions,
                        most,
                    });
                }
            }
        }
        Ok(())
    }
}

/// The versions that passes use, and how many there are: what a simulation needs of [`Versions`], which
/// may have millions of actions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PassVersions {
    /// In forward passes.
    used: Table<usize>,
    /// By stage, for each of its replicas.
    peaks: Vec<Vec<usize>>,
}

impl PassVersions {
    pub fn new(schedule: &Schedule, policy: WeightPolicy) -> Result<Self, ScheduleError> {
        let sync = policy == WeightPolicy::VerticalSync;
        let first = sync.then(|| versions_of_first_stage(schedule));
        let used = used(schedule, first.as_deref())?;
        let of_stage = |stage| vec![1; schedule.replicas(stage).len()];
        let mut peaks: Vec<_> = (0..schedule.stages()).map(of_stage).collect();
        for (worker, actions) in schedule.workers().iter().enumerate() {
            for (stage, kept) in kept(actions, &uses(actions, &used, policy)) {
                let mut replicas = schedule.replicas(stage).iter();
                if let Some(replica) = replicas.position(|&replica| replica == worker) {
                    peaks[stage][replica] = kept.most;
                }
            }
        }
        Ok(Self { used, peaks })
    }

    pub fn of(&self, stage: usize, micro_batch: usize) -> usize {
        self.used.of_stage(stage)[micro_batch]
    }

    pub fn peaks(&self, stage: usize) -> &[usize] {
        &self.peaks[stage]
    }
}

/// For each micro-batch, the version of the first stage's weights at its forward pass.
fn versions_of_first_stage(schedule: &Schedule) -> Vec<usize> {
    let mut versions = vec![0; schedule.micro_batches()];
    for &worker in schedule.replicas(0) {
        let mut newest = 0;
        for action in schedule.workers()[worker].iter().filter(|a| a.stage == 0) {
            match action.pass {
                Pass::Forward => versions[action.micro_batch] = newest,
                Pass::Update => newest += 1,
                _ => {}
            }
        }
    }
    versions
}

/// For each stage of a worker, how many versions it keeps.
fn kept(actions: &[Action], uses: &[VersionUse]) -> HashMap<usize, Kept> {
    let mut kept = HashMap::<_, Kept>::new();
    for (&action, &of_action) in actions.iter().zip(uses) {
        let of_stage = kept.entry(action.stage).or_default();
        of_stage.after(action, of_action);
    }
    kept
}

/// How many versions of a stage's weights a worker keeps.
struct Kept {
    now: usize,
    most: usize,
}

impl Default for Kept {
    fn default() -> Self {
        Self { now: 1, most: 1 }
    }
}

impl Kept {
    /// The number after an action.
    fn after(&mut self, action: Action, of_action: VersionUse) -> usize {
        self.now += usize::from(action.pass == Pass::Update);
        self.now -= usize::from(of_action.dropped.is_some());
        self.most = self.most.max(self.now);
        self.now
    }
}

/// Fills in the version of every forward pass. With vertical sync, `first` has that of each micro-batch.
fn used(schedule: &Schedule, first: Option<&[usize]>) -> Result<Table<usize>, ScheduleError> {
    let mut used = Table::new(schedule.stages(), schedule.micro_batches(), 0);
    for (worker, actions) in schedule.workers().iter().enumerate() {
        let mut newest = HashMap::new();
        for &action in actions {
            let latest = newest.entry(action.stage).or_insert(0);
            match action.pass {
                Pass::Update => *latest += 1,
                Pass::Forward => {
                    let synced = first.map(|first| first[action.micro_batch]);
                    let (latest, version) = (*latest, synced.unwrap_or(*latest));
                    if version > latest {
                        return Err(ScheduleError::FutureWeights {
                            worker,
                            action,
                            version,
                            latest,
                        });
                    }
                    used[action] = version;
                }
                _ => {}
            }
        }
    }
    Ok(used)
}

/// What the actions of a worker do, given the version of every forward pass.
fn uses(actions: &[Action], used: &Table<usize>, policy: WeightPolicy) -> Vec<VersionUse> {
    let mut newest = HashMap::new();
    let mut uses = Vec::with_capacity(actions.len());
    // When each version is used last, and when the next one is made.
    let (mut last_used, mut replaced) = (HashMap::new(), Vec::new());
    for (at, &action) in actions.iter().enumerate() {
        let stage = action.stage;
        let version = if action.pass == Pass::Update {
            let newest = newest.entry(stage).or_insert(0);
            replaced.push((stage, *newest, at));
            *newest += 1;
            *newest
        } else {
            let version = match policy {
                WeightPolicy::Newest => newest.get(&stage).copied().unwrap_or(0),
                _ => used[action],
            };
            last_used.insert((stage, version), at);
            version
        };
        uses.push(VersionUse {
            version,
            dropped: None,
        });
    }
    for (stage, version, at) in replaced {
        let last = last_used.get(&(stage, version)).copied().unwrap_or(at);
        uses[last.max(at)].dropped = Some(version);
    }
    uses
}
