//! Every rule of a schedule, broken on purpose.

use crate::common::{any_draft, rows, schedulers};
use proptest::prelude::*;
use stovepipe_schedule::{
    Action, DataParallel, GPipe, Interleaved, Limits, OneForwardOneBackward, Pass, PipeDream,
    RoundRobin, Schedule, ScheduleError, Scheduler, Waiting, WeightPolicy, ZeroBubbleH1,
};

/// Schedules, and the whole error of each: which worker, which action, why.
fn check(table: &str) {
    rows(table).for_each(|(text, expected)| check_text(&text, expected));
}

fn check_text(text: &str, expected: &str) {
    let error = text.parse::<Schedule>().expect_err(text);
    assert_eq!(error.to_string(), expected, "{text}");
}

#[test]
fn every_worker_has_an_action() {
    check_text("", "a schedule needs at least one worker");
    check_text("0F0\n\n1F0", "worker 1 has no action");
    assert_eq!(Schedule::new(vec![]), Err(ScheduleError::NoWorkers));
}

#[test]
fn stages_are_numbered_without_a_gap() {
    check(
        "1F0 => no worker has stage 0, though a later stage exists
         0F0 / 2F0 => no worker has stage 1, though a later stage exists",
    );
    let enormous = Action::forward(usize::MAX, 0);
    let missing = Err(ScheduleError::MissingStage { stage: 0 });
    assert_eq!(Schedule::new(vec![vec![enormous]]), missing);
}

#[test]
fn all_of_a_micro_batch_is_on_one_worker() {
    check(
        "0F0 / 0B0 => worker 1 has 0B0, which belongs to worker 0
         0F0 / 0F0 => worker 1 has 0F0, which belongs to worker 0
         0F0 0F1 1F0 / 0F1 1F1 => worker 1 has 0F1, which belongs to worker 0
         0F0 0I0 / 0W0 => worker 1 has 0W0, which belongs to worker 0
         0F0 0B0 / 0U0 => worker 1 has 0U0, which belongs to worker 0",
    );
}

/// The smallest number of an update says how many micro-batches each has.
#[test]
fn updates_are_at_equal_distances_on_all_replicas() {
    check(
        "0F0 0F1 0B0 0B1 0U1 0F2 0B2 0U2 => worker 0 has 0U2, but updates come every 2 micro-batches: after 1, 3, …
         0F0 0F1 0F2 0B0 0B1 0U1 0B2 => micro-batch 2 has no update: updates come every 2 micro-batches, and there are 3
         0F0 0B0 0U0 / 0F1 0B1 0U1 => worker 0 lacks 0U1
         0F0 0B0 0U1 / 0F1 0B1 => worker 1 lacks 0U1
         0F0 0B0 0U0 0U1 / 0U0 0F1 0B1 0U1 => worker 0 has 0U1, but no micro-batch of that update
         0F0 0B0 0U0 0U0 => worker 0 has 0U0 twice
         0F0 0F1 0B0 0B1 0U9 => worker 0 lacks 0F2",
    );
    for text in [
        "0F0 0B0 0U1 0F2 0B2 0U3\n0F1 0B1 0U1 0F3 0B3 0U3",
        // Unequal shares, and a forward pass before the update.
        "0F0 0F1 0B0 0B1 0F3 0U2 0B3 0F4 0B4 0U5\n0F2 0B2 0U2 0F5 0B5 0U5",
        // The input gradient of a later micro-batch changes no weights.
        "0F0 0F1 0I0 0I1 0W0 0U0 0W1 0U1",
    ] {
        assert!(text.parse::<Schedule>().is_ok(), "{text}");
    }
}

/// An update has the gradients of its micro-batches, and of no later ones.
#[test]
fn updates_are_in_order() {
    check(
        "0F0 0F1 0B0 0U1 0B1 => worker 0 has 0U1 before 0B1
         0F0 0F1 0B1 0U1 0B0 => worker 0 has 0U1 before 0B0
         0F0 0F1 0B0 0B1 0U0 0U1 => worker 0 has 0B1 before 0U0
         0F0 0F1 0I0 0I1 0W0 0W1 0U0 0U1 => worker 0 has 0W1 before 0U0
         0F0 0F1 0B0 0B1 0U1 0U0 => worker 0 has 0B1 before 0U0
         0F0 0B0 0U1 0F1 0B1 0U0 => worker 0 has 0U1 before 0U0",
    );
}

