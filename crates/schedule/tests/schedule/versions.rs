//! Versions of weights under asynchronous schedules, compared with published and naive counts.

use std::collections::BTreeSet;

use crate::common::any_draft;
use proptest::prelude::*;
use stovepipe_schedule::{Action, Limits, Pass, PipeDream, Schedule, Scheduler};

/// One more than the warm-up, for each worker: Narayanan et al., *PipeDream*, 2019.
#[test]
fn a_stage_keeps_one_version_more_than_its_warm_up() {
    let check = |replicas: &[usize], expected: &[usize]| {
        let scheduler = PipeDream::new(replicas.to_vec());
        let schedule = scheduler.schedule(replicas.len(), 24).unwrap();
        assert_eq!(schedule.weight_versions(false).unwrap(), expected);
    };
    check(&[1, 1, 1, 1], &[4, 3, 2, 1]);
    check(&[2, 1], &[2, 2, 1]);
    check(&[3, 1], &[2, 2, 2, 1]);
    check(&[1, 2], &[3, 1, 1]);
}

/// The first stage's replicas have seen 0 micro-batches at 0 to 3, 2 at 4 and 5, 4 at 6 and 7. The second
/// stage changes its weights after each: until it has seen 3, it needs its first version and all since.
#[test]
fn vertical_sync_counts_micro_batches_and_not_turns() {
    let schedule = PipeDream::new(vec![2, 1]).schedule(2, 8).unwrap();
    assert_eq!(schedule.weight_versions(false).unwrap(), [2, 2, 1]);
    assert_eq!(schedule.weight_versions(true).unwrap(), [2, 2, 4]);
    let equal = PipeDream::default().schedule(4, 12).unwrap();
    assert_eq!(equal.weight_versions(true).unwrap(), [4, 4, 4, 4]);
}

/// The micro-batches that the first stage's weights have seen when each goes through it.
fn seen_by_first_stage(schedule: &Schedule) -> Vec<usize> {
    let replicas = schedule.replicas(0).len();
    let seen = |micro_batch| {
        let worker = schedule.worker_of(0, micro_batch);
        let actions = schedule.workers()[worker].iter();
        let before = actions.take_while(|&&a| a != Action::forward(0, micro_batch));
        let updates = before.filter(|a| a.stage == 0 && a.pass == Pass::Update);
        replicas * updates.count()
    };
    (0..schedule.micro_batches()).map(seen).collect()
}

/// The most versions of a stage on a worker, found after each action from all actions before it and the
/// next forward pass. None if a later version is needed.
fn most_versions(schedule: &Schedule, stage: usize, worker: usize, sync: bool) -> Option<usize> {
    let first = seen_by_first_stage(schedule);
    let replicas = schedule.replicas(stage).len();
    let all = schedule.workers()[worker].iter();
    let actions: Vec<_> = all.filter(|a| a.stage == stage).copied().collect();
    let updates = |before: &[Action]| before.iter().filter(|a| a.pass == Pass::Update).count();
    let needed = |at: usize| {
        if sync {
            first[actions[at].micro_batch] / replicas
        } else {
            updates(&actions[..at])
        }
    };
    let is_forward = |&at: &usize| actions[at].pass == Pass::Forward;
    let mut forwards = (0..actions.len()).filter(is_forward);
    if forwards.any(|at| needed(at) > updates(&actions[..at])) {
        return None;
    }
    let versions = |now: usize| {
        let (done, to_come) = actions.split_at(now);
        let latest = updates(done);
        let mut versions = BTreeSet::from([latest]);
        for at in (0..now).filter(is_forward) {
            let update = Action::new(stage, Pass::Update, actions[at].micro_batch);
            if !done.contains(&update) {
                versions.insert(needed(at));
            }
        }
        let next = to_come.iter().position(|a| a.pass == Pass::Forward);
        if let (true, Some(next)) = (sync, next) {
            versions.extend(needed(now + next)..=latest);
        }
        versions.len()
    };
    (0..=actions.len()).map(versions).max()
}

proptest! {
    #[test]
    fn versions_are_those_that_a_naive_count_finds(
        draft in any_draft(), replicas in prop::collection::vec(1..=3_usize, 1..=4), m in 1..=12_usize,
    ) {
        let pipedream = PipeDream::new(replicas.clone()).schedule(replicas.len(), m).unwrap();
        for schedule in [pipedream, Schedule::new(draft.lists()).unwrap()] {
            for sync in [false, true] {
                let workers = 0..schedule.workers().len();
                let has = |worker, stage| schedule.replicas(stage).contains(&worker);
                let of_worker = |worker| {
                    let stages = (0..schedule.stages()).filter(|&stage| has(worker, stage));
                    let most = stages.map(|stage| most_versions(&schedule, stage, worker, sync));
                    most.collect::<Option<Vec<_>>>().map(|most| most.into_iter().max().unwrap())
                };
                let expected: Option<Vec<_>> = workers.map(of_worker).collect();
                prop_assert_eq!(&schedule.weight_versions(sync).ok(), &expected, "{} {}", sync, schedule);
                if let (false, Some(expected)) = (sync, expected) {
                    let most = expected.into_iter().max().unwrap();
                    let within = |most| Limits { weight_versions: Some(most), ..Limits::default() };
                    prop_assert!(schedule.check(within(most)).is_ok());
                    prop_assert_eq!(schedule.check(within(most - 1)).is_err(), schedule.is_asynchronous());
                }
            }
        }
    }
}
