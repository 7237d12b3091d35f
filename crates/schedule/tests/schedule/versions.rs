//! Versions of weights under asynchronous schedules, compared with published ones and with a run that
//! counts them.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::any_draft;
use proptest::prelude::*;
use stovepipe_schedule::{
    Action, Costs, GPipe, Limits, OneForwardOneBackward, Pass, PipeDream, Rule, Schedule,
    ScheduleError, Scheduler, VersionUse, WeightPolicy,
};

use WeightPolicy::{Newest, Stashing, VerticalSync};

const POLICIES: [WeightPolicy; 2] = [Stashing, VerticalSync];

fn pipedream(replicas: &[usize], every: usize, updates: usize) -> Schedule {
    let scheduler = PipeDream::new(replicas.to_vec()).with_update_every(every);
    scheduler.schedule(replicas.len(), every * updates).unwrap()
}

/// Each action of a worker with its version.
fn words(schedule: &Schedule, policy: WeightPolicy, worker: usize) -> String {
    let versions = schedule.versions(policy).unwrap();
    let uses = versions.workers()[worker].iter();
    let all = schedule.workers()[worker].iter().zip(uses);
    let words = all.map(|(action, of)| format!("{action}:{}", of.version));
    words.collect::<Vec<_>>().join(" ")
}

/// Four stages as in Figure 4 of Narayanan et al., *PipeDream*, 2019, with an update after each backward
/// pass: warm-ups of 3, 2, 1 and no forward passes.
#[test]
fn four_stages_as_published() {
    let schedule = pipedream(&[1, 1, 1, 1], 1, 6);
    let check = |worker, expected| assert_eq!(words(&schedule, Stashing, worker), expected);
    check(
        0,
        "0F0:0 0F1:0 0F2:0 0F3:0 0B0:0 0U0:1 0F4:1 0B1:0 0U1:2 0F5:2 0B2:0 0U2:3 0B3:0 0U3:4 0B4:1 0U4:5 0B5:2 0U5:6",
    );
    check(
        1,
        "1F0:0 1F1:0 1F2:0 1B0:0 1U0:1 1F3:1 1B1:0 1U1:2 1F4:2 1B2:0 1U2:3 1F5:3 1B3:1 1U3:4 1B4:2 1U4:5 1B5:3 1U5:6",
    );
    check(
        2,
        "2F0:0 2F1:0 2B0:0 2U0:1 2F2:1 2B1:0 2U1:2 2F3:2 2B2:1 2U2:3 2F4:3 2B3:2 2U3:4 2F5:4 2B4:3 2U4:5 2B5:4 2U5:6",
    );
    check(
        3,
        "3F0:0 3B0:0 3U0:1 3F1:1 3B1:1 3U1:2 3F2:2 3B2:2 3U2:3 3F3:3 3B3:3 3U3:4 3F4:4 3B4:4 3U4:5 3F5:5 3B5:5 3U5:6",
    );
    // Not stashed: a backward pass uses what all updates before it made.
    assert_eq!(
        words(&schedule, Newest, 0),
        "0F0:0 0F1:0 0F2:0 0F3:0 0B0:0 0U0:1 0F4:1 0B1:1 0U1:2 0F5:2 0B2:2 0U2:3 0B3:3 0U3:4 0B4:4 0U4:5 0B5:5 0U5:6",
    );
    assert_eq!(schedule.weight_versions(Newest).unwrap(), [1; 4]);
    // Vertical sync: the last stage uses what the first one used.
    assert_eq!(
        words(&schedule, VerticalSync, 3),
        "3F0:0 3B0:0 3U0:1 3F1:0 3B1:0 3U1:2 3F2:0 3B2:0 3U2:3 3F3:0 3B3:0 3U3:4 3F4:1 3B4:1 3U4:5 3F5:2 3B5:2 3U5:6",
    );
}

