//! How many layers each stage gets.

use crate::error::BuildError;

/// Where a model is cut into stages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Balance {
    /// As many layers in each stage as in any other, the first ones taking one more.
    #[default]
    Even,
    /// The number of layers of each stage, by hand.
    Layers(Vec<usize>),
}

impl Balance {
    /// The number of layers of each of `stages` stages.
    ///
    /// ```
    /// use stovepipe_pipeline::Balance;
    ///
    /// assert_eq!(Balance::Even.cut(9, 2)?, [5, 4]);
    /// assert_eq!(Balance::Layers(vec![2, 7]).cut(9, 2)?, [2, 7]);
    /// assert!(Balance::Layers(vec![2, 6]).cut(9, 2).is_err());
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there are no layers or stages, more stages than layers, or the numbers given by hand are
    /// not those of `stages` stages with a layer each, `layers` in all.
    pub fn cut(&self, layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
        match (layers, stages) {
            (0, _) => return Err(BuildError::NoLayers),
            (_, 0) => return Err(BuildError::NoStages),
            _ if stages > layers => {
                return Err(BuildError::MoreStagesThanLayers { stages, layers });
            }
            _ => {}
        }
        match self {
            Self::Even => Ok((0..stages)
                .map(|stage| layers / stages + usize::from(stage < layers % stages))
                .collect()),
            Self::Layers(balance) => {
                let sum = balance
                    .iter()
                    .fold(0, |sum: usize, &count| sum.saturating_add(count));
                if balance.len() != stages {
                    Err(BuildError::BalanceStages {
                        balance: balance.clone(),
                        stages,
                    })
                } else if let Some(stage) = balance.iter().position(|&count| count == 0) {
                    Err(BuildError::EmptyStage { stage })
                } else if sum != layers {
                    Err(BuildError::BalanceSum {
                        balance: balance.clone(),
                        sum,
                        layers,
                    })
                } else {
                    Ok(balance.clone())
                }
            }
        }
    }
}
