//! The best cut of a chain of layers.
//!
//! In three steps: how slow the slowest stage must be, roughly ([`slowest`]); then to the last bit
//! ([`slowest`] again, which now looks only where rounding decides); then, within that limit, the
//! cut whose stages differ least ([`even`]).

mod even;
mod slowest;
mod sums;

use thiserror::Error;

pub(crate) use slowest::join_stage;
pub(crate) use sums::Sums;

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
    /// A device's speed is no finite number above 0.
    #[error("device {device} has the speed {speed}, which is no finite number above 0")]
    Speed {
        /// The device.
        device: usize,
        /// Its speed.
        speed: f64,
    },
}

/// The number of layers of each stage, such that the most costly stage costs as little as any cut
/// into `stages` stages of at least one layer allows. Of several such cuts it takes one whose
/// stages differ least (by the sum of their squares).
///
/// Exact: a stage costs what its layers add up to from the last to the first, and the slowest stage
/// of the cut is the least there is, to the last bit; the squares are least up to rounding. n·k·log n
/// steps for n layers and k stages, and up to n²·k where long runs of layers are so cheap that
/// nothing but rounding tells cuts apart.
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
    let chain = Chain::new(layers, stages, cost)?;
    let slowest = chain.slowest();
    Ok(chain.evenest(slowest))
}

/// A chain that can be cut: at least as many layers as stages, at least one stage, sound costs.
pub(crate) struct Chain<F> {
    layers: usize,
    stages: usize,
    cost: F,
}

impl<F: Fn(usize, usize) -> f64> Chain<F> {
    pub fn new(layers: usize, stages: usize, cost: F) -> Result<Self, CutError> {
        if stages == 0 {
            return Err(CutError::NoStages);
        }
        if stages > layers {
            return Err(CutError::TooManyStages { stages, layers });
        }
        check(layers, stages, &cost)?;
        Ok(Self {
            layers,
            stages,
            cost,
        })
    }
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
