//! Reads a graph from text.

use std::collections::{HashMap, HashSet};

use super::{GraphError, GraphNode, LayerGraph};

const FIELDS: [&str; 4] = [
    "forward_compute_time",
    "backward_compute_time",
    "activation_size",
    "parameter_size",
];

/// An edge's line, and its nodes by name or index.
type Edge<T> = (usize, (T, T));

impl LayerGraph {
    /// Reads a graph. Milliseconds become seconds. Lists of sizes, such as `[1.0; 2.0]`, are added up. The
    /// stage that PipeDream's optimizer may have appended to a node (`-- stage_id=3`) is ignored.
    ///
    /// # Errors
    ///
    /// The line, if it is neither a node nor an edge, a field is missing, unknown or not a number of at
    /// least 0, a node is there twice, an edge has an unknown node, or edges form a cycle.
    pub fn from_text(text: &str) -> Result<Self, GraphError> {
        let mut nodes = Vec::new();
        let mut edges = Vec::new();
        let mut places = HashMap::new();
        for (line, content) in (1..).zip(text.lines()) {
            if content.trim().is_empty() {
                continue;
            }
            if content.starts_with('\t') {
                edges.push(edge(line, content)?);
                continue;
            }
            let node = node(line, content.trim())?;
            let id = node.id.clone();
            if places.insert(id.clone(), nodes.len()).is_some() {
                return Err(GraphError::DoubledNode { line, id });
            }
            nodes.push((line, node));
        }
        check_sums(&nodes)?;
        let edges = resolve(&edges, &places)?;
        let nodes: Vec<_> = nodes.into_iter().map(|(_, node)| node).collect();
        if let Some(edge) = edge_of_a_cycle(nodes.len(), edges.iter().map(|&(_, edge)| edge)) {
            let (line, (from, to)) = edges[edge];
            return Err(GraphError::Cycle {
                line,
                from: nodes[from].id.clone(),
                to: nodes[to].id.clone(),
            });
        }
        Ok(Self {
            nodes,
            edges: edges.into_iter().map(|(_, edge)| edge).collect(),
        })
    }
}

fn is_id(word: &str) -> bool {
    word.starts_with("node") && !word.contains(char::is_whitespace)
}

fn edge(line: usize, content: &str) -> Result<Edge<&str>, GraphError> {
    match content.trim().split_once(" -- ") {
        Some((from, to)) if is_id(from) && is_id(to) => Ok((line, (from, to))),
        _ => Err(GraphError::Garbage { line }),
    }
}

fn node(line: usize, content: &str) -> Result<GraphNode, GraphError> {
    let garbage = GraphError::Garbage { line };
    let Some((id, rest)) = content.split_once(" -- ").filter(|(id, _)| is_id(id)) else {
        return Err(garbage);
    };
    let rest = match rest.rsplit_once(" -- ") {
        Some((rest, last)) if last.starts_with("stage_id=") => rest,
        _ => rest,
    };
    let (description, fields) = rest.rsplit_once(" -- ").ok_or(garbage)?;
    let [forward, backward, activations, parameters] = numbers(line, fields)?;
    Ok(GraphNode {
        id: id.to_owned(),
        description: description.to_owned(),
        forward: forward / 1000.0,
        backward: backward / 1000.0,
        activations,
        parameters,
    })
}

/// The numbers of [`FIELDS`].
fn numbers(line: usize, fields: &str) -> Result<[f64; 4], GraphError> {
    let mut numbers = [None; 4];
    for field in fields.split(", ") {
        let (key, value) = field.split_once('=').ok_or(GraphError::Garbage { line })?;
        let place = FIELDS.iter().position(|&known| known == key);
        let Some(place) = place.filter(|&place| numbers[place].is_none()) else {
            let field = key.to_owned();
            return Err(GraphError::OddField { line, field });
        };
        numbers[place] = number(value);
        if numbers[place].is_none() {
            let (field, value) = (FIELDS[place], value.to_owned());
            return Err(GraphError::Number { line, field, value });
        }
    }
    if let Some(place) = numbers.iter().position(Option::is_none) {
        let field = FIELDS[place];
        return Err(GraphError::MissingField { line, field });
    }
    Ok(numbers.map(Option::unwrap_or_default))
}