#[test]
fn replicas_that_wait_for_each_other_at_updates_are_named() {
    check(
        "0F0 1F0 1B0 0B0 0U1 1U1 / 0F1 1F1 1B1 0B1 1U1 0U1 => \
         deadlock: worker 0 at 0U1 waits for 1U1; worker 1 at 1U1 waits for 0U1",
    );
}

/// In the last two cases, the list is too short for its numbers.
#[test]
fn nothing_is_listed_twice() {
    check(
        "0F0 0F0 => worker 0 has 0F0 twice
         0F0 0B0 / 1F0 1B0 1B0 => worker 1 has 1B0 twice
         0F0 0I0 0W0 0W0 => worker 0 has 0W0 twice
         0F0 0B0 0U0 0U0 => worker 0 has 0U0 twice
         0F0 0F9 0F0 => worker 0 has 0F0 twice
         0F0 0F9 / 0F0 => worker 1 has 0F0, which belongs to worker 0",
    );
}

#[test]
fn nothing_is_missing() {
    check(
        "0F0 0F2 => worker 0 lacks 0F1
         0F0 0F1 / 1F0 => worker 1 lacks 1F1
         0F0 0F1 / 1F1 => worker 1 lacks 1F0
         0F0 0F1 0B0 => worker 0 lacks 0B1
         0F0 0B0 / 1F0 => worker 1 lacks 1B0
         0B0 => worker 0 lacks 0F0
         0F0 0I0 => worker 0 lacks 0W0
         0F0 0W0 => worker 0 lacks 0I0
         0F0 0F1 0I0 0W0 => worker 0 lacks 0I1
         0F0 0U0 => worker 0 lacks 0B0
         0F0 0F1 0B0 0U0 0B1 => worker 0 lacks 0U1
         0F0 0F1 0B0 0B1 0U1 / 1F0 1B0 1U0 1F1 1B1 1U1 => worker 0 lacks 0U0
         0F0 0B0 0U0 / 1F0 1B0 => worker 1 lacks 1U0
         0F0 0F1 0F2 / 1F0 1B0 1F2 1B2 => worker 0 lacks 0B0",
    );
    let enormous = Action::forward(0, usize::MAX);
    let (worker, action) = (0, Action::forward(0, 0));
    let missing = ScheduleError::Missing { worker, action };
    assert_eq!(Schedule::new(vec![vec![enormous]]), Err(missing));
}

#[test]
fn a_backward_pass_is_whole_or_in_halves() {
    check(
        "0F0 0B0 0I0 0W0 => worker 0 has 0I0, though its backward pass is listed as a whole, too
         0F0 0B0 0W0 => worker 0 has 0W0, though its backward pass is listed as a whole, too",
    );
}

#[test]
fn each_pass_is_in_its_place() {
    check(
        "0B0 0F0 => worker 0 has 0B0 before 0F0
         0F0 0B0 0B1 0F1 => worker 0 has 0B1 before 0F1
         0I0 0F0 0W0 => worker 0 has 0I0 before 0F0
         0F0 0W0 0I0 => worker 0 has 0W0 before 0I0
         0F0 0U0 0B0 => worker 0 has 0U0 before 0B0
         0F0 0I0 0U0 0W0 => worker 0 has 0U0 before 0W0",
    );
}

#[test]
fn micro_batches_need_not_ascend() {
    for text in ["0F1 0F0", "0F0 0F1 0B1 0B0", "0F1 0F0\n1F1 1F0"] {
        assert!(text.parse::<Schedule>().is_ok(), "{text}");
    }
}

#[test]
fn workers_that_wait_for_each_other_or_themselves_are_named() {
    check(
        "0F0 0B0 0F1 0B1 / 1F0 1F1 1B0 1B1 => \
         deadlock: worker 0 at 0B0 waits for 1B0; worker 1 at 1F1 waits for 0F1
         0F0 0I0 0W0 0F1 0I1 0W1 / 1F0 1F1 1I0 1W0 1I1 1W1 => \
         deadlock: worker 0 at 0I0 waits for 1I0; worker 1 at 1F1 waits for 0F1
         1F0 0F0 => deadlock: worker 0 at 1F0 waits for 0F0
         0F0 / 2F0 1F0 => deadlock: worker 1 at 2F0 waits for 1F0",
    );
}

#[test]
fn a_large_deadlock_names_the_first_workers() {
    // Each worker waits for the one before, the first one for itself.
    let lines: Vec<_> = (2..12).map(|stage| format!("{stage}F0")).collect();
    let text = format!("1F0 0F0\n{}", lines.join("\n"));
    let message = text.parse::<Schedule>().unwrap_err().to_string();
    assert!(message.starts_with("deadlock: worker 0 at 1F0 waits for 0F0; worker 1 at 2F0"));
    let end = "worker 7 at 8F0 waits for 7F0; and 3 more";
    assert!(message.ends_with(end), "{message}");
}

