//! Where a graph of layers can be cut.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    ops::Range,
};

use crate::{GraphNode, LayerGraph, PartitionError, Profile};

/// The most states of a graph that is not a chain. Their number grows exponentially with the width.
const MOST_STATES: usize = 10_000;

/// PipeDream's states: for each way to cut a model's graph in two, the layers before the cut and their
/// costs.
///
/// A state comes after those that it includes. The last one is the whole model. A chain of n layers has n
/// states, one after each layer, and a range of states is a range of layers.
///
/// ```
/// use stovepipe_plan::{LayerGraph, LayerProfile, Profile, States};
///
/// let layers = vec![LayerProfile { output: 8, ..LayerProfile::default() }; 3];
/// let states = States::from_profile(&Profile { samples: 1, input: 4, layers, skips: vec![] })?;
/// assert_eq!(states.count(), 3);
/// assert_eq!(states.layers(&(1..3)), [1, 2]);
/// assert_eq!([states.output(0), states.output(2)], [8.0, 0.0]);
///
/// let node = |id: usize| format!(
///     "node{id} -- ReLU -- forward_compute_time=1.0, backward_compute_time=2.0, \
///      activation_size=8.0, parameter_size=0.0\n"
/// );
/// // Two branches from node 1 to node 4.
/// let text: String = (1..=4).map(node).collect();
/// let edges = "\tnode1 -- node2\n\tnode1 -- node3\n\tnode2 -- node4\n\tnode3 -- node4\n";
/// let graph = LayerGraph::from_text(&(text + edges))?;
/// assert_eq!(States::from_graph(&graph)?.count(), 5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct States {
    states: Vec<State>,
    /// The place of each layer in the sets of layers, or [`LEFT_OUT`].
    places: Vec<usize>,
}

const LEFT_OUT: usize = usize::MAX;

/// The part of the model before a cut.
#[derive(Clone, Debug)]
pub(crate) struct State {
    members: Layers,
    pub costs: LayerCosts,
    /// Bytes that cross the cut.
    pub output: f64,
}

/// The costs of some layers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LayerCosts {
    /// Seconds, forward and backward.
    pub compute: f64,
    /// Bytes.
    pub parameters: f64,
    /// Bytes kept from forward to backward.
    pub kept: f64,
}

impl LayerCosts {
    fn add(&mut self, other: Self) {
        self.compute += other.compute;
        self.parameters += other.parameters;
        self.kept += other.kept;
    }

    /// The difference to costs that these include.
    pub fn without(self, other: Self) -> Self {
        Self {
            compute: f64::max(self.compute - other.compute, 0.0),
            parameters: f64::max(self.parameters - other.parameters, 0.0),
            kept: f64::max(self.kept - other.kept, 0.0),
        }
    }
}

/// A set of layers, by their places.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Layers {
    /// The first layers of a chain.
    First(usize),
    /// Bits.
    These(Vec<u64>),
}

impl Layers {
    fn with(&self, layer: usize) -> Self {
        let mut with = self.clone();
        if let Self::These(bits) = &mut with {
            bits[layer / 64] |= 1 << (layer % 64);
        }
        with
    }

    fn has(&self, layer: usize) -> bool {
        match self {
            Self::First(count) => layer < *count,
            Self::These(bits) => bits[layer / 64] >> (layer % 64) & 1 == 1,
        }
    }

    fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::First(own), Self::First(others)) => own <= others,
            (Self::These(own), Self::These(others)) => {
                own.iter().zip(others).all(|(own, other)| own & !other == 0)
            }
            _ => false,
        }
    }
}

impl States {
    /// The states of a chain: one after each layer.
    ///
    /// # Errors
    ///
    /// If there is no layer, or a time is negative, infinite, NaN or absurdly long.
    pub fn from_profile(profile: &Profile) -> Result<Self, PartitionError> {
        let count = profile.layers.len();
        let mut costs = LayerCosts::default();
        let states = (1..).zip(&profile.layers).map(|(first, layer)| {
            costs.add(LayerCosts {
                compute: layer.forward + layer.backward,
                parameters: layer.parameters as f64,
                kept: layer.kept_or_output() as f64,
            });
            let is_last = first == count;
            State {
                members: Layers::First(first),
                costs,
                output: if is_last { 0.0 } else { layer.output as f64 },
            }
        });
        let states: Vec<_> = states.collect();
        let sound = |layer: &crate::LayerProfile| {
            layer.forward >= 0.0 && layer.backward >= 0.0 && layer.forward + layer.backward < 1e200
        };
        match profile.layers.iter().position(|layer| !sound(layer)) {
            Some(layer) => Err(PartitionError::Time { layer }),
            None if states.is_empty() => Err(PartitionError::NoLayers),
            None => Ok(Self {
                states,
                places: (0..count).collect(),
            }),
        }
    }

