//! Orders of schedulers, compared with published ones, closed forms and bounds.

use crate::common::{any_schedule, schedulers};
use proptest::prelude::*;
use stovepipe_schedule::{
    Action, Costs, DataParallel, GPipe, Interleaved, Limits, OneForwardOneBackward, Pass,
    PipeDream, RoundRobin, Rule, RuleOptions, Schedule, Scheduler, VHalf, VMin,
    VOneForwardOneBackward, WeightPolicy, ZeroBubbleH1, ZeroBubbleH2, ZeroBubbleV,
};

fn check(scheduler: &dyn Scheduler, stages: usize, micro_batches: usize, expected: &str) {
    let schedule = scheduler.schedule(stages, micro_batches).unwrap();
    assert_eq!(schedule.to_string(), expected, "{scheduler:?}");
}

#[test]
fn gpipe_runs_forward_then_backward() {
    check(&GPipe, 1, 1, "0F0 0B0");
    check(&GPipe, 1, 3, "0F0 0F1 0F2 0B0 0B1 0B2");
    check(&GPipe, 3, 1, "0F0 0B0\n1F0 1B0\n2F0 2B0");
    check(&GPipe, 2, 2, "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1");
}

/// The non-interleaved schedule of the Megatron-LM paper's Figure 4, counted from 0.
const MEGATRON: &str = "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7\n\
                        1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7\n\
                        2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7\n\
                        3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7";

#[test]
fn one_forward_one_backward_is_as_published() {
    check(&OneForwardOneBackward, 4, 8, MEGATRON);
    check(&Interleaved { chunks: 1 }, 4, 8, MEGATRON);
    check(&RoundRobin::default(), 4, 8, MEGATRON);
}

#[test]
fn one_forward_one_backward_with_few_micro_batches() {
    check(&OneForwardOneBackward, 1, 2, "0F0 0B0 0F1 0B1");
    let three = "0F0 0F1 0B0 0F2 0B1 0B2\n1F0 1B0 1F1 1B1 1F2 1B2";
    check(&OneForwardOneBackward, 2, 3, three);
    check(&OneForwardOneBackward, 3, 1, "0F0 0B0\n1F0 1B0\n2F0 2B0");
    let two = "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n2F0 2F1 2B0 2B1\n3F0 3B0 3F1 3B1";
    check(&OneForwardOneBackward, 4, 2, two);
}

#[test]
fn interleaved_and_zero_bubble_with_few_micro_batches() {
    let interleaved = "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1";
    check(&Interleaved { chunks: 2 }, 4, 2, interleaved);
    let halves = "0F0 0F1 0I0 0W0 0I1 0W1\n1F0 1I0 1F1 1I1 1W0 1W1";
    check(&ZeroBubbleH1, 2, 2, halves);
    check(&ZeroBubbleH2, 2, 2, halves);
}

/// The warm-up of Narayanan et al. 2021, Figure 4: the first worker of four begins with four
/// micro-batches through its first chunk, four through its second, and two of the next group.
#[test]
fn interleaved_is_as_published() {
    let schedule = Interleaved { chunks: 2 }.schedule(8, 8);
    let schedule = schedule.unwrap().to_string();
    let warm_up = "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1";
    assert!(schedule.starts_with(warm_up), "{schedule}");
    let end = "0B3 4B4 4B5 4B6 4B7 0B4 0B5 0B6 0B7\n";
    assert!(schedule.contains(end), "{schedule}");
}

#[test]
fn stages_that_workers_do_not_divide() {
    let interleaved = "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1\n1F0 1F1 1B0 1B1";
    check(&Interleaved { chunks: 2 }, 3, 2, interleaved);
    check(&ZeroBubbleV, 3, 1, "0F0 0I0 0W0\n1F0 2F0 2I0 2W0 1I0 1W0");
    check(&ZeroBubbleV, 1, 2, "0F0 0F1 0I0 0W0 0I1 0W1");
}