/// An update after two micro-batches: they may use different versions. Replicas have the same updates.
#[test]
fn several_micro_batches_and_replicas() {
    let schedule = pipedream(&[1, 1], 2, 3);
    let first =
        "0F0:0 0F1:0 0B0:0 0F2:0 0B1:0 0U1:1 0F3:1 0B2:0 0F4:1 0B3:1 0U3:2 0F5:2 0B4:1 0B5:2 0U5:3";
    assert_eq!(words(&schedule, Stashing, 0), first);
    let last =
        "1F0:0 1B0:0 1F1:0 1B1:0 1U1:1 1F2:1 1B2:1 1F3:1 1B3:1 1U3:2 1F4:2 1B4:2 1F5:2 1B5:2 1U5:3";
    assert_eq!(words(&schedule, Stashing, 1), last);
    let synced =
        "1F0:0 1B0:0 1F1:0 1B1:0 1U1:1 1F2:0 1B2:0 1F3:1 1B3:1 1U3:2 1F4:1 1B4:1 1F5:2 1B5:2 1U5:3";
    assert_eq!(words(&schedule, VerticalSync, 1), synced);

    let schedule = pipedream(&[2, 1], 2, 3);
    let first = "0F0:0 0F2:0 0B0:0 0U1:1 0F4:1 0B2:0 0U3:2 0B4:1 0U5:3";
    assert_eq!(words(&schedule, Stashing, 0), first);
    let second = "0F1:0 0F3:0 0B1:0 0U1:1 0F5:1 0B3:0 0U3:2 0B5:1 0U5:3";
    assert_eq!(words(&schedule, Stashing, 1), second);
    assert_eq!(words(&schedule, Stashing, 2), last);
    // Of four micro-batches, one replica has two, and each of the others one.
    let schedule = pipedream(&[3], 4, 2);
    assert_eq!(
        words(&schedule, Stashing, 0),
        "0F0:0 0B0:0 0F3:0 0B3:0 0U3:1 0F6:1 0B6:1 0U7:2"
    );
    assert_eq!(
        words(&schedule, Stashing, 1),
        "0F1:0 0B1:0 0U3:1 0F4:1 0B4:1 0F7:1 0B7:1 0U7:2"
    );
}

/// Drops come as early as they can: at the last backward pass of a version, or at the update after it.
#[test]
fn a_version_is_dropped_after_its_last_use() {
    let schedule = pipedream(&[1, 1], 1, 4);
    let drops = |policy, worker: usize| {
        let versions = schedule.versions(policy).unwrap();
        let uses = versions.workers()[worker].iter();
        let all = schedule.workers()[worker].iter().zip(uses);
        let drops = all.filter_map(|(action, of)| Some(format!("{action}-{}", of.dropped?)));
        drops.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(drops(Stashing, 0), "0B1-0 0B2-1 0B3-2 0U3-3");
    assert_eq!(drops(Stashing, 1), "1U0-0 1U1-1 1U2-2 1U3-3");
    assert_eq!(drops(VerticalSync, 1), "1B1-0 1B2-1 1B3-2 1U3-3");
}

/// One more than the warm-up, for each worker.
#[test]
fn a_stage_keeps_one_version_more_than_its_warm_up() {
    let check = |replicas: &[usize], every, policy, expected: &[usize]| {
        let schedule = pipedream(replicas, every, 24);
        assert_eq!(schedule.weight_versions(policy).unwrap(), expected);
    };
    check(&[1, 1, 1, 1], 1, Stashing, &[4, 3, 2, 1]);
    check(&[1, 1, 1, 1], 1, VerticalSync, &[4, 4, 4, 4]);
    check(&[1, 1, 1, 1], 2, Stashing, &[3, 2, 2, 1]);
    check(&[1, 1, 1, 1], 3, Stashing, &[2, 2, 2, 1]);
    check(&[1, 1, 1, 1], 3, VerticalSync, &[2, 2, 2, 2]);
    check(&[2, 1], 2, Stashing, &[2, 2, 1]);
    check(&[2, 1], 2, VerticalSync, &[2, 2, 2]);
    check(&[3, 1], 3, Stashing, &[2, 2, 2, 1]);
    // Warm-ups of 2 and 0: each replica has every other micro-batch.
    check(&[1, 2], 2, Stashing, &[2, 1, 1]);
}

#[test]
fn synchronous_schedules_have_one_version() {
    for schedule in [
        GPipe.schedule(3, 4),
        OneForwardOneBackward.schedule(3, 4),
        Schedule::inference(3, 4),
    ] {
        let schedule = schedule.unwrap();
        assert_eq!((schedule.update_every(), schedule.updates()), (None, 0));
        assert_eq!(schedule.update_of(3), None);
        for policy in POLICIES {
            let versions = schedule.versions(policy).unwrap();
            let one = VersionUse {
                version: 0,
                dropped: None,
            };
            assert!(versions.workers().iter().flatten().all(|&of| of == one));
            assert_eq!(versions.peaks(1), [1]);
            assert_eq!(schedule.weight_versions(policy).unwrap(), [1, 1, 1]);
        }
    }
}

/// A run of a schedule without the work: each stage counts its updates, and what it sends says which
/// version it was made with, as in a pipeline without a table.
struct Run<'a> {
    schedule: &'a Schedule,
    policy: WeightPolicy,
    next: Vec<usize>,
    done: BTreeSet<Action>,
    /// The updates of each stage on each worker.
    updates: BTreeMap<(usize, usize), usize>,
    /// The micro-batches whose gradients of weights a worker has and did not yet apply.
    gradients: BTreeMap<(usize, usize), Vec<usize>>,
    /// The version that the first stage used, which goes along with a micro-batch.
    tags: BTreeMap<usize, usize>,
    used: BTreeMap<(usize, usize), usize>,
    /// Which micro-batches each update of a stage applied.
    applied: BTreeMap<usize, Vec<Vec<usize>>>,
    /// A version was used that did not exist yet.
    from_the_future: bool,
}

