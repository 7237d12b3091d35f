//! Finds cycles.

/// The index of an edge that is part of a cycle, if there is one.
pub(super) fn edge_of_a_cycle(
    nodes: usize,
    edges: impl Iterator<Item = (usize, usize)>,
) -> Option<usize> {
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