/// The rows of a schedule on a grid of clock cycles, as in the documentation.
fn picture(schedule: &Schedule) -> Vec<Vec<String>> {
    let has_chunks = schedule.workers().len() < schedule.stages();
    let cell = |text: &str| match text.parse::<Action>() {
        Ok(_) if has_chunks => text.to_owned(),
        Ok(action) => format!("{}{}", action.pass.letter(), action.micro_batch),
        Err(_) => "·".to_owned(),
    };
    let csv = schedule.to_csv();
    let rows = csv.lines().map(|row| row.split(',').map(cell).collect());
    rows.collect()
}

/// The rows of the picture in a source file's documentation, without clock and names.
fn documented(source: &str, name: &str) -> Vec<Vec<String>> {
    let lines = source.lines().filter_map(|line| line.strip_prefix("/// "));
    let rows = lines.filter_map(|line| line.strip_prefix(name));
    let words = |row: &str| row.split_whitespace().skip(1).map(str::to_owned).collect();
    rows.map(words).collect()
}

#[test]
fn the_pictures_in_the_documentation_are_right() {
    let check = |scheduler: &dyn Scheduler, stages, source: &str, name: &str| {
        let drawn = picture(&scheduler.schedule(stages, 4).unwrap());
        assert_eq!(documented(source, name), drawn, "{scheduler:?}");
    };
    let source = include_str!("../../src/schedulers/gpipe.rs");
    check(&GPipe, 3, source, "stage");
    let source = include_str!("../../src/schedulers/one_forward_one_backward.rs");
    check(&OneForwardOneBackward, 3, source, "stage");
    let source = include_str!("../../src/schedulers/interleaved.rs");
    check(&Interleaved { chunks: 2 }, 4, source, "worker");
    let source = include_str!("../../src/schedulers/zero_bubble.rs");
    check(&ZeroBubbleH1, 3, source, "stage");
}

#[test]
fn names() {
    let schedulers = schedulers();
    let mut names: Vec<_> = schedulers.iter().map(Scheduler::name).collect();
    names.dedup(); // interleaved with one to four chunks
    let expected = "GPipe, 1F1B, interleaved 1F1B, ZB-H1, ZB-H2, ZB-V, V-Min, V-Half, V-1F1B, PipeDream, 1F1B-RR";
    assert_eq!(names.join(", "), expected);
}

#[test]
fn rules_have_names() {
    for rule in Rule::ALL {
        assert_eq!(rule.to_string().parse(), Ok(rule));
        let json = serde_json::to_string(&rule).unwrap();
        assert_eq!(json, format!("\"{rule}\""));
        assert_eq!(serde_json::from_str::<Rule>(&json).unwrap(), rule);
    }
    let names = Rule::ALL.map(Rule::name).join(", ");
    for name in "gpipe 1f1b interleaved zb-h1 zb-h2 zb-v v-min v-half v-1f1b pipedream".split(' ') {
        assert!(name.parse::<Rule>().is_ok(), "{name}");
    }
    assert_eq!("PipeDream-Flush".parse(), Ok(Rule::OneForwardOneBackward));
    let message = format!("`zb` is not a schedule: use {names}");
    assert_eq!("zb".parse::<Rule>().unwrap_err().to_string(), message);
    let error = serde_json::from_str::<Rule>("\"zb\"").unwrap_err();
    assert!(error.to_string().contains("`zb`"));
}

/// What a rule says of itself is what its schedules show.
#[test]
fn rules_know_their_schedules() {
    for rule in Rule::ALL {
        let schedule = |chunks, replicas: &[usize]| {
            let replicas = replicas.to_vec();
            let scheduler = rule.scheduler(&RuleOptions {
                chunks,
                replicas,
                update_every: None,
            });
            scheduler.schedule(4, 8).unwrap()
        };
        let plain = schedule(2, &[]);
        assert_eq!(plain.is_asynchronous(), !rule.is_synchronous(), "{rule}");
        assert_eq!(plain != schedule(4, &[]), rule.takes_chunks(), "{rule}");
        let replicated = schedule(2, &[2, 1, 1, 1]);
        assert_eq!(plain != replicated, rule.takes_replicas(), "{rule}");
    }
    assert!(Rule::synchronous().all(|rule| rule != Rule::PipeDream));
}