impl<'a> Run<'a> {
    /// Takes one of the workers that can go on, by the next of these numbers.
    fn new(schedule: &'a Schedule, policy: WeightPolicy, choices: &[usize]) -> Self {
        let mut run = Self {
            schedule,
            policy,
            next: vec![0; schedule.workers().len()],
            done: BTreeSet::new(),
            updates: BTreeMap::new(),
            gradients: BTreeMap::new(),
            tags: BTreeMap::new(),
            used: BTreeMap::new(),
            applied: BTreeMap::new(),
            from_the_future: false,
        };
        let mut choices = choices.iter().cycle();
        loop {
            let workers = 0..run.next.len();
            let ready: Vec<_> = workers.filter(|&worker| run.is_ready(worker)).collect();
            if ready.is_empty() {
                break;
            }
            run.step(ready[choices.next().unwrap() % ready.len()]);
        }
        let ends = schedule.workers().iter().map(Vec::len);
        assert!(run.next.iter().copied().eq(ends), "stuck: {schedule}");
        run
    }

    fn at(&self, worker: usize) -> Option<Action> {
        self.schedule.workers()[worker]
            .get(self.next[worker])
            .copied()
    }

    /// The workers that have an update.
    fn replicas(&self, update: Action) -> Vec<usize> {
        let workers = self.schedule.workers().iter().enumerate();
        let has = workers.filter(|(_, actions)| actions.contains(&update));
        has.map(|(worker, _)| worker).collect()
    }

    fn is_ready(&self, worker: usize) -> bool {
        let Some(action) = self.at(worker) else {
            return false;
        };
        let has = |stage, pass| {
            self.done
                .contains(&Action::new(stage, pass, action.micro_batch))
        };
        match action.pass {
            Pass::Forward => action.stage == 0 || has(action.stage - 1, Pass::Forward),
            Pass::Backward | Pass::InputGradient => {
                let next = action.stage + 1;
                let is_last = next == self.schedule.stages();
                is_last || has(next, Pass::Backward) || has(next, Pass::InputGradient)
            }
            Pass::WeightGradient => true,
            Pass::Update => {
                let mut replicas = self.replicas(action).into_iter();
                replicas.all(|replica| self.at(replica) == Some(action))
            }
        }
    }

    fn step(&mut self, worker: usize) {
        let action = self.at(worker).unwrap();
        let (stage, micro_batch) = (action.stage, action.micro_batch);
        self.done.insert(action);
        let own = (stage, worker);
        match action.pass {
            Pass::Forward => {
                let newest = self.updates.get(&own).copied().unwrap_or(0);
                let tag = *self.tags.entry(micro_batch).or_insert(newest);
                let version = if self.policy == Stashing { newest } else { tag };
                self.from_the_future |= version > newest;
                self.used.insert((stage, micro_batch), version);
            }
            Pass::InputGradient => {}
            Pass::Backward | Pass::WeightGradient => {
                self.gradients.entry(own).or_default().push(micro_batch);
            }
            Pass::Update => {
                let mut all = Vec::new();
                for replica in self.replicas(action) {
                    all.extend(self.gradients.remove(&(stage, replica)).unwrap());
                    *self.updates.entry((stage, replica)).or_default() += 1;
                    self.next[replica] += 1;
                }
                all.sort_unstable();
                self.applied.entry(stage).or_default().push(all);
                return;
            }
        }
        self.next[worker] += 1;
    }
}