#[test]
fn words_are_actions() {
    let reason = "write a stage, F, B, I, W or U, and a micro-batch, such as 2F3";
    check_text("0F0 0X0", &format!("`0X0` is not an action: {reason}"));
    let parse_error = ScheduleError::Parse("0X0".parse::<Action>().unwrap_err());
    assert_eq!("0X0".parse::<Schedule>(), Err(parse_error));
}

#[test]
fn schedulers_refuse_what_they_cannot_do() {
    let check = |scheduler: &dyn Scheduler, stages, micro_batches, expected: &str| {
        let error = scheduler.schedule(stages, micro_batches).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    for scheduler in schedulers() {
        check(&scheduler, 0, 4, "a schedule needs at least one stage");
        let message = "a schedule needs at least one micro-batch";
        check(&scheduler, 4, 0, message);
    }
    let message = "an interleaved schedule needs at least one chunk a worker";
    check(&Interleaved { chunks: 0 }, 4, 4, message);
    let message = "replicas are given for 3 stages, but there are 2";
    check(&PipeDream::new(vec![1, 2, 1]), 2, 4, message);
    check(&RoundRobin::new(vec![1, 2, 1]), 2, 4, message);
    let message =
        "stage 1 has 3 replicas, but an update has 2 micro-batches: each replica needs one";
    check(
        &PipeDream::new(vec![1, 3]).with_update_every(2),
        2,
        4,
        message,
    );
    let message = "8 micro-batches cannot be divided into updates of 3";
    check(&PipeDream::new(vec![1, 3]), 2, 8, message);
    let message = "4 micro-batches cannot be divided into updates of 0";
    check(&PipeDream::default().with_update_every(0), 2, 4, message);
    let message = "stage 1 has 0 replicas, but needs at least one";
    check(&RoundRobin::new(vec![1, 0]), 2, 4, message);
    check(
        &DataParallel::equal(GPipe, 2),
        0,
        4,
        "a schedule needs at least one stage",
    );
    let message = "stage 0 has 0 replicas, but needs at least one";
    check(&DataParallel::equal(GPipe, 0), 2, 4, message);
    let message = "replica 1 has a share of 0, but needs at least 1";
    let shares = vec![2, 0, 1];
    check(
        &DataParallel {
            scheduler: GPipe,
            shares,
        },
        2,
        4,
        message,
    );
}

fn limits(activations: impl Into<Option<usize>>, versions: impl Into<Option<usize>>) -> Limits {
    Limits {
        activations: activations.into(),
        weight_versions: versions.into(),
    }
}

#[test]
fn workers_stay_within_limits() {
    let check = |schedule: &Schedule, limits, expected: &str| {
        let error = schedule.check(limits).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    let one_forward = OneForwardOneBackward.schedule(3, 8).unwrap();
    assert_eq!(one_forward.check(limits(3, None)), Ok(()));
    let message = "worker 0 at 0F2 holds 3 micro-batches, but may hold 2";
    check(&one_forward, limits(2, None), message);
    let halves = ZeroBubbleH1.schedule(3, 8).unwrap();
    check(&halves, limits(2, None), message);
    let chunks = Interleaved { chunks: 2 }.schedule(4, 4).unwrap();
    let message = "worker 0 at 0F2 holds 5 micro-batches, but may hold 4";
    check(&chunks, limits(4, None), message);
    let pipedream = PipeDream::default().schedule(3, 8).unwrap();
    assert_eq!(pipedream.check(limits(None, 3)), Ok(()));
    let message = "worker 0 at 0U1 keeps 3 versions of its weights, but may keep 2";
    check(&pipedream, limits(None, 2), message);

    for unlimited in [Limits::default(), limits(None, 1)] {
        assert_eq!(GPipe.schedule(3, 8).unwrap().check(unlimited), Ok(()));
    }
    let inference = Schedule::inference(3, 8).unwrap();
    assert_eq!(inference.check(limits(0, None)), Ok(()));
}

#[test]
fn stages_cannot_use_later_weights() {
    // The first stage has seen micro-batch 0 before it runs 1; the second one has not.
    let text = "0F0 0B0 0U0 0F1 0B1 0U1\n1F0 1B0 1F1 1U0 1B1 1U1";
    let schedule: Schedule = text.parse().unwrap();
    assert_eq!(
        schedule.weight_versions(WeightPolicy::Stashing),
        Ok(vec![1, 2])
    );
    let expected = "worker 1 at 1F1 needs version 1 of its weights, which the first stage used, \
                    but has only reached version 0";
    let error = schedule
        .weight_versions(WeightPolicy::VerticalSync)
        .unwrap_err();
    assert_eq!(error.to_string(), expected);
}

/// The workers that get stuck, and where, found by trying every worker repeatedly.
fn stuck(lists: &[Vec<Action>], needs: impl Fn(Action) -> Vec<Action>) -> Vec<(usize, Action)> {
    let mut done = Vec::new();
    let mut next = vec![0; lists.len()];
    loop {
        // An update is run by all that have it, together.
        let together = |action: &Action| {
            let workers = 0..lists.len();
            workers
                .filter(|&worker| lists[worker].contains(action))
                .collect::<Vec<_>>()
        };
        let ready = (0..lists.len()).find(|&worker| {
            let action = lists[worker].get(next[worker]);
            action.is_some_and(|a| {
                let mut workers = together(a).into_iter();
                needs(*a).iter().all(|need| done.contains(need))
                    && workers.all(|worker| lists[worker].get(next[worker]) == Some(a))
            })
        });
        let Some(worker) = ready else { break };
        let action = lists[worker][next[worker]];
        done.push(action);
        together(&action)
            .into_iter()
            .for_each(|worker| next[worker] += 1);
    }
    let stuck = lists.iter().zip(&next).enumerate();
    let stuck = stuck.filter_map(|(worker, (list, &next))| Some((worker, *list.get(next)?)));
    stuck.collect()
}

proptest! {
    /// Swaps actions of a worker: what can still run is accepted, all else is refused, with every worker
    /// that is stuck and where.
    #[test]
    fn permuted_orders_are_refused_if_they_cannot_run(
        draft in any_draft(), worker in 0..4_usize, swaps in prop::collection::vec((0..99_usize, 0..99_usize), 1..4),
    ) {
        let mut lists = draft.lists();
        let worker = worker % lists.len();
        let list = &mut lists[worker];
        for (a, b) in swaps {
            let length = list.len();
            list.swap(a % length, b % length);
        }
        let stuck = stuck(&lists, |action| draft.needs(action));
        match Schedule::new(lists.clone()) {
            Ok(_) => prop_assert_eq!(stuck, vec![]),
            Err(ScheduleError::Deadlock { waiting }) => {
                let found: Vec<_> = waiting.iter().map(|w| (w.worker, w.action)).collect();
                prop_assert_eq!(found, stuck);
                for &Waiting { action, needs, .. } in &waiting {
                    // At an update it waits for where another replica is stuck.
                    let other = waiting.iter().find(|other| other.action == needs);
                    let replicas = &draft.placement[action.stage];
                    let is_replica = other.is_some_and(|other| replicas.contains(&other.worker));
                    let is_needed = draft.needs(action).contains(&needs);
                    prop_assert!(is_needed || action.pass == Pass::Update && is_replica);
                }
            }
            Err(ScheduleError::TooEarly { worker, action, needs }) => {
                let place = |a: Action| lists[worker].iter().position(|&b| a == b).unwrap();
                prop_assert!(place(action) < place(needs));
                prop_assert!(draft.needs(action).contains(&needs));
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn a_doubled_action_is_noticed(draft in any_draft(), from in 0..99_usize, to in 0..99_usize) {
        let mut lists = draft.lists();
        let order = draft.order();
        let action = order[from % order.len()];
        let workers = lists.len();
        let list = &mut lists[to % workers];
        list.insert(to % (list.len() + 1), action);
        prop_assert!(Schedule::new(lists).is_err());
    }

    #[test]
    fn a_dropped_action_is_noticed(draft in any_draft(), which in 0..99_usize) {
        let order = draft.order();
        let dropped = order[which % order.len()];
        let mut lists = draft.lists();
        lists[draft.workers(dropped)[0]].retain(|&action| action != dropped);
        // Without the first of two updates, or the last update, one stage may be a schedule, too.
        prop_assume!(dropped.pass != Pass::Update || draft.placement.concat().len() > 1);
        // Without the last action of a stage, a micro-batch or a kind, the rest may be a schedule.
        let rest: Vec<_> = order.into_iter().filter(|&action| action != dropped).collect();
        let is_missed = rest.iter().any(|a| a.stage == dropped.stage)
            && rest.iter().any(|a| a.micro_batch == dropped.micro_batch)
            && (rest.iter().any(|a| a.pass == dropped.pass) || draft.split[0].len() * draft.split.len() > 1);
        prop_assert!(!is_missed || Schedule::new(lists).is_err());
    }
}