#[test]
fn stages_for_workers() {
    assert_eq!(Interleaved { chunks: 3 }.stages(2), 6);
    assert_eq!(ZeroBubbleV.stages(3), 6);
    assert_eq!(PipeDream::new(vec![2, 1]).stages(3), 2);
    assert_eq!(PipeDream::default().stages(3), 3);
    assert_eq!(ZeroBubbleV.stages(usize::MAX), usize::MAX);
    // Without updates, replicas that have no micro-batch are left out.
    let idle = RoundRobin::new(vec![3, 1]).schedule(2, 2).unwrap();
    assert_eq!(idle.workers().len(), 3);
}

#[test]
fn large_schedules_are_checked_quickly() {
    for scheduler in schedulers() {
        let schedule = scheduler.schedule(64, 1024).unwrap();
        assert!(schedule.workers().iter().flatten().count() >= 64 * 1024 * 2);
    }
}

/// The most a worker holds after an action: activations, contexts of weight gradients, and both together.
fn most(actions: &[Action]) -> [usize; 3] {
    let (mut held, mut contexts, mut most) = (0, 0, [0; 3]);
    for action in actions {
        match action.pass {
            Pass::Forward => held += 1,
            Pass::Backward => held -= 1,
            Pass::InputGradient => (held, contexts) = (held - 1, contexts + 1),
            Pass::WeightGradient => contexts -= 1,
            Pass::Update => {}
        }
        let now = [held, contexts, held + contexts];
        most = std::array::from_fn(|i| most[i].max(now[i]));
    }
    most
}

/// Every number of stages and micro-batches up to here.
fn every_size() -> impl Iterator<Item = (usize, usize)> {
    (1..=9).flat_map(|stages| (1..=20).map(move |micro_batches| (stages, micro_batches)))
}

#[test]
fn every_size_is_a_schedule_that_survives_being_written() {
    for scheduler in schedulers() {
        for (stages, micro_batches) in every_size() {
            let schedule = scheduler.schedule(stages, micro_batches).unwrap();
            let message = format!("{scheduler:?} {stages} {micro_batches}");
            let size = (schedule.stages(), schedule.micro_batches());
            assert_eq!(size, (stages, micro_batches), "{message}");
            let is_training = schedule.is_training();
            assert!(is_training && schedule.is_ascending(), "{message}");
            let json = serde_json::to_string(&schedule).unwrap();
            for read in [
                Schedule::from_csv(&schedule.to_csv()).unwrap(),
                schedule.to_string().parse().unwrap(),
                serde_json::from_str(&json).unwrap(),
            ] {
                assert_eq!(read, schedule, "{message}");
            }
        }
    }
}

/// What each worker holds at most under a rule with a stage a worker: activations, contexts, both.
fn check_memory(scheduler: &dyn Scheduler, bound: impl Fn(usize, usize) -> [usize; 3]) {
    for (p, m) in every_size() {
        let schedule = scheduler.schedule(p, m).unwrap();
        for (worker, actions) in schedule.workers().iter().enumerate() {
            let message = format!("{scheduler:?} p {p} m {m} worker {worker}");
            let [activations, contexts, both] = bound(p, worker);
            let expected = [activations, contexts, both].map(|most| most.min(m));
            assert_eq!(most(actions), expected, "{message}");
            let peaks = [schedule.peak_activations(), schedule.peak_weight_contexts()];
            let peaks = peaks.map(|peaks| peaks[worker]);
            assert_eq!(peaks, [expected[0] as f64, expected[1] as f64], "{message}");
            assert_eq!(schedule.peak_in_flight()[worker], expected[0], "{message}");
        }
    }
}

