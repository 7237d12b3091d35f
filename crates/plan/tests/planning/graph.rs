//! Graphs of layers as text, and where they can be cut.

use crate::common::{self, any_change, any_text, check_faults, edge};
use proptest::prelude::*;
use stovepipe_plan::{GraphError, LayerGraph, Machine, PartitionError, Profile, States};

const GOOD: &str = "\
node1 -- Input -- forward_compute_time=9.0, backward_compute_time=0.0, activation_size=64.0, parameter_size=0.0
node2 -- LSTM(8, 8) -- forward_compute_time=1.5, backward_compute_time=2.5, activation_size=[16.0; 4.0; 4.0], parameter_size=32.000
node3 -- __getitem__(0) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=16.0, parameter_size=0.0
node4 -- __getitem__(1) -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=4.0, parameter_size=0.0
node5 -- Add -- left -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=16.0, parameter_size=0.0 -- stage_id=3
\tnode1 -- node2
\tnode2 -- node3
\tnode2 -- node4
\tnode3 -- node5
\tnode2 -- node5
";

#[test]
fn a_graph_is_read() {
    for line_end in ["\n", "\r\n", "\n\n"] {
        let graph = LayerGraph::from_text(&GOOD.replace('\n', line_end)).unwrap();
        let node = &graph.nodes()[1];
        let names = [&node.id[..], &node.description];
        assert_eq!(names, ["node2", "LSTM(8, 8)"]);
        assert_eq!((node.forward, node.backward), (0.0015, 0.0025));
        assert_eq!((node.activations, node.parameters), (24.0, 32.0));
        assert_eq!(graph.nodes()[4].description, "Add -- left");
        assert_eq!(graph.edges(), [(0, 1), (1, 2), (1, 3), (2, 4), (1, 4)]);
    }
    let twice = GOOD.to_owned() + "\tnode1 -- node2\n";
    assert_eq!(LayerGraph::from_text(&twice).unwrap().edges().len(), 5);
}

