//! Graphs of layers, as PipeDream's profiler writes them.

mod read;

use thiserror::Error;

/// A profiled model whose layers form a directed acyclic graph.
///
/// The text format is that of PipeDream's `graph.txt`: a line for each layer, and a line for each edge,
/// indented by a tab.
///
/// ```
/// use stovepipe_plan::LayerGraph;
///
/// let graph = LayerGraph::from_text(
///     "node1 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=64.0, parameter_size=0.0\n\
///      node2 -- Linear(4, 4) -- forward_compute_time=1.5, backward_compute_time=3.0, activation_size=[64.0; 8.0], parameter_size=80.0\n\
///      \tnode1 -- node2\n",
/// )?;
/// assert_eq!(graph.nodes()[1].description, "Linear(4, 4)");
/// assert_eq!(graph.nodes()[1].forward, 0.0015); // the file has milliseconds
/// assert_eq!(graph.nodes()[1].activations, 72.0);
/// assert_eq!(graph.edges(), [(0, 1)]);
/// # Ok::<(), stovepipe_plan::GraphError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LayerGraph {
    nodes: Vec<GraphNode>,
    edges: Vec<(usize, usize)>,
}

/// A layer of a [`LayerGraph`] and its costs for a mini-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphNode {
    /// Its name in edges.
    pub id: String,
    /// Its name for readers.
    pub description: String,
    /// Seconds of the forward pass.
    pub forward: f64,
    /// Seconds of the backward pass.
    pub backward: f64,
    /// Bytes of its output.
    pub activations: f64,
    /// Bytes of its parameters.
    pub parameters: f64,
}

/// Why a text is not a graph of layers. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum GraphError {
    /// There is no node.
    #[error("the graph has no node")]
    NoNodes,
    /// A line is neither a node nor an edge.
    #[error(
        "line {line} is neither a node (`node1 -- description -- forward_compute_time=…, …`) \
         nor an edge (a tab, then `node1 -- node2`)"
    )]
    Garbage { line: usize },
    /// A node lacks a field.
    #[error("line {line}: the node has no {field}")]
    MissingField { line: usize, field: &'static str },
    /// A node has a field that is unknown or there twice.
    #[error("line {line}: the field {field:?} is unknown or there twice")]
    OddField { line: usize, field: String },
    /// A time or size is negative, infinite, NaN, or too large to be added to the others.
    #[error("line {line}: {field} is {value:?}, which is not a number of at least 0, or too large")]
    Number {
        line: usize,
        field: &'static str,
        value: String,
    },
    /// A node is there twice.
    #[error("line {line}: the node {id} is there twice")]
    DoubledNode { line: usize, id: String },
    /// An edge's node does not exist.
    #[error("line {line}: an edge has the node {id}, which does not exist")]
    UnknownNode { line: usize, id: String },
    /// Layers wait for each other.
    #[error("line {line}: the edge from {from} to {to} is part of a cycle")]
    Cycle {
        line: usize,
        from: String,
        to: String,
    },
}

impl LayerGraph {
    /// The layers, in the order of the text.
    #[must_use]
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// The edges, each from a node to one that takes its output, by indices in [`LayerGraph::nodes`],
    /// without repetitions.
    #[must_use]
    pub fn edges(&self) -> &[(usize, usize)] {
        &self.edges
    }
}