/// The table of schedules and their memory. The table does not count the context between the two halves
/// of a backward pass.
#[test]
fn memory_is_as_published() {
    check_memory(&GPipe, |_, _| [usize::MAX, 0, usize::MAX]);
    check_memory(&OneForwardOneBackward, |p, i| [p - i, 0, p - i]);
    check_memory(&ZeroBubbleH1, |p, i| [p - i, i + 1, p]);
    check_memory(&ZeroBubbleH2, |p, i| {
        [2 * (p - i) - 1, 2 * i + 1, 2 * p - 1]
    });
}

#[test]
fn zero_bubble_v_holds_as_much_on_every_worker() {
    for (p, m) in every_size() {
        let schedule = ZeroBubbleV.schedule(2 * p, m).unwrap();
        for (worker, actions) in schedule.workers().iter().enumerate() {
            let [activations, contexts, both] = most(actions);
            let message = format!("p {p} m {m} worker {worker}: {activations} {contexts} {both}");
            // In halves of a micro-batch.
            assert!(activations <= 2 * p.min(m), "{message}");
            assert!(contexts <= 2 * p.min(m), "{message}");
            assert!(both <= 2 * p.min(m), "{message}");
            if m >= 2 * p - 1 {
                assert_eq!(activations, 2 * p, "{message}");
            }
        }
        let odd = ZeroBubbleV.schedule(2 * p - 1, m).unwrap();
        let held = odd.workers().iter().map(|actions| most(actions)[2]);
        assert!(held.max().unwrap() <= 2 * p.min(m));
    }
}

/// The published peaks, in micro-batches: what a forward pass leaves is held until the gradients of weights.
#[test]
fn v_schedules_hold_as_little_as_published() {
    let rules: [&dyn Scheduler; 3] = [&VMin, &VHalf, &VOneForwardOneBackward];
    let peaks = |p: usize| [(p + 4) / 3, (p + 2) / 2, (2 * p + 1).div_ceil(3)];
    for (index, scheduler) in rules.into_iter().enumerate() {
        for p in 1..=32 {
            for m in [1, 2, p, 2 * p, 2 * p + 7, 128] {
                let held = |stages: usize| {
                    let schedule = scheduler.schedule(stages, m).unwrap();
                    assert!(schedule.is_ascending(), "{scheduler:?} {stages} {m}");
                    let workers = schedule.workers().iter();
                    workers.map(|actions| most(actions)[2]).max().unwrap()
                };
                let (even, odd) = (held(2 * p), held(2 * p - 1));
                let allowed = 2 * peaks(p)[index].min(m);
                let message = format!("{scheduler:?} p {p} m {m}: {even} {odd} of {allowed}");
                assert!(even <= allowed && odd <= allowed, "{message}");
                assert!(m < 2 * p || even == allowed, "{message}");
            }
        }
    }
}

#[test]
fn interleaved_holds_a_little_more_than_one_forward_one_backward() {
    for chunks in 1..=4 {
        for (stages, m) in every_size() {
            let schedule = Interleaved { chunks }.schedule(stages, m).unwrap();
            let p = schedule.workers().len();
            // The largest group of micro-batches.
            let group = m.div_ceil((m / p).max(1));
            for (i, actions) in schedule.workers().iter().enumerate() {
                let own = (0..stages).filter(|stage| stage % p == i).count();
                let warm_up = match stages.div_ceil(p) {
                    1 => p - 1 - i,
                    chunks => 2 * (p - 1 - i) + (chunks - 1) * group,
                };
                let [held, contexts, _] = most(actions);
                let message = format!("chunks {chunks} stages {stages} m {m} worker {i}: {held}");
                assert!(held <= (warm_up + 1).min(own * m), "{message}");
                assert_eq!(contexts, 0);
                assert_eq!(schedule.peak_activations()[i], held as f64 / own as f64);
                if m % p == 0 && stages % p == 0 {
                    let published = p as f64 + (p - 1) as f64 / own as f64;
                    assert!(held as f64 / own as f64 <= published, "{message}");
                }
            }
        }
    }
}

