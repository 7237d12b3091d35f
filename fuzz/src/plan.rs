//! Profiles, machines and graphs of layers.

use stovepipe_plan::{GraphError, LayerGraph, Machine, Profile, States, partition};

use super::input::text;

/// A profile that is read is the same when it is written and read again, and scales to other numbers of samples.
pub fn profile(bytes: &[u8]) {
    text(bytes, |text| match Profile::from_toml(text) {
        Ok(profile) => {
            let again = Profile::from_toml(&profile.to_toml());
            assert_eq!(again.as_ref(), Ok(&profile));
            assert_eq!(profile.times().len(), profile.sizes().len());
            for samples in [1, profile.samples, usize::MAX] {
                let scaled = profile.for_samples(samples);
                assert_eq!(scaled.layers.len(), profile.layers.len());
            }
        }
        Err(error) => assert!(error.to_string().starts_with("line ")),
    });
}

/// A machine that is read is the same when it is written and read again. All but equal devices are joined, if there are
/// links.
pub fn machine(bytes: &[u8]) {
    text(bytes, |text| match Machine::from_toml(text) {
        Ok(machine) => {
            let again = Machine::from_toml(&machine.to_toml());
            assert_eq!(again.as_ref(), Ok(&machine));
            let count = machine.devices.len();
            let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
            for (a, b) in pairs.take(1000) {
                let is_joined = machine.link(a, b).is_some();
                assert_eq!(is_joined, a != b && !machine.levels.is_empty());
            }
        }
        Err(error) => assert!(error.to_string().starts_with("line ")),
    });
}

/// A graph that is read has no cycles and finite costs. If it is small, it can be cut.
pub fn graph(bytes: &[u8]) {
    text(bytes, |text| {
        let graph = match LayerGraph::from_text(text) {
            Ok(graph) => graph,
            Err(GraphError::NoNodes) => return,
            Err(error) => {
                assert!(error.to_string().starts_with("line "));
                return;
            }
        };
        let count = graph.nodes().len();
        for node in graph.nodes() {
            for cost in [
                node.forward,
                node.backward,
                node.activations,
                node.parameters,
            ] {
                assert!(cost >= 0.0 && cost.is_finite());
            }
        }
        // The longest path to each node: it stays below the number of nodes if there is no cycle.
        let mut depths = vec![0; count];
        for _ in 0..count {
            for &(from, to) in graph.edges() {
                depths[to] = depths[to].max(depths[from] + 1);
            }
        }
        assert!(depths.iter().all(|&depth| depth < count));
        if count <= 8
            && let Ok(states) = States::from_graph(&graph)
        {
            let all = partition(&states, &Machine::uniform(2));
            assert!(all.is_ok_and(|all| all.time >= 0.0 && all.time.is_finite()));
        }
    });
}
