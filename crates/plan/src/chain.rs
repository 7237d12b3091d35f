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
    /// A cost is negative, infinite or no number, or too large to be added to the others.
    #[error("layer {layer} costs {cost}, which is no finite number of at least 0, or too large")]
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
    cut_chain_by(costs.len(), stages, |_, layer| costs[layer])
}

/// Like [`cut_chain`], for layers whose cost depends on the stage that they are in: `cost` is given
/// the stage and the layer.
///
/// ```
/// use stovepipe_plan::cut_chain_by;
///
/// // The second stage takes half the time of the first.
/// let cut = cut_chain_by(6, 2, |stage, _| [2.0, 1.0][stage])?;
/// assert_eq!(cut, [2, 4]);
/// # Ok::<(), stovepipe_plan::CutError>(())
/// ```
///
/// # Errors
///
/// Those of `cut_chain`.
pub fn cut_chain_by(
    layers: usize,
    stages: usize,
    cost: impl Fn(usize, usize) -> f64,
) -> Result<Vec<usize>, CutError> {
    if stages == 0 {
        return Err(CutError::NoStages);
    }
    if stages > layers {
        return Err(CutError::TooManyStages { stages, layers });
    }
    check(layers, stages, &cost)?;
    let size = (layers, stages);
    let slowest = smallest(size, &cost, |_| true, f64::max).0;
    // As shares of the slowest, so that no square is too large.
    let scale = if slowest > 0.0 { slowest } else { 1.0 };
    let square = |cost: f64| (cost / scale) * (cost / scale);
    let fits = |cost: f64| cost <= slowest;
    Ok(smallest(size, &cost, fits, |sum, stage| sum + square(stage)).1)
}

/// Makes sure that costs are finite, not negative, and still finite when they are added up.
fn check(layers: usize, stages: usize, cost: impl Fn(usize, usize) -> f64) -> Result<(), CutError> {
    for stage in 0..stages {
        let mut sum = 0.0;
        for layer in 0..layers {
            let cost = cost(stage, layer);
            sum += cost;
            if !(cost >= 0.0 && f64::is_finite(sum)) {
                return Err(CutError::Cost { layer, cost });
            }
        }
    }
    Ok(())
}

/// The cut into stages, each of which `fits`, whose costs `join` to the smallest number; and that
/// number.
fn smallest(
    (layers, stages): (usize, usize),
    cost_of: impl Fn(usize, usize) -> f64,
    fits: impl Fn(f64) -> bool,
    join: impl Fn(f64, f64) -> f64,
) -> (f64, Vec<usize>) {
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
                cost += cost_of(stage, begin);
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