#[test]
fn shares_are_dealt_out_as_documented() {
    let source = include_str!("../../src/schedulers/data_parallel.rs");
    let rows = source
        .lines()
        .filter_map(|line| line.strip_prefix("/// | "));
    let numbers = |text: &str| -> Vec<usize> {
        let words = text
            .split(|c: char| !c.is_ascii_digit())
            .filter(|word| !word.is_empty());
        words.map(|word| word.parse().unwrap()).collect()
    };
    let rows: Vec<_> = (rows.skip(1))
        .map(|row| row.split_once(" | ").unwrap())
        .map(|(shares, turns)| (numbers(shares), numbers(turns)))
        .collect();
    assert_eq!(rows.len(), 4);
    for (shares, turns) in rows {
        let scheduler = DataParallel {
            scheduler: GPipe,
            shares,
        };
        assert_eq!(
            scheduler.turns().take(turns.len()).collect::<Vec<_>>(),
            turns
        );
    }
}

#[test]
fn enormous_shares_do_not_overflow() {
    let shares = vec![usize::MAX; 2];
    let scheduler = DataParallel {
        scheduler: GPipe,
        shares,
    };
    assert!(scheduler.turns().take(9).eq([0, 1, 0, 1, 0, 1, 0, 1, 0]));
}

/// A number of replicas for each stage.
fn any_replicas() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1..=4_usize, 1..=6)
}

