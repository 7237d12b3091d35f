//! Partitions, compared with PipeDream's own and with every possible one.

use std::ops::Range;

use crate::common::{edge, machine, node};
use crate::published::{ALEX_NET, VGG_16};
use proptest::prelude::*;
use stovepipe_plan::{
    LayerGraph, LayerProfile, Machine, Partition, PartitionError, Profile, ReplicatedStage, States,
    partition,
};

type Figures = (f64, f64, u64, u64);

/// The text of a graph: an input, then layers each of which takes the output of the one before it,
/// and further edges between them, by their indices.
fn text(layers: &[Figures], edges: &[(usize, usize)]) -> String {
    let mut text = node(0, "Input", (18.0, 0.0, 77_070_336, 0));
    for (place, &layer) in (1..).zip(layers) {
        text += &node(place, "Layer", layer);
        text += &edge(place - 1, place);
    }
    for (from, to) in edges {
        text += &edge(from + 1, to + 1);
    }
    text
}

/// The states of a published model. One layer (the pooling before the view) is also read by the one
/// after the next.
fn published(layers: &[Figures], pooling: usize) -> States {
    let text = text(layers, &[(pooling, pooling + 2)]);
    States::from_graph(&LayerGraph::from_text(&text).unwrap()).unwrap()
}

fn shape(partition: &Partition) -> Vec<(Range<usize>, usize)> {
    let shape = |stage: &ReplicatedStage| (stage.states.clone(), stage.replicas);
    partition.stages.iter().map(shape).collect()
}

#[test]
fn pipedreams_own_partitions() {
    let (vgg, alex) = (published(&VGG_16, 30), published(&ALEX_NET, 12));
    assert_eq!((vgg.count(), alex.count()), (40, 22));
    let two_levels = [(4, 16e9), (4, 1.25e9)];
    for (states, levels, (cut, first), time) in [
        (&vgg, &[(4, 1e9)][..], (17, 3), 0.205_520_896),
        (&vgg, &[(8, 1e9)], (24, 7), 0.103_833_170),
        (&alex, &[(4, 1e9)], (13, 3), 0.034_217_141),
        (&vgg, &two_levels, (31, 3), 0.066_582_196),
    ] {
        let own = partition(states, &machine(levels)).unwrap();
        let stages = [(0..cut, first), (cut..states.count(), 1)];
        assert_eq!(shape(&own), stages, "{levels:?}");
        assert!((own.time - time).abs() < 1e-9, "{levels:?}: {}", own.time);
    }
}

/// In the last case one layer costs nothing and may be on either side of the cut: PipeDream's optimizer
/// chooses 31 or 32 at random, and 32 was published. Both are as fast.
#[test]
fn a_layer_without_costs_may_be_on_either_side() {
    let model = BitModel::new(&VGG_16, &[(30, 32)]);
    let (inner, outer) = ((4, 16e9), 1.25e9);
    let whole = (1 << VGG_16.len()) - 1;
    let times = [31, 32].map(|cut| {
        let cut = (1 << cut) - 1;
        let first = model.in_two(0, cut, inner);
        let first = model.shared(first, (0, cut), 3, outer, inner.0);
        let second = model.in_two(cut, whole, inner);
        let transfer = 2.0 * model.output(cut) / outer;
        first.max(second).max(transfer)
    });
    assert!((times[0] - 0.066_582_196).abs() < 1e-9);
    assert_eq!(times[0], times[1]);
}

/// A model with layers as bits of a set, and its own cost model.
struct BitModel {
    layers: Vec<Figures>,
    edges: Vec<(usize, usize)>,
    memory: Option<u64>,
}

/// The groups that share a stage of the level above, and the workers behind them all.
#[derive(Clone, Copy)]
struct Around {
    groups: usize,
    behind: usize,
}

impl BitModel {
    /// A chain with further edges.
    fn new(layers: &[Figures], edges: &[(usize, usize)]) -> Self {
        let chain = (1..layers.len()).map(|layer| (layer - 1, layer));
        Self {
            layers: layers.to_vec(),
            edges: chain.chain(edges.iter().copied()).collect(),
            memory: None,
        }
    }

    fn sum(&self, set: u64, cost: impl Fn(&Figures) -> f64) -> f64 {
        let members = (0..self.layers.len()).filter(|layer| set >> layer & 1 == 1);
        members.map(|layer| cost(&self.layers[layer])).sum()
    }