    /// The states of a graph, without nodes called `Input…` that take no input, and `__getitem__` nodes
    /// whose output no layer takes. The outputs that layers behind a cut take cross it once each. A layer
    /// keeps as many bytes as its output has.
    ///
    /// # Errors
    ///
    /// If there is no layer, or the graph has more than 10,000 states and is not a chain. In a chain, each
    /// layer takes the output of the one before it and perhaps others.
    pub fn from_graph(graph: &LayerGraph) -> Result<Self, PartitionError> {
        let links = Links::new(graph);
        let mut layers: Vec<_> = (0..links.kept.len()).collect();
        layers.retain(|&node| links.kept[node]);
        if layers.is_empty() {
            return Err(PartitionError::NoLayers);
        }
        if let Some(order) = links.chain(&layers) {
            let mut places = vec![LEFT_OUT; links.kept.len()];
            for (place, &layer) in order.iter().enumerate() {
                places[layer] = place;
            }
            let states = links.chain_states(graph, &order);
            return Ok(Self { states, places });
        }
        // Each layer is the last of some state.
        if layers.len() > MOST_STATES {
            return Err(PartitionError::TooManyStates { most: MOST_STATES });
        }
        let members = links.states()?;
        let states = members.into_iter().map(|members| State {
            costs: links.costs(graph, &members),
            output: links.output(graph, &members),
            members,
        });
        Ok(Self {
            states: states.collect(),
            places: (0..links.kept.len()).collect(),
        })
    }

    /// The number of states.
    #[must_use]
    pub fn count(&self) -> usize {
        self.states.len()
    }

    /// The bytes that cross the cut after a state. 0 after the last one, or one that does not exist.
    #[must_use]
    pub fn output(&self, state: usize) -> f64 {
        self.states.get(state).map_or(0.0, |state| state.output)
    }

    /// The layers of a range of states, by ascending indices in the profile or graph: those of its last
    /// state that are not in the state before the first. Empty if a state does not exist.
    #[must_use]
    pub fn layers(&self, states: &Range<usize>) -> Vec<usize> {
        let Some(last) = self.states.get(states.clone()).and_then(<[_]>::last) else {
            return Vec::new();
        };
        let before = states.start.checked_sub(1);
        let before = |place| before.is_some_and(|before| self.states[before].members.has(place));
        let is_new = |&layer: &usize| {
            let place = self.places[layer];
            last.members.has(place) && !before(place)
        };
        (0..self.places.len()).filter(is_new).collect()
    }

    /// Whether each state includes all those before it.
    pub(crate) fn are_chain(&self) -> bool {
        let mut states = self.states.iter();
        states.all(|state| matches!(state.members, Layers::First(_)))
    }

    pub(crate) fn get(&self, state: usize) -> &State {
        &self.states[state]
    }

    /// The states that another one includes, except itself, in ascending order.
    pub(crate) fn within(&self, state: usize) -> Vec<usize> {
        let whole = &self.states[state].members;
        let is_part = |&part: &usize| self.states[part].members.is_within(whole);
        (0..state).filter(is_part).collect()
    }

    /// The costs of a range of states.
    pub(crate) fn costs(&self, begin: usize, last: usize) -> LayerCosts {
        let costs = self.states[last].costs;
        match begin.checked_sub(1) {
            Some(before) => costs.without(self.states[before].costs),
            None => costs,
        }
    }
}

/// A graph's edges, seen from its nodes.
struct Links {
    /// Which nodes are layers to be placed.
    kept: Vec<bool>,
    /// The layers that take a layer's output.
    next: Vec<Vec<usize>>,
    /// The layers whose output a layer takes.
    inputs: Vec<Vec<usize>>,
}