/// A number of at least 0, or a list of them, added up.
fn number(text: &str) -> Option<f64> {
    let opened = text.strip_prefix('[');
    let list = opened.and_then(|text| text.strip_suffix(']'));
    let mut sum = 0.0;
    for number in list.unwrap_or(text).split("; ") {
        let number: f64 = number.parse().ok()?;
        sum += Some(number).filter(|&number| number >= 0.0)?;
    }
    Some(sum).filter(|sum| sum.is_finite())
}

/// Checks that the sums of costs do not overflow.
fn check_sums(nodes: &[(usize, GraphNode)]) -> Result<(), GraphError> {
    if nodes.is_empty() {
        return Err(GraphError::NoNodes);
    }
    let mut sums = [0.0; 4];
    for (line, node) in nodes {
        let own = [
            node.forward,
            node.backward,
            node.activations,
            node.parameters,
        ];
        for (place, own) in own.into_iter().enumerate() {
            sums[place] += own;
            // The planner multiplies by a few far smaller numbers.
            if sums[place] > 1e200 {
                let (field, value) = (FIELDS[place], format!("{own:?}"));
                let line = *line;
                return Err(GraphError::Number { line, field, value });
            }
        }
    }
    Ok(())
}

/// Replaces names in edges by indices, without repetitions.
fn resolve(
    edges: &[Edge<&str>],
    places: &HashMap<String, usize>,
) -> Result<Vec<Edge<usize>>, GraphError> {
    let mut seen = HashSet::new();
    let mut resolved = Vec::with_capacity(edges.len());
    for &(line, (from, to)) in edges {
        let place = |id: &str| {
            let place = places.get(id).copied();
            let id = id.to_owned();
            place.ok_or(GraphError::UnknownNode { line, id })
        };
        let edge = (place(from)?, place(to)?);
        if seen.insert(edge) {
            resolved.push((line, edge));
        }
    }
    Ok(resolved)
}

/// The index of an edge that is part of a cycle, if there is one.
fn edge_of_a_cycle(nodes: usize, edges: impl Iterator<Item = (usize, usize)>) -> Option<usize> {
    let mut incoming = vec![Vec::new(); nodes];
    let mut outgoing = vec![0_usize; nodes];
    for (edge, (from, to)) in edges.enumerate() {
        incoming[to].push((edge, from));
        outgoing[from] += 1;
    }
    let stuck = without_ends(&incoming, &mut outgoing);
    // From each node that is left, an edge leads to another one: a walk along such edges never ends, so
    // it returns to a node.
    let mut next = vec![None; nodes];
    for to in (0..nodes).filter(|&to| stuck[to]) {
        for &(edge, from) in incoming[to].iter().filter(|&&(_, from)| stuck[from]) {
            next[from] = Some((edge, to));
        }
    }
    let mut passed = vec![false; nodes];
    let mut node = stuck.iter().position(|&stuck| stuck)?;
    loop {
        passed[node] = true;
        let (edge, to) = next[node]?;
        if passed[to] {
            return Some(edge);
        }
        node = to;
    }
}

/// Removes nodes without outgoing edges until there are none. Returns which nodes are left.
fn without_ends(incoming: &[Vec<(usize, usize)>], outgoing: &mut [usize]) -> Vec<bool> {
    let mut left = vec![true; outgoing.len()];
    let is_end = |&node: &usize| outgoing[node] == 0;
    let mut ends: Vec<_> = (0..outgoing.len()).filter(is_end).collect();
    while let Some(end) = ends.pop() {
        left[end] = false;
        for &(_, from) in &incoming[end] {
            outgoing[from] -= 1;
            if outgoing[from] == 0 {
                ends.push(from);
            }
        }
    }
    left
}
