//! The cut of a chain, compared with every cut.

use proptest::prelude::*;
use stovepipe_plan::{CutError, cut_chain, cut_chain_by};

/// Every way to cut `layers` layers into `stages` stages.
fn cuts(layers: usize, stages: usize) -> Vec<Vec<usize>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    (1..=layers - (stages - 1))
        .flat_map(|first| {
            (cuts(layers - first, stages - 1).into_iter())
                .map(move |rest| [vec![first], rest].concat())
        })
        .collect()
}

/// The slowest stage, and the sum of squares as shares of it.
fn merits(cut: &[usize], cost_of: impl Fn(usize, usize) -> f64) -> (f64, f64) {
    let mut end = 0;
    let costs: Vec<f64> = (cut.iter().enumerate())
        .map(|(stage, &count)| {
            end += count;
            let layers = (end - count..end).rev(); // in the order of the crate, for equal bits
            layers.map(|layer| cost_of(stage, layer)).sum()
        })
        .collect();
    let slowest = costs.iter().copied().fold(0.0, f64::max);
    let unit = if slowest > 0.0 { slowest } else { 1.0 };
    let squares = costs.iter().map(|cost| (cost / unit).powi(2));
    (slowest, squares.sum())
}

#[test]
fn known_cuts() {
    for (costs, stages, expected) in [
        (vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, vec![4, 2]), // torchgpipe's own example
        (vec![0.0, 0.0], 2, vec![1, 1]),                     // and the other
        (vec![1.0; 6], 3, vec![2, 2, 2]),
        (vec![1.0; 7], 3, vec![2, 2, 3]),
        (vec![9.0, 1.0, 1.0, 1.0], 2, vec![1, 3]),
        (vec![1.0, 1.0, 9.0, 1.0], 4, vec![1, 1, 1, 1]),
        (vec![5.0], 1, vec![1]),
    ] {
        let cut = cut_chain(&costs, stages).unwrap();
        let [own, other] = [&cut, &expected].map(|cut| merits(cut, |_, layer| costs[layer]).0);
        assert_eq!(own, other, "{costs:?}");
        let [own, other] = [&cut, &expected].map(|cut| {
            let mut sizes = cut.clone();
            sizes.sort_unstable();
            sizes
        });
        assert_eq!(own, other, "{costs:?}: {cut:?}");
    }
}

#[test]
fn what_cannot_be_cut_is_an_error() {
    assert_eq!(cut_chain(&[1.0], 0), Err(CutError::NoStages));
    let (stages, layers) = (3, 2);
    let too_many = CutError::TooManyStages { stages, layers };
    assert_eq!(cut_chain(&[1.0, 1.0], 3), Err(too_many));
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let error = cut_chain(&[1.0, bad, 2.0], 2).unwrap_err();
        assert!(matches!(error, CutError::Cost { layer: 1, .. }), "{error}");
        assert!(error.to_string().contains("layer 1"));
    }
}

#[test]
fn large_costs_are_cut_as_small_ones_are() {
    assert_eq!(cut_chain(&[1e160; 4], 2).unwrap(), [2, 2]);
    assert_eq!(cut_chain(&[1e-200; 4], 2).unwrap(), [2, 2]);
    let error = cut_chain(&[f64::MAX; 4], 2).unwrap_err();
    assert!(matches!(error, CutError::Cost { layer: 1, .. }), "{error}");
}

proptest! {
    #[test]
    fn no_cut_is_better(
        costs in prop::collection::vec(prop_oneof![0.0..10.0, Just(0.0), Just(1.0)], 1..10),
        speeds in prop_oneof![Just(vec![1.0; 5]), prop::collection::vec(0.1..5.0, 1..6)],
        stages in 1usize..6,
    ) {
        let stages = stages.min(speeds.len()).min(costs.len());
        let cost = |stage: usize, layer: usize| costs[layer] * speeds[stage];
        let cut = cut_chain_by(costs.len(), stages, cost).unwrap();
        prop_assert_eq!(cut.len(), stages);
        prop_assert_eq!(cut.iter().sum::<usize>(), costs.len());
        prop_assert!(cut.iter().all(|&count| count > 0));
        let own = merits(&cut, cost);
        for other in cuts(costs.len(), stages) {
            let better = merits(&other, cost);
            prop_assert!(own.0 <= better.0, "{:?} beats {:?}", other, cut);
            prop_assert!(own.0 < better.0 || own.1 <= better.1 * (1.0 + 1e-12));
        }
    }
}

