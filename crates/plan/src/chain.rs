//! The best cut of a chain of layers.
//!
//! In three steps: the cost of the slowest stage up to rounding ([`slowest`]); the same to the last bit,
//! looking only where rounding decides; within that limit, the cut whose stages differ least ([`even`]).

mod even;
mod slowest;
mod sums;

use stovepipe_schedule::count;
use thiserror::Error;

pub(crate) use slowest::join_stage;
pub(crate) use sums::Sums;

/// Why a chain cannot be cut.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum CutError {
    /// No stage was asked for.
    #[error("a chain is cut into at least one stage")]
    NoStages,
    /// A stage would have no layer.
    #[error("{} are more than the {}", count(*stages, "stage"), count(*layers, "layer"))]
    TooManyStages { stages: usize, layers: usize },
    /// A cost is negative, infinite or NaN, or too large to be added to the others.
    #[error("layer {layer} costs {cost}, which is not a finite number of at least 0, or too large")]
    Cost { layer: usize, cost: f64 },
    /// A device's speed is not a finite number above 0.
    #[error("device {device} has the speed {speed}, which is not a finite number above 0")]
    Speed { device: usize, speed: f64 },
}

/// Cuts a chain into stages of at least one layer, so that the most expensive stage is as cheap as
/// possible. Of several such cuts it returns one whose stages differ least (by the sum of squares), as
/// the number of layers of each stage.
///
/// The cost of a stage is the sum of its layers from the last to the first. The cost of the most
/// expensive stage is minimal to the last bit, the sum of squares up to rounding. It takes n·k·log n
/// steps for n layers and k stages, and up to n²·k if long runs of layers are so cheap that cuts differ
/// by rounding only.
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

/// Like [`cut_chain`], for layers whose cost depends on the stage: `cost(stage, layer)`.
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

/// A chain that can be cut: at least one stage, at least as many layers as stages, valid costs.
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
        Ok(Self {
            layers,
            stages,
            cost,
        })
    }
}
