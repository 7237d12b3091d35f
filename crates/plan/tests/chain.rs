//! The cut of a chain against every cut there is.
#![allow(clippy::unwrap_used, missing_docs)]

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

fn stage_costs(costs: &[f64], cut: &[usize]) -> Vec<f64> {
    let mut rest = costs;
    cut.iter()
        .map(|&count| {
            let (own, others) = rest.split_at(count);
            rest = others;
            own.iter().rev().sum() // as the program adds them, so that equal is equal
        })
        .collect()
}

fn slowest(costs: &[f64], cut: &[usize]) -> f64 {
    stage_costs(costs, cut).into_iter().fold(0.0, f64::max)
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
        assert_eq!(
            slowest(&costs, &cut),
            slowest(&costs, &expected),
            "{costs:?}"
        );
        let mut sizes = (cut.clone(), expected.clone());
        sizes.0.sort_unstable();
        sizes.1.sort_unstable();
        assert_eq!(sizes.0, sizes.1, "{costs:?}: {cut:?}");
    }
}

#[test]
fn what_cannot_be_cut_is_an_error() {
    assert_eq!(cut_chain(&[1.0], 0), Err(CutError::NoStages));
    let too_many = CutError::TooManyStages {
        stages: 3,
        layers: 2,
    };
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
    fn no_cut_is_better_where_stages_differ(
        costs in prop::collection::vec(0.0..10.0, 1..9),
        speeds in prop::collection::vec(0.1..5.0, 1..5),
    ) {
        let stages = speeds.len().min(costs.len());
        let cut = cut_chain_by(costs.len(), stages, |stage, layer| costs[layer] * speeds[stage]);
        let slowest = |cut: &[usize]| {
            let stages = stage_costs(&costs, cut).into_iter().zip(&speeds);
            stages.map(|(cost, speed)| cost * speed).fold(0.0, f64::max)
        };
        let own = slowest(&cut.unwrap());
        for other in cuts(costs.len(), stages) {
            prop_assert!(own <= slowest(&other) * (1.0 + 1e-12));
        }
    }

    #[test]
    fn no_cut_is_better(
        costs in prop::collection::vec(prop_oneof![0.0..10.0, Just(0.0), Just(1.0)], 1..10),
        stages in 1usize..6,
    ) {
        let stages = stages.min(costs.len());
        let cut = cut_chain(&costs, stages).unwrap();
        prop_assert_eq!(cut.len(), stages);
        prop_assert_eq!(cut.iter().sum::<usize>(), costs.len());
        prop_assert!(cut.iter().all(|&count| count > 0));
        let squares = |cut: &[usize]| stage_costs(&costs, cut).iter().map(|cost| cost * cost).sum::<f64>();
        let (best, own_squares) = (slowest(&costs, &cut), squares(&cut));
        for other in cuts(costs.len(), stages) {
            prop_assert!(best <= slowest(&costs, &other), "{:?} beats {:?}", other, cut);
            if slowest(&costs, &other) == best {
                prop_assert!(own_squares <= squares(&other) * (1.0 + 1e-12));
            }
        }
    }
}
