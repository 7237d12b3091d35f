//! Threads that stand for processes, and what they see together.

use std::{collections::BTreeMap, thread};

use stovepipe_comm::{Communicator, local};

use crate::models::*;

/// What each rank returns.
pub fn ranks<R: Send>(size: usize, of_rank: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
    let comms = local(size, None).unwrap();
    thread::scope(|scope| {
        let ranks: Vec<_> = (comms.into_iter())
            .map(|comm| scope.spawn(|| of_rank(comm)))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// One CPU worker for each of these processes.
pub fn devices(of_workers: &[usize]) -> Vec<NamedDevice> {
    let device = |process| format!("{process}/cpu").parse().unwrap();
    of_workers.iter().map(device).collect()
}

/// What all ranks saw together; what several saw must be equal.
pub fn joined(of_ranks: Vec<Vec<ByPath<u32>>>) -> Vec<BTreeMap<String, Vec<u32>>> {
    let mut all = vec![BTreeMap::new(); of_ranks[0].len()];
    for (rank, seen) in of_ranks.into_iter().enumerate() {
        for (part, (all, seen)) in all.iter_mut().zip(seen).enumerate() {
            for (path, bits) in seen {
                let first = all.entry(path.clone()).or_insert_with(|| bits.clone());
                assert_eq!(*first, bits, "part {part}, {path}, at rank {rank}");
            }
        }
    }
    all
}

/// Even neighbours, and neighbours in turn.
pub fn placements(workers: usize, processes: usize) -> [Vec<usize>; 2] {
    [
        (0..workers).map(|w| w * processes / workers).collect(),
        (0..workers).map(|w| w % processes).collect(),
    ]
}

/// A gradient is under the owner's name alone. Everything else is where one process has it.
#[track_caller]
pub fn assert_same(
    found: &[BTreeMap<String, Vec<u32>>],
    expected: &[BTreeMap<String, Vec<u32>>],
    what: &str,
) {
    assert_eq!(found.len(), expected.len());
    for (part, (found, expected)) in found.iter().zip(expected).enumerate() {
        for (path, bits) in expected {
            let is_gradient = part % 4 == 1;
            let is_same = match found.get(path) {
                Some(found) => found == bits,
                None => is_gradient && found.values().any(|found| found == bits),
            };
            assert!(is_same, "part {part}, {path}: {what}");
        }
        let is_known = |path| expected.contains_key(path);
        assert!(found.keys().all(is_known), "part {part}: {what}");
    }
}

/// Compares what a model does under every cut with one stage, in one process and in two to four. There
/// are at most `most` stages. Each cut with several workers has one number of processes, and one way to place workers, in turn.
pub fn assert_same_bits<L: Layer>(
    most: usize,
    build: impl Fn(usize, By, Recompute) -> PipelineBuilder<L> + Sync,
    steps: impl Fn(Pipeline<L>) -> Vec<ByPath<u32>> + Sync,
) -> Vec<ByPath<u32>> {
    let of_cut = |rule, workers, recompute| steps(build(workers, rule, recompute).build().unwrap());
    let one = of_cut(By(Rule::GPipe, 1), 1, Recompute::Never);
    let expected = joined(vec![one.clone()]);
    for (turn, (rule, workers, recompute)) in cuts(most).enumerate() {
        let what = format!("{workers} workers, {rule:?}, {recompute}");
        assert_eq!(of_cut(rule, workers, recompute.clone()), one, "{what}");
        if workers > 1 {
            let processes = 2 + turn % (workers.min(4) - 1);
            let of_workers = placements(workers, processes)[turn / 3 % 2].clone();
            let found = ranks(processes, |comm| {
                let builder = build(workers, rule, recompute.clone()).communicator(comm);
                steps(builder.devices(devices(&of_workers)).build().unwrap())
            });
            assert_same(
                &joined(found),
                &expected,
                &format!("{what} in {of_workers:?}"),
            );
        }
    }
    one
}

/// Compares two steps of a model under every cut, in one process and in several, with those in one stage;
/// returns the latter.
pub fn assert_no_cut_shows<L>(
    layers: impl Fn() -> Vec<L> + Sync,
    micro_batches: usize,
    inputs: (L::Input, L::Input),
    classes: usize,
) -> Vec<ByPath<u32>>
where
    L: Layer<Output = Tensor<2>, Side = ()>,
    L::Input: Sync,
{
    let build =
        |workers, rule, recompute| builder(layers(), workers, rule, micro_batches, recompute);
    let steps = |pipeline| two_steps(pipeline, inputs.clone(), classes);
    assert_same_bits(layers().len(), build, steps)
}