/// A slow search: every begin for every end of every stage.
fn slow_cut(layers: usize, stages: usize, cost: impl Fn(usize, usize) -> f64) -> Vec<usize> {
    let slowest = slow_best(layers, stages, &cost, f64::INFINITY, f64::max).0;
    let share = |cost: f64| cost / if slowest > 0.0 { slowest } else { 1.0 };
    slow_best(layers, stages, &cost, slowest, |sum, stage| {
        sum + share(stage).powi(2)
    })
    .1
}

fn slow_best(
    layers: usize,
    stages: usize,
    cost_of: impl Fn(usize, usize) -> f64,
    limit: f64,
    join: impl Fn(f64, f64) -> f64,
) -> (f64, Vec<usize>) {
    let mut best = vec![(f64::INFINITY, vec![]); layers + 1];
    best[0].0 = 0.0;
    for stage in 0..stages {
        let mut next = vec![(f64::INFINITY, vec![]); layers + 1];
        for (end, place) in next.iter_mut().enumerate() {
            let (mut cost, mut least, mut from) = (0.0, f64::INFINITY, 0);
            for begin in (0..end).rev() {
                cost += cost_of(stage, begin);
                let joined = join(best[begin].0, cost);
                if cost <= limit && joined < least {
                    (least, from) = (joined, begin);
                }
            }
            if least.is_finite() {
                *place = (least, [&best[from].1[..], &[end - from]].concat());
            }
        }
        best = next;
    }
    best.swap_remove(layers)
}

/// Checks that the cut is as good as the slow one, to the last bit where promised.
fn check(layers: usize, stages: usize, cost: impl Fn(usize, usize) -> f64) {
    let own = cut_chain_by(layers, stages, &cost).unwrap();
    assert_eq!(own.len(), stages);
    assert_eq!(own.iter().sum::<usize>(), layers);
    assert!(own.iter().all(|&count| count > 0), "{own:?}");
    let slow = slow_cut(layers, stages, &cost);
    let (own, slow) = (merits(&own, &cost), merits(&slow, &cost));
    assert_eq!(own.0, slow.0, "{layers} layers, {stages} stages");
    assert!((own.1 - slow.1).abs() <= 1e-12 * slow.1, "{own:?} {slow:?}");
}

/// Numbers without a pattern, from 0 to below 1.
fn noise(seed: usize) -> f64 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 11) as f64 / (1_u64 << 53) as f64
}

#[test]
fn a_long_chain_is_cut_as_by_trying_every_begin() {
    type Cost = fn(usize, usize) -> f64;
    let costs: [Cost; 11] = [
        |_, _| 1.0,
        |_, _| 0.0,
        |_, _| 0.1, // sums depend on where they begin
        |_, layer| noise(layer),
        |_, layer| (10.0 * noise(layer)).floor() / 10.0,
        |_, layer| if noise(layer) < 0.9 { 0.0 } else { 0.3 },
        |_, layer| if layer == 70 { 100.0 } else { 1e-14 },
        |_, layer| 10_f64.powf(20.0 * noise(layer) - 10.0),
        |stage, layer| noise(1000 * stage + layer),
        |stage, layer| noise(layer) / [1.0, 3.0, 1e6][stage % 3],
        |stage, layer| (3.0 * noise(1000 * stage + layer)).floor() * [0.1, 1e6][stage % 2],
    ];
    for cost in costs {
        let sizes = [[1, 1], [150, 1], [150, 2], [151, 7], [200, 40], [60, 59]];
        for [layers, stages] in sizes.into_iter().chain([[60, 60]]) {
            check(layers, stages, cost);
        }
    }
    check(1500, 16, |_, layer| noise(layer));
    check(1500, 16, |_, _| 0.1);
}

#[test]
fn a_very_long_chain_is_cut() {
    let cut = cut_chain(&[0.1; 10_000], 64).unwrap();
    assert!(cut.iter().all(|count| [156, 157].contains(count)));
    assert_eq!(cut.iter().sum::<usize>(), 10_000);
}

proptest! {
    #[test]
    fn any_chain_is_cut_as_by_trying_every_begin(
        costs in prop::collection::vec(
            prop_oneof![0.0..10.0, Just(0.0), Just(0.1), Just(1.0), Just(1e-15), Just(1e6)],
            1..60,
        ),
        stages in 1usize..20,
        speeds in prop::collection::vec(prop_oneof![Just(1.0), 0.1..5.0, Just(1e-9)], 20),
        own in any::<bool>(),
    ) {
        let stages = stages.min(costs.len());
        check(costs.len(), stages, |_, layer| costs[layer]);
        check(costs.len(), stages, |stage, layer| {
            let layer = if own { (layer * (stage + 1)) % costs.len() } else { layer };
            costs[layer] * speeds[stage]
        });
    }
}
