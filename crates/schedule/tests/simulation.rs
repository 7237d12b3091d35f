//! Simulated steps against published figures, closed forms and bounds.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{schedulers, synchronous};
use proptest::prelude::*;
use stovepipe_schedule::{
    Action, CostError, Costs, GPipe, Interleaved, Link, OneForwardOneBackward, Pass, PipeDream,
    Recompute, RoundRobin, Schedule, Scheduler, StageCosts, StageMemory, ZeroBubbleH1,
    ZeroBubbleH2, ZeroBubbleV,
};

fn bubble(scheduler: &dyn Scheduler, micro_batches: usize, costs: &Costs) -> f64 {
    let schedule = scheduler
        .schedule(costs.stages.len(), micro_batches)
        .unwrap();
    schedule.simulate(costs).unwrap().bubble()
}

/// Qi et al., Zero Bubble Pipeline Parallelism, 2024: the profiled times of its two smaller models, in
/// milliseconds, and the bubble rates that its scheduler finds for them.
#[test]
fn bubbles_are_as_published_with_zero_bubble() {
    let check = |p, m, [forward, input, weight, latency]: [f64; 4], expected: [f64; 3]| {
        let costs = Costs::uniform(p, forward, input, weight).with_latency(latency);
        let schedulers: [&dyn Scheduler; 3] =
            [&OneForwardOneBackward, &ZeroBubbleH1, &ZeroBubbleH2];
        for (scheduler, expected) in schedulers.into_iter().zip(expected) {
            let found = bubble(scheduler, m, &costs);
            assert_eq!(
                format!("{found:.4}"),
                format!("{expected:.4}"),
                "{scheduler:?}"
            );
        }
    };
    check(
        8,
        24,
        [18.522, 18.086, 9.337, 0.601],
        [0.2431, 0.1585, 0.1083],
    );
    check(
        16,
        48,
        [11.347, 11.248, 8.132, 0.377],
        [0.2552, 0.1397, 0.0672],
    );
}

/// What is left of the step when all passes are taken away.
fn bubble_time(scheduler: &dyn Scheduler, p: usize, m: usize, [f, i, w]: [f64; 3]) -> f64 {
    let stages = scheduler.stages(p);
    let share = (stages / p) as f64;
    let costs = Costs::uniform(stages, f / share, i / share, w / share);
    let schedule = scheduler.schedule(stages, m).unwrap();
    schedule.simulate(&costs).unwrap().step_time() - m as f64 * (f + i + w)
}

proptest! {
    /// The table of bubbles, exactly: times are whole numbers.
    #[test]
    fn bubbles_have_their_closed_form(
        p in 1..10_usize, more in 0..20_usize, f in 1..20_u32, i in 1..20_u32, w in 0..20_u32,
    ) {
        // Enough micro-batches for a steady state; no half longer than what it is to hide behind.
        let (m, w) = (2 * p - 1 + more, w.min(i).min(f));
        let [f, i, w] = [f, i, w].map(f64::from);
        let before = (p - 1) as f64;
        let check = |scheduler: &dyn Scheduler, expected: f64| {
            let found = bubble_time(scheduler, p, m, [f, i, w]);
            prop_assert_eq!(found, expected, "{:?} p {} m {}", scheduler, p, m);
            Ok(())
        };
        check(&GPipe, before * (f + i + w))?;
        check(&OneForwardOneBackward, before * (f + i + w))?;
        check(&ZeroBubbleH1, before * (f + i - w))?;
        check(&ZeroBubbleH2, (before * (f + i - 2.0 * w)).max(0.0))?;
    }

    #[test]
    fn interleaving_divides_the_bubble(p in 1..8_usize, rounds in 1..5_usize, chunks in 1..5_usize) {
        let found = bubble_time(&Interleaved { chunks }, p, rounds * p, [12.0, 24.0, 24.0]);
        prop_assert_eq!(found, (p - 1) as f64 * 60.0 / chunks as f64);
    }

    #[test]
    fn zero_bubble_v_has_none(p in 1..12_usize, more in 0..20_usize) {
        let found = bubble_time(&ZeroBubbleV, p, 2 * p - 1 + more, [2.0; 3]);
        prop_assert_eq!(found, 0.0);
    }
}
