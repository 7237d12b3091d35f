//! The best cut of a chain of layers.

use thiserror::Error;

/// A chain that cannot be cut that way.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum CutError {
    /// No stage was asked for.
    #[error("a chain is cut into at least one stage")]
    NoStages,
    /// A stage would have no layer.
    #[error("{stages} stages are more than the {layers} layers")]
    TooManyStages {
        /// Stages asked for.
        stages: usize,
        /// Layers of the chain.
        layers: usize,
    },
    /// A cost is negative, infinite or no number.
    #[error("layer {layer} costs {cost}, which is no finite number of at least 0")]
    Cost {
        /// The layer.
        layer: usize,
        /// Its cost.
        cost: f64,
    },
}

/// The number of layers of each stage, such that the most costly stage costs as little as any cut
/// into `stages` stages of at least one layer allows. Of several such cuts it takes one whose
/// stages differ least (by the sum of their squares).
///
/// Exact, by dynamic programming over the layers and stages: n²·k steps.
///
/// ```
/// use stovepipe_plan::cut_chain;
///
/// assert_eq!(cut_chain(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2)?, [4, 2]); // 10 and 11
/// assert_eq!(cut_chain(&[0.0, 0.0], 2)?, [1, 1]);
/// # Ok::<(), stovepipe_plan::CutError>(())
/// ```
///
/// # Errors
///
/// If there are no stages or more than layers, or a cost is negative, infinite or NaN.
pub fn cut_chain(costs: &[f64], stages: usize) -> Result<Vec<usize>, CutError> {
    let layers = costs.len();
    if stages == 0 {
        return Err(CutError::NoStages);
    }
    if stages > layers {
        return Err(CutError::TooManyStages { stages, layers });
    }
    let is_cost = |cost: f64| cost.is_finite() && cost >= 0.0;
    if let Some(layer) = costs.iter().position(|&cost| !is_cost(cost)) {
        let cost = costs[layer];
        return Err(CutError::Cost { layer, cost });
    }
    let slowest = smallest(costs, stages, |_| true, f64::max).0;
    let square = |cost: f64| cost * cost;
    let fits = |cost: f64| cost <= slowest;
    Ok(smallest(costs, stages, fits, |sum, stage| sum + square(stage)).1)
}

/// The cut into stages, each of which `fits`, whose costs `join` to the smallest number; and that
/// number.
fn smallest(
    costs: &[f64],
    stages: usize,
    fits: impl Fn(f64) -> bool,
    join: impl Fn(f64, f64) -> f64,
) -> (f64, Vec<usize>) {
    let layers = costs.len();
    // best[end]: of the first `end` layers in the stages so far; begins[stage][end]: where the last
    // of these stages begins.
    let mut best = vec![f64::INFINITY; layers + 1];
    best[0] = 0.0;
    let mut begins = Vec::with_capacity(stages);
    for stage in 0..stages {
        let mut next = vec![f64::INFINITY; layers + 1];
        let mut begin_of = vec![stage; layers + 1];
        for end in stage + 1..=layers - (stages - 1 - stage) {
            let mut cost = 0.0;
            for begin in (stage..end).rev() {
                cost += costs[begin];
                let joined = join(best[begin], cost);
                if fits(cost) && joined < next[end] {
                    (next[end], begin_of[end]) = (joined, begin);
                }
            }
        }
        best = next;
        begins.push(begin_of);
    }
    let mut end = layers;
    let mut cut: Vec<_> = (begins.iter().rev())
        .map(|begin_of| {
            let count = end - begin_of[end];
            end = begin_of[end];
            count
        })
        .collect();
    cut.reverse();
    (best[layers], cut)
}