impl Links {
    fn new(graph: &LayerGraph) -> Self {
        let nodes = graph.nodes();
        let (mut has_input, mut has_taker) = (vec![false; nodes.len()], vec![false; nodes.len()]);
        for &(from, to) in graph.edges() {
            (has_taker[from], has_input[to]) = (true, true);
        }
        let is_kept = |(place, node): (usize, &GraphNode)| {
            (has_input[place] || !node.description.starts_with("Input"))
                && (has_taker[place] || !node.description.starts_with("__getitem__"))
        };
        let kept: Vec<_> = nodes.iter().enumerate().map(is_kept).collect();
        let mut next = vec![Vec::new(); kept.len()];
        let mut inputs = next.clone();
        for &(from, to) in graph.edges() {
            if kept[from] && kept[to] {
                next[from].push(to);
                inputs[to].push(from);
            }
        }
        Self { kept, next, inputs }
    }

    /// The layers in the only order in which they can be computed. None if there are several orders.
    fn chain(&self, layers: &[usize]) -> Option<Vec<usize>> {
        let mut missing: Vec<_> = self.inputs.iter().map(Vec::len).collect();
        let mut ready = layers.to_vec();
        ready.retain(|&layer| missing[layer] == 0);
        let mut order = Vec::with_capacity(layers.len());
        while let [layer] = ready[..] {
            ready.clear();
            order.push(layer);
            for &next in &self.next[layer] {
                missing[next] -= 1;
                if missing[next] == 0 {
                    ready.push(next);
                }
            }
        }
        Some(order).filter(|order| order.len() == layers.len())
    }

    /// The states of a chain in this order. Costs are running sums: separate sums take seconds for ten
    /// thousand layers.
    fn chain_states(&self, graph: &LayerGraph, order: &[usize]) -> Vec<State> {
        let mut takers: Vec<_> = self.next.iter().map(Vec::len).collect();
        let mut needed = BTreeSet::new();
        let mut costs = LayerCosts::default();
        let states = (1..).zip(order).map(|(first, &layer)| {
            costs.add(layer_costs(&graph.nodes()[layer]));
            for &input in &self.inputs[layer] {
                takers[input] -= 1;
                if takers[input] == 0 {
                    needed.remove(&input);
                }
            }
            if takers[layer] > 0 {
                needed.insert(layer);
            }
            let outputs = needed.iter().map(|&layer| graph.nodes()[layer].activations);
            State {
                members: Layers::First(first),
                costs,
                output: outputs.sum(),
            }
        });
        states.collect()
    }

    /// All sets of layers that include all inputs of their layers, smaller ones first, without the empty
    /// one.
    fn states(&self) -> Result<Vec<Layers>, PartitionError> {
        let nothing = Layers::These(vec![0; self.kept.len().div_ceil(64)]);
        let mut found = HashSet::new();
        let mut queue = VecDeque::from([nothing]);
        let mut states = Vec::new();
        while let Some(state) = queue.pop_front() {
            for layer in self.ready(&state) {
                let grown = state.with(layer);
                if !found.insert(grown.clone()) {
                    continue;
                }
                if states.len() == MOST_STATES {
                    return Err(PartitionError::TooManyStates { most: MOST_STATES });
                }
                states.push(grown.clone());
                queue.push_back(grown);
            }
        }
        Ok(states)
    }

    /// The layers outside a state whose inputs are all in it.
    fn ready<'a>(&'a self, state: &'a Layers) -> impl Iterator<Item = usize> + 'a {
        let beyond = (0..self.kept.len()).filter(|&layer| self.kept[layer] && !state.has(layer));
        beyond.filter(|&layer| self.inputs[layer].iter().all(|&input| state.has(input)))
    }

    fn costs(&self, graph: &LayerGraph, members: &Layers) -> LayerCosts {
        let mut costs = LayerCosts::default();
        let nodes = graph.nodes().iter().enumerate();
        let nodes = nodes.filter(|&(place, _)| self.kept[place] && members.has(place));
        nodes.for_each(|(_, node)| costs.add(layer_costs(node)));
        costs
    }

    /// Bytes of the outputs that layers outside take.
    fn output(&self, graph: &LayerGraph, members: &Layers) -> f64 {
        let needed = |node: usize| {
            members.has(node) && self.next[node].iter().any(|&next| !members.has(next))
        };
        let needed = (0..self.kept.len()).filter(|&node| needed(node));
        needed.map(|node| graph.nodes()[node].activations).sum()
    }
}

fn layer_costs(node: &GraphNode) -> LayerCosts {
    LayerCosts {
        compute: node.forward + node.backward,
        parameters: node.parameters,
        kept: node.activations,
    }
}