    fn seconds(&self, set: u64) -> f64 {
        self.sum(set, |layer| layer.0 + layer.1) / 1000.0
    }

    fn output(&self, set: u64) -> f64 {
        let crosses = |layer: usize| {
            let mut edges = self.edges.iter();
            edges.any(|&(from, to)| from == layer && set >> to & 1 == 0)
        };
        let crossing =
            (0..self.layers.len()).filter(|&layer| set >> layer & 1 == 1 && crosses(layer));
        crossing.map(|layer| self.layers[layer].2 as f64).sum()
    }

    /// All sets of layers that include all inputs of their layers.
    fn sets(&self) -> Vec<u64> {
        let closed = |set: &u64| {
            let mut edges = self.edges.iter();
            edges.all(|(from, to)| set >> to & 1 <= set >> from & 1)
        };
        (0..1 << self.layers.len()).filter(closed).collect()
    }

    fn shared(
        &self,
        alone: f64,
        (from, to): (u64, u64),
        units: usize,
        bandwidth: f64,
        below: usize,
    ) -> f64 {
        let parameters = self.sum(to & !from, |layer| layer.3 as f64);
        let (m, all) = (units as f64, 4.0 * (units as f64 - 1.0));
        (alone + all * parameters / (bandwidth * m) / below as f64) / m
    }

    /// Seconds of layers of a chain on one machine, in one or two stages.
    fn in_two(&self, from: u64, to: u64, (workers, bandwidth): (usize, f64)) -> f64 {
        let stage = |from: u64, to: u64, units| {
            self.shared(self.seconds(to & !from), (from, to), units, bandwidth, 1)
        };
        let mut least = stage(from, to, workers);
        for cut in (0..self.layers.len()).map(|layer| (1 << layer) - 1) {
            for own in 1..workers {
                if cut & from == from && cut & to == cut && cut != from && cut != to {
                    let bytes = f64::max(self.output(cut), self.output(to));
                    let transfer = 2.0 * bytes / (bandwidth * own as f64);
                    let stages = f64::max(stage(from, cut, workers - own), stage(cut, to, own));
                    least = least.min(stages.max(transfer));
                }
            }
        }
        least
    }

    /// Seconds of the layers between two sets on a group of a level, or infinite.
    fn best(&self, levels: &[(usize, f64)], from: u64, to: u64, around: Around) -> f64 {
        match levels {
            [] => self.on_a_worker(from, to, around),
            [.., (units, _)] => self.rest(levels, (from, to), *units, true, around),
        }
    }

    fn on_a_worker(&self, from: u64, to: u64, around: Around) -> f64 {
        let versions = (around.groups + around.behind).div_ceil(around.groups) as f64;
        let bytes = versions * self.sum(to & !from, |layer| (layer.2 + layer.3) as f64);
        match self.memory {
            Some(memory) if bytes > memory as f64 => f64::INFINITY,
            _ => self.seconds(to & !from),
        }
    }

    /// The same, with `left` units for the layers beyond `from`.
    fn rest(
        &self,
        levels: &[(usize, f64)],
        (from, to): (u64, u64),
        left: usize,
        first: bool,
        around: Around,
    ) -> f64 {
        let (below, bandwidth) = (&levels[..levels.len() - 1], levels[levels.len() - 1].1);
        let workers: usize = below.iter().map(|level| level.0).product();
        let mut least = f64::INFINITY;
        for middle in self.sets() {
            if middle & from != from || middle & to != middle || middle == from {
                continue;
            }
            for units in 1..=left {
                if (middle == to) != (units == left) {
                    continue;
                }
                let within = Around {
                    groups: around.groups * units,
                    behind: around.behind + around.groups * (left - units) * workers,
                };
                let alone = self.best(below, from, middle, within);
                let joined = joined(below, first);
                let mut time = self.shared(alone, (from, middle), units, bandwidth, joined);
                if !first {
                    let bytes = f64::max(self.output(from), self.output(middle));
                    time = time.max(2.0 * bytes / (bandwidth * units as f64));
                }
                if middle != to {
                    let others = self.rest(levels, (middle, to), left - units, false, around);
                    time = time.max(others);
                }
                least = least.min(time);
            }
        }
        least
    }

