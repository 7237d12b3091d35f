//! Placements on unequal devices, compared with every order and every cut.

use proptest::prelude::*;
use stovepipe_plan::{CutError, place_chain};

/// The time of the slowest stage, least over all orders of `speeds` and all cuts.
fn best(costs: &[f64], speeds: &[f64]) -> f64 {
    if speeds.is_empty() {
        return if costs.is_empty() { 0.0 } else { f64::INFINITY };
    }
    let mut least = f64::INFINITY;
    for device in 0..speeds.len() {
        let mut others = speeds.to_vec();
        let speed = others.remove(device);
        for count in 1..=costs.len() {
            let own = costs[..count].iter().sum::<f64>() / speed;
            if own < least {
                least = least.min(own.max(best(&costs[count..], &others)));
            }
        }
    }
    least
}

fn check(costs: &[f64], speeds: &[f64]) {
    let placement = place_chain(costs, speeds).unwrap();
    assert!(placement.any_order);
    let mut devices = placement.devices.clone();
    devices.sort_unstable();
    assert_eq!(devices, (0..speeds.len()).collect::<Vec<_>>());
    let (mut rest, mut slowest) = (costs, 0.0_f64);
    for (&device, &count) in placement.devices.iter().zip(&placement.counts) {
        assert!(count > 0);
        let (own, others) = rest.split_at(count);
        slowest = slowest.max(own.iter().sum::<f64>() / speeds[device]);
        rest = others;
    }
    assert!(rest.is_empty());
    assert!((slowest - placement.time).abs() <= 1e-12 * slowest);
    let best = best(costs, speeds);
    let is_best = slowest <= best * (1.0 + 1e-12);
    assert!(is_best, "{placement:?}: {slowest} > {best}");
}

#[test]
fn the_order_follows_the_layers() {
    let placement = place_chain(&[8.0, 1.0, 1.0, 4.0], &[1.0, 2.0, 4.0]).unwrap();
    assert_eq!(placement.devices, [2, 0, 1]);
    assert_eq!(placement.counts, [1, 2, 1]);
    assert_eq!(placement.time, 2.0);
}

#[test]
fn with_too_many_orders_devices_keep_theirs() {
    let speeds: Vec<_> = (1..=30).map(f64::from).collect();
    let placement = place_chain(&[1.0; 40], &speeds).unwrap();
    assert!(!placement.any_order);
    assert_eq!(placement.devices, (0..30).collect::<Vec<_>>());
    // Thirty equal devices have a single order.
    assert!(place_chain(&[1.0; 40], &[2.0; 30]).unwrap().any_order);
}

#[test]
fn what_cannot_be_placed_is_an_error() {
    assert_eq!(place_chain(&[1.0], &[]), Err(CutError::NoStages));
    let (stages, layers) = (2, 1);
    let too_many = CutError::TooManyStages { stages, layers };
    assert_eq!(place_chain(&[1.0], &[1.0, 2.0]), Err(too_many));
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = place_chain(&[1.0, 1.0], &[1.0, bad]).unwrap_err();
        let is_speed = matches!(error, CutError::Speed { device: 1, .. });
        assert!(is_speed, "{error}");
    }
    let error = place_chain(&[1.0, 1e300], &[1.0, 1e-300]).unwrap_err();
    assert!(matches!(error, CutError::Cost { layer: 1, .. }), "{error}");
}

proptest! {
    #[test]
    fn no_placement_is_better(
        costs in prop::collection::vec(prop_oneof![0.0..10.0, Just(0.0), Just(1.0)], 1..9),
        speeds in prop::collection::vec(prop_oneof![0.1..5.0, Just(1.0), Just(2.0)], 1..6),
    ) {
        check(&costs, &speeds[..speeds.len().min(costs.len())]);
    }
}