#[test]
fn a_fault_is_named_with_its_line() {
    check_faults(
        GOOD,
        LayerGraph::from_text,
        "
        node1 -- Input            | mode1 -- Input             | 1 | neither
        node1 -- Input --         | node1 --                   | 1 | neither
        forward_compute_time=1.5  | forward_compute_time=-1.5  | 2 | -1.5
        forward_compute_time=1.5  | forward_compute_time=NaN   | 2 | NaN
        forward_compute_time=1.5  | forward_compute_time=inf   | 2 | inf
        forward_compute_time=1.5  | forward_compute_time=1e999 | 2 | 1e999
        forward_compute_time=1.5  | forward_compute_time=1e250 | 2 | too large
        forward_compute_time=1.5  | forward_compute_time=      | 2 | forward_compute_time
        forward_compute_time=1.5, backward | backward          | 2 | no forward_compute_time
        backward_compute_time=2.5 | backward=2.5               | 2 | \"backward\"
        backward_compute_time=2.5 | forward_compute_time=2.5   | 2 | twice
        [16.0; 4.0; 4.0]          | [16.0; nan]                | 2 | nan
        [16.0; 4.0; 4.0]          | [16.0; 4.0                 | 2 | [16.0
        [16.0; 4.0; 4.0]          | []                         | 2 | []
        , parameter_size=32.000   |                            | 2 | no parameter_size
        node4 --                  | node3 --                   | 4 | node3 is there twice
        \tnode2 -- node4         | \tnode2 -- node9          | 8 | node9
        \tnode2 -- node4         | \tnode9 -- node4          | 8 | node9
        \tnode2 -- node4         | \tnode2 node4             | 8 | neither
        \tnode2 -- node4         | node2 -- node4             | 8 | neither
        \tnode2 -- node4         | \tnode2 -- node2          | 8 | cycle
        ",
    );
    assert_eq!(LayerGraph::from_text("\n"), Err(GraphError::NoNodes));
}

#[test]
fn a_cycle_is_named_with_the_line_of_one_of_its_edges() {
    // node3 lies between two cycles, node1 before them and node6 behind.
    let nodes = (1..=6).map(|id| node(id, "Layer"));
    let edges = [(1, 2), (2, 1), (2, 3), (3, 4), (4, 5), (5, 4), (5, 6)];
    let lines = edges.map(|(from, to)| edge(from, to));
    let text: String = nodes.chain(lines).collect();
    let error = LayerGraph::from_text(&text).unwrap_err();
    let GraphError::Cycle { line, from, to } = &error else {
        panic!("{error}");
    };
    assert!([7, 8, 11, 12].contains(line), "{error}");
    let (a, b) = edges[line - 7];
    assert_eq!((from, to), (&format!("node{a}"), &format!("node{b}")));
}

fn node(id: usize, name: &str) -> String {
    common::node(id, name, (1.0, 1.0, id as u64, 0))
}

/// The states of a graph with these lines.
fn states(text: &str) -> States {
    States::from_graph(&LayerGraph::from_text(text).unwrap()).unwrap()
}

#[test]
fn inputs_and_unused_items_are_not_layers() {
    let good = states(GOOD);
    assert_eq!(good.count(), 3);
    assert_eq!(good.layers(&(0..3)), [1, 2, 4]);
    assert_eq!(good.layers(&(1..2)), [2]);
    assert_eq!(good.layers(&(2..2)), [0; 0]);
    assert_eq!(good.layers(&(1..4)), [0; 0]);
    // A node that is called Input but takes an input is a layer.
    let text = node(1, "Input") + &node(2, "InputProjection") + &edge(1, 2);
    assert_eq!(states(&text).layers(&(0..1)), [1]);
    let only = LayerGraph::from_text(&node(1, "Input")).unwrap();
    let nothing = PartitionError::NoLayers;
    assert_eq!(States::from_graph(&only).unwrap_err(), nothing);
}

#[test]
fn states_include_what_they_depend_on() {
    let nodes = (1..=4).map(|id| node(id, "Layer"));
    let edges = [(1, 2), (1, 3), (2, 4), (3, 4)].map(|(from, to)| edge(from, to));
    let text: String = nodes.chain(edges).collect();
    let states = states(&text);
    let sets: Vec<_> = (1..=5).map(|end| states.layers(&(0..end))).collect();
    let expected: [&[usize]; 5] = [&[0], &[0, 1], &[0, 2], &[0, 1, 2], &[0, 1, 2, 3]];
    assert_eq!(sets, expected);
}

#[test]
fn a_graph_too_wide_is_an_error_and_a_long_one_is_not() {
    for count in [40, 20_000] {
        let text: String = (1..=count).map(|id| node(id, "Layer")).collect();
        let graph = LayerGraph::from_text(&text).unwrap();
        let error = States::from_graph(&graph).unwrap_err();
        let is_wide = matches!(error, PartitionError::TooManyStates { .. });
        assert!(is_wide, "{error}");
    }
    let chain = (2..=1000).map(|id| node(id, "Layer") + &edge(id - 1, id));
    let text = node(1, "Layer") + &chain.collect::<String>();
    assert_eq!(states(&text).count(), 1000);
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(text in any_text()) {
        let _ = LayerGraph::from_text(&text);
        let _ = (Machine::from_toml(&text), Profile::from_toml(&text));
    }

    #[test]
    fn no_change_causes_a_panic(texts in any_change(GOOD)) {
        for graph in texts.iter().flat_map(|text| LayerGraph::from_text(text)) {
            let _ = States::from_graph(&graph);
        }
    }

    #[test]
    fn edges_at_random_are_a_graph_or_have_a_cycle_there(
        edges in prop::collection::vec((1usize..8, 1usize..8), 0..12),
    ) {
        let nodes: String = (1..8).map(|id| node(id, "Layer")).collect();
        let lines: String = edges.iter().map(|&(from, to)| edge(from, to)).collect();
        // reaches[a][b]: whether b comes after a, by trying every node between.
        let mut reaches = [[false; 8]; 8];
        edges.iter().for_each(|&(from, to)| reaches[from][to] = true);
        for (between, from, to) in (0..512).map(|i| (i / 64, i / 8 % 8, i % 8)) {
            reaches[from][to] |= reaches[from][between] && reaches[between][to];
        }
        match LayerGraph::from_text(&(nodes + &lines)) {
            Ok(_) => prop_assert!((0..8).all(|node| !reaches[node][node])),
            Err(GraphError::Cycle { line, .. }) => {
                let (from, to) = edges[line - 8];
                prop_assert!(from == to || reaches[to][from]);
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
    }
}