    /// The time of a partition, from its shape alone. Checks that it has every layer and worker.
    fn time(
        &self,
        states: &States,
        partition: &Partition,
        levels: &[(usize, f64)],
        (from, to): (u64, u64),
        around: Around,
    ) -> f64 {
        let (below, (units, bandwidth)) = (&levels[..levels.len() - 1], levels[levels.len() - 1]);
        let workers: usize = below.iter().map(|level| level.0).product();
        let (mut done, mut left, mut slowest) = (from, units, 0.0_f64);
        for stage in &partition.stages {
            let layers = states.layers(&stage.states);
            let own = layers.iter().fold(0, |set, layer| set | 1 << layer);
            assert!(own & done == 0 && own != 0);
            left -= stage.replicas;
            let within = Around {
                groups: around.groups * stage.replicas,
                behind: around.behind + around.groups * left * workers,
            };
            let span = (done, done | own);
            let alone = match &stage.inside {
                Some(inside) => self.time(states, inside, below, span, within),
                None => self.on_a_worker(span.0, span.1, within),
            };
            let first = done == from;
            let joined = joined(below, first);
            let time = self.shared(alone, span, stage.replicas, bandwidth, joined);
            assert!(is_near(stage.time, time), "{stage:?}: {time}");
            slowest = slowest.max(time);
            if !first {
                let bytes = f64::max(self.output(span.0), self.output(span.1));
                slowest = slowest.max(2.0 * bytes / (bandwidth * stage.replicas as f64));
            }
            done = span.1;
        }
        assert_eq!((done, left), (to, 0));
        assert!(is_near(partition.time, slowest), "{partition:?}: {slowest}");
        slowest
    }

    /// Compares the partition with the best of all.
    fn check(&self, states: &States, levels: &[(usize, f64)]) {
        let mut machine = machine(levels);
        machine.devices[0].memory = self.memory;
        let whole = (1 << self.layers.len()) - 1;
        let (groups, behind) = (1, 0);
        let alone = Around { groups, behind };
        let best = self.best(levels, 0, whole, alone);
        match partition(states, &machine) {
            Ok(own) => {
                self.time(states, &own, levels, (0, whole), alone);
                assert!(is_near(own.time, best), "{own:?}: {best}");
            }
            Err(error) => {
                let memory = self.memory.unwrap();
                assert_eq!(error, PartitionError::DoesNotFit { memory });
                assert!(best.is_infinite(), "{best}");
            }
        }
    }
}

fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected
}

/// The workers that the next lower level joins, which matters to the first stage only.
fn joined(below: &[(usize, f64)], first: bool) -> usize {
    below.last().filter(|_| first).map_or(1, |level| level.0)
}

fn figures(most: usize) -> impl Strategy<Value = Vec<Figures>> {
    let time = || prop_oneof![(0..100_u32).prop_map(f64::from), Just(0.0), 0.0..10.0];
    let bytes = || prop_oneof![0..10_000_u64, Just(0)];
    prop::collection::vec((time(), time(), bytes(), bytes()), 1..=most)
}

fn levels() -> impl Strategy<Value = Vec<(usize, f64)>> {
    let bandwidth = || prop_oneof![1e4..1e7, Just(1e5), Just(f64::INFINITY)];
    prop_oneof![
        (1..6_usize, bandwidth()).prop_map(|level| vec![level]),
        [(1..4_usize, bandwidth()), (1..4, bandwidth())].prop_map(Vec::from),
        [2..3_usize, 1..3, 1..3]
            .map(|workers| (workers, bandwidth()))
            .prop_map(Vec::from),
    ]
}

