//! Partitions of chains on one level of links, for which not every cut is tried, compared with those below
//! a second level (of a single machine), for which every cut is tried.

use crate::{common::machine, partition::states};
use proptest::prelude::*;
use stovepipe_plan::{LayerProfile, Machine, Partition, PartitionError, States, partition};

fn with_memory(levels: &[(usize, f64)], memory: Option<u64>) -> Machine {
    let mut machine = machine(levels);
    machine.devices[0].memory = memory;
    machine
}

/// The partition from the table in which every cut was tried.
fn every_cut(
    states: &States,
    level: (usize, f64),
    memory: Option<u64>,
) -> Result<Partition, PartitionError> {
    let outer = partition(states, &with_memory(&[level, (1, 1.0)], memory))?;
    Ok(*outer.stages[0].inside.clone().unwrap())
}

fn check(layers: Vec<LayerProfile>, level: (usize, f64), memory: Option<u64>) {
    let states = states(layers.clone()).unwrap();
    let quick = partition(&states, &with_memory(&[level], memory));
    let thorough = every_cut(&states, level, memory);
    // Equal to the last bit: as text, 0 and -0 differ, too.
    let [fast, slow] = [&quick, &thorough].map(|found| format!("{found:?}"));
    assert_eq!(fast, slow, "{level:?}, {memory:?}: {layers:?}");
    if level.1.is_infinite() {
        let mut free = with_memory(&[level], memory);
        free.levels.clear();
        assert_eq!(quick, partition(&states, &free));
    }
}

/// Costs of one kind: equal, 0, small numbers with equal sums, sometimes large.
fn costs(count: usize, most: u64) -> impl Strategy<Value = Vec<u64>> {
    let list = move |cost: BoxedStrategy<u64>| prop::collection::vec(cost, count);
    let few = prop_oneof![Just(0), Just(1), 0..4_u64, 0..=most];
    let rare = prop_oneof![9 => 0..=most, 1 => 0..=100 * most];
    prop_oneof![
        1 => list(Just(0).boxed()),
        1 => list(Just(most).boxed()),
        2 => list((0..2_u64).boxed()),
        2 => list((0..4_u64).boxed()),
        2 => list(few.boxed()),
        2 => list(rare.boxed()),
        1 => list((0..=most).boxed()).prop_map(|mut costs| { costs.sort_unstable(); costs }),
        1 => list((0..=most).boxed()).prop_map(|mut costs| { costs.sort_unstable(); costs.reverse(); costs }),
    ]
}

fn layers(most: usize) -> impl Strategy<Value = Vec<LayerProfile>> {
    let unit = prop_oneof![Just(1.0), Just(0.1), Just(1.0 / 3.0)];
    (1..=most, unit).prop_flat_map(|(count, unit)| {
        let lists = [(); 4].map(|()| costs(count, 20));
        lists.prop_map(move |lists| {
            let layer = |layer: usize| LayerProfile {
                forward: lists[0][layer] as f64 * unit,
                output: lists[1][layer],
                parameters: lists[2][layer],
                kept: Some(lists[3][layer]),
                ..LayerProfile::default()
            };
            (0..count).map(layer).collect()
        })
    })
}

fn bandwidth() -> impl Strategy<Value = f64> {
    prop_oneof![Just(1.0), Just(2.0), Just(f64::INFINITY), 0.01..100.0]
}

fn memory() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 1 => (0..2_000_u64).prop_map(Some)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn no_cut_is_missed(
        layers in layers(24), units in 1..=9_usize, bandwidth in bandwidth(), memory in memory(),
    ) {
        check(layers, (units, bandwidth), memory);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn nor_in_a_long_chain(
        layers in layers(200), units in 1..=6_usize, bandwidth in bandwidth(), memory in memory(),
    ) {
        check(layers, (units, bandwidth), memory);
    }
}