proptest! {
    #[test]
    fn at_any_time_replicas_have_their_shares(
        shares in prop::collection::vec(prop_oneof![1..=5_usize, 1..=60_usize], 1..=8),
    ) {
        let all: usize = shares.iter().sum();
        let scheduler = DataParallel { scheduler: GPipe, shares: shares.clone() };
        let mut taken = vec![0; shares.len()];
        for (before, replica) in scheduler.turns().take(2 * all).enumerate() {
            taken[replica] += 1;
            for (taken, share) in taken.iter().zip(&shares) {
                let due = ((before + 1) * share) as f64 / all as f64;
                prop_assert!((*taken as f64 - due).abs() < 1.0, "{taken} of {due}");
            }
            if before + 1 == all {
                prop_assert_eq!(&taken, &shares);
            }
        }
    }

    /// A replica's schedule is that of a pipeline which has its micro-batches alone.
    #[test]
    fn replicas_of_pipelines_run_as_pipelines(
        shares in prop::collection::vec(1..=4_usize, 1..=4), stages in 1..=4_usize, m in 1..=12_usize,
    ) {
        for rule in Rule::synchronous() {
            let scheduler = DataParallel { scheduler: rule, shares: shares.clone() };
            let schedule = scheduler.schedule(stages, m).unwrap();
            prop_assert_eq!((schedule.stages(), schedule.micro_batches()), (stages, m));
            prop_assert!(schedule.is_ascending() && schedule.is_training());
            let mut own = vec![Vec::new(); shares.len()];
            for (micro_batch, replica) in scheduler.turns().take(m).enumerate() {
                own[replica].push(micro_batch);
            }
            let mut workers = schedule.workers().iter();
            for own in own.iter().filter(|own| !own.is_empty()) {
                let alone = rule.schedule(stages, own.len()).unwrap();
                for actions in alone.workers() {
                    let expected = actions.iter().map(|action| (action.stage, action.pass, own[action.micro_batch]));
                    let found = workers.next().unwrap().iter();
                    prop_assert!(found.map(|a| (a.stage, a.pass, a.micro_batch)).eq(expected));
                }
            }
            prop_assert!(workers.next().is_none());
            for (worker, action) in schedule.workers().iter().enumerate().flat_map(|(worker, all)| all.iter().map(move |a| (worker, a))) {
                prop_assert_eq!(schedule.worker_of(action.stage, action.micro_batch), worker);
            }
            if shares.iter().all(|&share| share == 1) {
                prop_assert!(scheduler.turns().take(m).eq((0..m).map(|i| i % shares.len())));
            }
        }
    }

    #[test]
    fn replicas_hold_their_warm_up(replicas in any_replicas(), m in 1..=20_usize) {
        let stages = replicas.len();
        let m = m.next_multiple_of(*replicas.iter().max().unwrap());
        let pipedream = PipeDream::new(replicas.clone()).schedule(stages, m).unwrap();
        let flushed = RoundRobin::new(replicas.clone()).schedule(stages, m).unwrap();
        let mut worker = 0;
        for (stage, &count) in replicas.iter().enumerate() {
            let expected: Vec<_> = (worker..worker + count).collect();
            prop_assert_eq!(pipedream.replicas(stage), &expected[..]);
            let from_here: usize = replicas[stage..].iter().sum();
            for replica in 0..count {
                let own = (0..m).filter(|i| i % count == replica).count();
                let most_held = own.min(from_here.div_ceil(count));
                for schedule in [&pipedream, &flushed] {
                    let [held, ..] = most(&schedule.workers()[worker]);
                    prop_assert_eq!(held, most_held);
                }
                // Warm-up and one more. All micro-batches of the warm-up use the first version.
                let versions = pipedream.weight_versions(WeightPolicy::Stashing).unwrap()[worker];
                prop_assert!(versions <= from_here.div_ceil(count));
                if m >= 2 * from_here && replicas.iter().all(|&other| other == count) {
                    prop_assert_eq!(versions, from_here.div_ceil(count));
                }
                prop_assert_eq!(flushed.weight_versions(WeightPolicy::VerticalSync).unwrap()[worker], 1);
                worker += 1;
            }
        }
        prop_assert_eq!(worker, pipedream.workers().len());
        let most = pipedream.weight_versions(WeightPolicy::Stashing).unwrap().into_iter().max().unwrap();
        let limit = |most| Limits { weight_versions: Some(most), ..Limits::default() };
        prop_assert!(pipedream.check(limit(most)).is_ok());
        prop_assert!(pipedream.check(limit(most - 1)).is_err());
        prop_assert!(pipedream.is_asynchronous() && !flushed.is_asynchronous());
    }

    #[test]
    fn limits_are_the_peaks(schedule in any_schedule(6, 12)) {
        let held = schedule.workers().iter().map(|actions| most(actions)[0]);
        let peak = held.max().unwrap();
        let limit = |most| Limits { activations: Some(most), ..Limits::default() };
        prop_assert!(schedule.check(limit(peak)).is_ok());
        prop_assert!(schedule.check(limit(peak - 1)).is_err());
    }

    #[test]
    fn equal_stages_have_a_known_bubble(p in 1..=12_usize, m in 1..=24_usize) {
        let costs = Costs::uniform(p, 1.0, 1.0, 1.0);
        let expected = (p - 1) as f64 / (m + p - 1) as f64;
        for schedule in [GPipe.schedule(p, m), OneForwardOneBackward.schedule(p, m)] {
            let schedule = schedule.unwrap();
            let simulation = schedule.simulate(&costs).unwrap();
            prop_assert!((simulation.bubble() - expected).abs() < 1e-12);
            prop_assert!((simulation.timeline().bubble() - expected).abs() < 1e-12);
        }
        // No worker waits between its first and its last forward pass.
        let inference = Schedule::inference(p, m).unwrap();
        let simulation = inference.simulate(&costs).unwrap();
        prop_assert_eq!(simulation.bubble(), 0.0);
        prop_assert!((simulation.timeline().bubble() - expected).abs() < 1e-12);
    }
}