fn memory() -> impl Strategy<Value = Option<u64>> {
    prop::option::of(0..60_000_u64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_partition_of_a_chain_is_faster(
        layers in figures(5), levels in levels(), memory in memory(),
    ) {
        let model = BitModel { memory, ..BitModel::new(&layers, &[]) };
        let profiles = layers.iter().map(|&(forward, backward, output, parameters)| LayerProfile {
            backward: backward / 1000.0, output, ..layer(forward / 1000.0, parameters)
        });
        model.check(&states(profiles.collect()).unwrap(), &levels);
        let graph = LayerGraph::from_text(&text(&layers, &[])).unwrap();
        let states = States::from_graph(&graph).unwrap();
        // The graph's first node is the input, which is not a layer.
        assert_eq!(states.layers(&(0..layers.len())), (1..=layers.len()).collect::<Vec<_>>());
        assert_eq!(states.count(), layers.len());
    }

    #[test]
    fn no_partition_of_a_graph_is_faster(
        layers in figures(5), edges in prop::collection::vec(any::<bool>(), 10),
        levels in levels(), memory in memory(),
    ) {
        let pairs = (0..layers.len()).flat_map(|to| (0..to).map(move |from| (from, to)));
        let edges: Vec<_> = pairs.zip(&edges).filter(|(_, there)| **there).map(|(pair, _)| pair).collect();
        let nodes = layers.iter().enumerate().map(|(id, &layer)| node(id, "Layer", layer));
        let lines = edges.iter().map(|&(from, to)| edge(from, to));
        let text: String = nodes.chain(lines).collect();
        let states = States::from_graph(&LayerGraph::from_text(&text).unwrap()).unwrap();
        let model = BitModel { layers, edges, memory };
        prop_assert_eq!(states.count(), model.sets().len() - 1);
        model.check(&states, &levels);
    }
}

pub fn states(layers: Vec<LayerProfile>) -> Result<States, PartitionError> {
    States::from_profile(&Profile {
        samples: 1,
        input: 0,
        layers,
        skips: vec![],
    })
}

fn layer(forward: f64, parameters: u64) -> LayerProfile {
    LayerProfile {
        forward,
        parameters,
        ..LayerProfile::default()
    }
}

fn chain(layers: usize, layer: &LayerProfile) -> States {
    states(vec![layer.clone(); layers]).unwrap()
}

#[test]
fn more_workers_than_layers_are_replicas() {
    let states = chain(1, &layer(8.0, 8));
    let one = partition(&states, &Machine::uniform(8)).unwrap();
    assert_eq!((shape(&one), one.time), (vec![(0..1, 8)], 1.0));
    let levels = partition(&states, &machine(&[(4, 1e9), (2, 1e9)])).unwrap();
    assert_eq!(levels.stages[0].replicas, 2);
    let inside = levels.stages[0].inside.as_ref().unwrap();
    assert_eq!(inside.stages[0].replicas, 4);
    let mut fast = Machine::uniform(8);
    let speeds = fast.devices.iter_mut().map(|device| &mut device.speed);
    speeds.for_each(|speed| *speed = 2.0);
    assert_eq!(partition(&states, &fast).unwrap().time, 0.5);
}

#[test]
fn memory_counts_weight_versions() {
    let mut layer = layer(1.0, 80);
    (layer.output, layer.kept) = (15, Some(20));
    // The links are so slow that two stages are faster than one with replicas. The first of two has two
    // mini-batches in flight. A replicated stage would have one, of twice the size.
    for (memory, stages) in [(200, Some(2)), (199, None)] {
        let mut machine = machine(&[(2, 100.0)]);
        machine.devices[1].memory = Some(memory);
        let found = partition(&chain(2, &layer), &machine);
        let found = found.ok().map(|found| found.stages.len());
        assert_eq!(found, stages, "{memory}");
    }
}

#[test]
fn what_cannot_be_partitioned_is_an_error() {
    let layer = layer(1.0, 0);
    let three = chain(3, &layer);
    let error = |machine: &Machine| partition(&three, machine).unwrap_err();
    assert_eq!(error(&Machine::uniform(0)), PartitionError::NoDevices);
    let mut unequal = Machine::uniform(2);
    unequal.devices[1].speed = 0.5;
    let expected = "device 1 has the speed 0.5 and device 0 has 1, but replicas are for devices of one \
                    speed; place the layers one stage a device instead";
    assert_eq!(error(&unequal).to_string(), expected);
    unequal.devices[0].speed = f64::NAN;
    assert!(matches!(error(&unequal), PartitionError::Speed { .. }));
    let mut odd = machine(&[(2, 1e9), (2, 1e9)]);
    odd.devices.pop();
    let (joined, devices) = (4, 3);
    assert_eq!(error(&odd), PartitionError::Joined { joined, devices });
    let no_bandwidth = machine(&[(2, 1e9), (2, 0.0)]);
    assert_eq!(error(&no_bandwidth), PartitionError::Level { level: 1 });
    let large = partition(&chain(4000, &layer), &machine(&[(4, 1e9), (4, 1e9)])).unwrap_err();
    let is_large = matches!(large, PartitionError::TooLarge { states: 4000, .. });
    assert!(is_large, "{large}");
    assert_eq!(states(vec![]).unwrap_err(), PartitionError::NoLayers);
    for backward in [f64::NAN, -1.0, f64::INFINITY] {
        let mut layers = vec![layer.clone(); 2];
        layers[1].backward = backward;
        let error = states(layers).unwrap_err();
        assert_eq!(error, PartitionError::Time { layer: 1 });
    }
}
