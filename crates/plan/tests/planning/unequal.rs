//! Cuts for devices with different profiles, compared with all cuts and with a step computed by a simple

//! loop.

use proptest::prelude::*;
use stovepipe_plan::{
    BUCKET, LayerProfile, LinkLevel, Machine, OptimizerState, PlanError, PlanRequest, Profile,
    Setup, SkipProfile,
};
use stovepipe_schedule::{GPipe, Recompute, Schedule, Scheduler, WeightPolicy};

/// Seconds of each layer, forward and backward.
type Times = Vec<(f64, f64)>;

const OUTPUT: u64 = 1000;

fn profile(times: &Times) -> Profile {
    let layer = |&(forward, backward): &(f64, f64)| LayerProfile {
        forward,
        quiet: Some(forward),
        backward,
        output: OUTPUT,
        ..LayerProfile::default()
    };
    Profile {
        samples: 1,
        input: OUTPUT,
        layers: times.iter().map(layer).collect(),
        skips: vec![],
    }
}

/// Seconds of a step of GPipe on two devices with these layers.
fn simple_step(first: &[(f64, f64)], second: &[(f64, f64)], micro_batches: usize, way: f64) -> f64 {
    let sum = |times: &[(f64, f64)]| times.iter().fold((0.0, 0.0), |s, t| (s.0 + t.0, s.1 + t.1));
    let (first, second) = (sum(first), sum(second));
    let (mut here, mut there) = (0.0_f64, 0.0_f64);
    for _ in 0..micro_batches {
        here += first.0;
        there = there.max(here + way) + second.0;
    }
    for _ in 0..micro_batches {
        there += second.1;
        here = here.max(there + way) + first.1;
    }
    here
}

fn setup<'a>(profiles: &'a [Profile], machine: &'a Machine, schedule: &'a Schedule) -> Setup<'a> {
    Setup {
        profiles,
        machine,
        devices: &[0, 1],
        schedule,
        recompute: &Recompute::Never,
        weights: WeightPolicy::default(),
        state: OptimizerState::new(2),
        bucket: BUCKET,
    }
}

fn times() -> impl Strategy<Value = (Times, Times)> {
    let layer = || (0.01..1.0_f64, 0.01..1.0_f64);
    proptest::collection::vec((layer(), layer()), 2..8)
        .prop_map(|layers| layers.into_iter().unzip())
}

proptest! {
    #[test]
    fn each_device_has_its_own_times(
        (fast, slow) in times(), micro_batches in 1..6_usize, bandwidth in 1e3..1e6_f64,
    ) {
        let profiles = [profile(&fast), profile(&slow)];
        let level = LinkLevel { workers: 2, bandwidth, latency: 0.001 };
        let machine = Machine { levels: vec![level], ..Machine::uniform(2) };
        let schedule = GPipe.schedule(2, micro_batches).unwrap();
        let setup = setup(&profiles, &machine, &schedule);
        let way = 0.001 + OUTPUT as f64 / bandwidth;
        let of_cut = |cut: usize| simple_step(&fast[..cut], &slow[cut..], micro_batches, way);
        let cuts = 1..fast.len();
        // The simple loop lets messages overlap.
        let found = setup.best_cut().unwrap();
        let own = setup.forecast(&found.balance).unwrap().step_time;
        prop_assert!(own >= of_cut(found.balance[0]) - 1e-9);
        for cut in cuts.clone() {
            let forecast = setup.forecast(&[cut, fast.len() - cut]).unwrap().step_time;
            prop_assert!(forecast >= of_cut(cut) - 1e-9);
            prop_assert!(found.step_time <= forecast * (1.0 + 1e-9));
        }
        let slowest = |cut: usize| {
            let sum = |times: &[(f64, f64)]| times.iter().map(|t| t.0 + t.1).sum::<f64>();
            sum(&fast[..cut]).max(sum(&slow[cut..]))
        };
        let balanced = setup.balanced_cut().unwrap()[0];
        let best = cuts.map(slowest).fold(f64::INFINITY, f64::min);
        prop_assert!(slowest(balanced) <= best * (1.0 + 1e-9));
    }
}

/// Without links, the times are equal.
#[test]
fn a_step_takes_as_long_as_in_a_simple_loop() {
    let fast = vec![(1.0, 2.0), (2.0, 3.0), (0.5, 4.0)];
    let slow = vec![(9.0, 1.0), (7.0, 5.0), (1.0, 0.5)];
    let profiles = [profile(&fast), profile(&slow)];
    let schedule = GPipe.schedule(2, 3).unwrap();
    let machine = Machine::uniform(2);
    let setup = setup(&profiles, &machine, &schedule);
    let step = |cut: usize| setup.forecast(&[cut, 3 - cut]).unwrap().step_time;
    for cut in [1, 2] {
        assert_eq!(step(cut), simple_step(&fast[..cut], &slow[cut..], 3, 0.0));
    }
    // The second device is fast at the last layer only.
    assert_eq!(setup.best_cut().unwrap().balance, [2, 1]);
    assert_eq!(setup.balanced_cut().unwrap(), [2, 1]);
    let uniform = Setup {
        profiles: &profiles[1..],
        ..setup
    };
    assert_eq!(uniform.balanced_cut().unwrap(), [1, 2]);
}

#[test]
fn profiles_that_do_not_fit_are_errors() {
    let times = vec![(1.0, 1.0); 3];
    let machine = Machine::uniform(2);
    let schedule = GPipe.schedule(2, 2).unwrap();
    for profiles in [
        vec![],
        vec![profile(&times); 3],
        vec![profile(&times), profile(&times[..2].to_vec())],
    ] {
        let setup = setup(&profiles, &machine, &schedule);
        let error = setup.best_cut().unwrap_err();
        let fits = matches!(error, PlanError::Nothing(_) | PlanError::Profiles { .. });
        assert!(fits, "{error}");
    }
}

#[test]
fn skips_that_lead_nowhere_are_errors() {
    let machine = Machine::uniform(2);
    let schedule = GPipe.schedule(2, 2).unwrap();
    for (from, to) in [(0, vec![3]), (3, vec![4]), (1, vec![1]), (0, vec![])] {
        let skips = vec![SkipProfile { from, to, bytes: 1 }];
        let profile = Profile {
            skips,
            ..profile(&vec![(1.0, 1.0); 3])
        };
        let planned = PlanRequest::new(&profile, &machine, 4).plan();
        let profiles = [profile];
        let cut = setup(&profiles, &machine, &schedule).best_cut();
        for error in [planned.unwrap_err(), cut.unwrap_err()] {
            assert!(matches!(error, PlanError::Skip(_)), "{error}");
            assert!(error.to_string().contains("a model of 3 layers"), "{error}");
        }
    }
}