/// Compares the table with the run, and what it keeps with what later passes need.
fn check(
    schedule: &Schedule,
    policy: WeightPolicy,
    choices: &[usize],
) -> Result<(), TestCaseError> {
    let run = Run::new(schedule, policy, choices);
    let versions = schedule.versions(policy);
    prop_assert_eq!(
        matches!(versions, Err(ScheduleError::FutureWeights { .. })),
        run.from_the_future
    );
    let Ok(versions) = versions else {
        return Ok(());
    };
    let every = schedule.update_every().unwrap();
    for stage in 0..schedule.stages() {
        // Each update has its micro-batches, all of them, once.
        let whole =
            (0..schedule.updates()).map(|u| (u * every..(u + 1) * every).collect::<Vec<_>>());
        prop_assert!(
            run.applied[&stage].iter().cloned().eq(whole),
            "{}",
            schedule
        );
        let used = (0..schedule.micro_batches()).map(|i| versions.of(stage, i));
        let expected = (0..schedule.micro_batches()).map(|i| run.used[&(stage, i)]);
        prop_assert!(used.eq(expected), "{:?} {}", policy, schedule);
        for (replica, &worker) in schedule.replicas(stage).iter().enumerate() {
            let all = schedule.workers()[worker]
                .iter()
                .zip(&versions.workers()[worker]);
            let own: Vec<_> = all.filter(|(action, _)| action.stage == stage).collect();
            let (mut kept, mut newest, mut most) = (BTreeSet::from([0]), 0, 1);
            for (at, (action, of)) in own.iter().enumerate() {
                if action.pass == Pass::Update {
                    newest += 1;
                    prop_assert_eq!(of.version, newest);
                    prop_assert_eq!(Some(newest - 1), schedule.update_of(action.micro_batch));
                    kept.insert(newest);
                } else {
                    prop_assert_eq!(of.version, run.used[&(stage, action.micro_batch)]);
                    prop_assert!(kept.contains(&of.version));
                }
                if let Some(dropped) = of.dropped {
                    prop_assert!(kept.remove(&dropped));
                }
                let later = own[at + 1..]
                    .iter()
                    .filter(|(action, _)| action.pass != Pass::Update);
                let mut needed: BTreeSet<_> = later
                    .map(|(action, _)| run.used[&(stage, action.micro_batch)])
                    .collect();
                needed.retain(|&version| version <= newest);
                needed.insert(newest);
                prop_assert_eq!(
                    &kept,
                    &needed,
                    "after {} of {:?} {}",
                    action,
                    policy,
                    schedule
                );
                most = most.max(kept.len());
            }
            prop_assert_eq!(versions.peaks(stage)[replica], most);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn the_table_is_what_a_run_counts(
        replicas in prop::collection::vec(1..=3_usize, 1..=4), more in 0..=3_usize, updates in 1..=8_usize,
        straight: bool, choices in prop::collection::vec(0..1000_usize, 1..40),
    ) {
        let replicas = if straight { vec![1; replicas.len()] } else { replicas };
        let every = replicas.iter().max().unwrap() + more;
        let schedule = pipedream(&replicas, every, updates);
        prop_assert_eq!((schedule.update_every(), schedule.updates()), (Some(every), updates));
        prop_assert!(schedule.is_ascending());
        for policy in POLICIES {
            prop_assert!(schedule.versions(policy).is_ok());
            check(&schedule, policy, &choices)?;
            let warm_up = |stage: usize, count| {
                replicas[stage..].iter().sum::<usize>().div_ceil(count) - 1
            };
            for (stage, &count) in replicas.iter().enumerate() {
                let versions = schedule.versions(policy).unwrap();
                let most = versions.peaks(stage).iter().max().unwrap();
                if policy == Stashing {
                    prop_assert!(*most <= warm_up(stage, count) + 1);
                }
                if straight {
                    let warm_up = warm_up(if policy == Stashing { stage } else { 0 }, 1);
                    prop_assert!(*most <= warm_up.div_ceil(every) + 1);
                    // The closed form: the updates of the micro-batches before the warm-up.
                    for i in 0..schedule.micro_batches() {
                        prop_assert_eq!(versions.of(stage, i), i.saturating_sub(warm_up) / every);
                    }
                }
            }
        }
    }

    #[test]
    fn the_table_of_any_order_is_what_a_run_counts(draft in any_draft()) {
        let schedule = Schedule::new(draft.lists()).unwrap();
        prop_assume!(schedule.is_asynchronous());
        for policy in POLICIES {
            check(&schedule, policy, &draft.choices)?;
        }
        let most = schedule.weight_versions(Stashing).unwrap().into_iter().max().unwrap();
        let within = |most| Limits { weight_versions: Some(most), ..Limits::default() };
        prop_assert!(schedule.check(within(most)).is_ok());
        prop_assert!(schedule.check(within(most - 1)).is_err());
    }
}

/// Costs with vertical sync count its versions, and a schedule that does not allow it is an error.
#[test]
fn simulations_follow_the_policy() {
    let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    costs.weights = VerticalSync;
    costs
        .stages
        .iter_mut()
        .for_each(|stage| stage.memory.version = 10.0);
    let schedule = Rule::PipeDream.schedule(2, 4).unwrap();
    assert_eq!(
        schedule.simulate(&costs).unwrap().fixed_memory(),
        [10.0, 10.0]
    );
    let late = "0F0 0B0 0U0 0F1 0B1 0U1\n1F0 1B0 1F1 1U0 1B1 1U1";
    let late: Schedule = late.parse().unwrap();
    let error = late.simulate(&costs).unwrap_err().to_string();
    assert!(
        error.starts_with("worker 1 at 1F1 needs version 1 of its weights"),
        "{error}"
    );
}
