//! A graph of layers, as PipeDream's profiler writes it.

mod cycle;
mod read;

use thiserror::Error;

/// A profiled model whose layers form a directed graph without cycles.
///
/// The text format is that of PipeDream's `graph.txt`: a line for each layer, and a line for each
/// edge, indented by a tab.
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

/// A layer of a [`LayerGraph`], and what it costs for a mini-batch.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphNode {
    /// What edges call it.
    pub id: String,
    /// What a reader calls it.
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

/// Why a text is no graph of layers. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// There is no node.
    #[error("the graph has no node")]
    NoNodes,
    /// A line is neither a node nor an edge.
    #[error(
        "line {line} is neither a node (`node1 -- description -- forward_compute_time=…, …`) \
         nor an edge (a tab, then `node1 -- node2`)"
    )]
    Garbage {
        /// The line.
        line: usize,
    },
    /// A node lacks a field.
    #[error("line {line}: the node has no {field}")]
    MissingField {
        /// The line.
        line: usize,
        /// The field.
        field: &'static str,
    },
    /// A node has a field that is unknown or there twice.
    #[error("line {line}: the field {field:?} is unknown or there twice")]
    OddField {
        /// The line.
        line: usize,
        /// The field.
        field: String,
    },
    /// A time or size is negative, infinite, no number, or too large to be added to the others.
    #[error("line {line}: {field} is {value:?}, which is no number of at least 0, or too large")]
    Number {
        /// The line.
        line: usize,
        /// The field.
        field: &'static str,
        /// What stands there.
        value: String,
    },
    /// A node is there twice.
    #[error("line {line}: the node {id} is there twice")]
    DoubledNode {
        /// The later line.
        line: usize,
        /// The node.
        id: String,
    },
    /// An edge's node is not there.
    #[error("line {line}: an edge has the node {id}, which is not there")]
    UnknownNode {
        /// The edge's line.
        line: usize,
        /// The node.
        id: String,
    },
    /// Layers wait for one another.
    #[error("line {line}: the edge from {from} to {to} is part of a cycle")]
    Cycle {
        /// The line of an edge of the cycle.
        line: usize,
        /// Where the edge begins.
        from: String,
        /// Where it ends.
        to: String,
    },
}

impl LayerGraph {
    /// Reads a graph. Times are in milliseconds there and in seconds here; a list of sizes, as
    /// `[1.0; 2.0]`, is added up; the stage that PipeDream's own optimizer may have appended to a
    /// node (`-- stage_id=3`) is passed over.
    ///
    /// # Errors
    ///
    /// Each names the line: if a line is neither a node nor an edge, a field is missing, unknown or
    /// no number of at least 0, a node is there twice, an edge has an unknown node, or edges form a
    /// cycle.
    pub fn from_text(text: &str) -> Result<Self, GraphError> {
        read::read(text)
    }

    /// The layers, in the order of the text.
    #[must_use]
    pub fn nodes(&self) -> &[GraphNode] {
        &self.nodes
    }

    /// The edges, each from a node to one that takes its output, by their indices in
    /// [`LayerGraph::nodes`]. None is there twice.
    #[must_use]
    pub fn edges(&self) -> &[(usize, usize)] {
        &self.edges
    }
}
