//! How many layers each stage gets.

use stovepipe_plan::{OptimizerState, Profile, Setup, cut_chain_by};
use stovepipe_schedule::{Recompute, Schedule, WeightPolicy};

use crate::{
    api::{batch::even_parts, error::BuildError},
    measure::measured::Measured,
    model::{layer::Layer, wiring::LayerName},
};

/// Where a model is cut into stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Balance {
    /// The same number of layers in each stage; the first ones may have one more.
    #[default]
    Even,
    /// This number of layers in each stage.
    Layers(Vec<usize>),
    /// The cost of each layer, in any unit: minimises the cost of the most expensive stage.
    Costs(Vec<f64>),
    /// Measured layers: minimises the time of the slowest stage. Recomputed forward passes count twice.
    Times(Measured),
    /// Measured layers: the cut with the shortest predicted step.
    Planned(Measured),
}

impl Balance {
    /// Cuts by a cost for each layer; `cost` gets its index too.
    ///
    /// ```
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Balance, count_parameters};
    ///
    /// let layers = Dense::layers(&[9, 9, 9, 30]);
    /// let balance = Balance::by_cost(&layers, |_, layer| count_parameters(layer) as f64)?;
    /// assert_eq!(balance.cut(3, 2)?, [2, 1]);
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a cost is negative, NaN or infinite.
    pub fn by_cost<L: Layer>(
        layers: &[L],
        mut cost: impl FnMut(usize, &L) -> f64,
    ) -> Result<Self, BuildError> {
        let costs = layers.iter().enumerate().map(|(index, layer)| {
            let cost = cost(index, layer);
            if cost.is_finite() && cost >= 0.0 {
                return Ok(cost);
            }
            let name = layer.name();
            let layer = LayerName { index, name };
            Err(BuildError::Cost { layer, cost })
        });
        Ok(Self::Costs(costs.collect::<Result<_, _>>()?))
    }

    /// Cuts by the time of forward and backward.
    #[must_use]
    pub fn by_time(measured: impl Into<Measured>) -> Self {
        Self::Times(measured.into())
    }

    /// Cuts by the memory that training needs.
    #[must_use]
    pub fn by_size(profile: &Profile) -> Self {
        Self::Costs(profile.sizes())
    }

    /// The number of layers of each of `stages` stages, without recomputation.
    ///
    /// ```
    /// use stovepipe_pipeline::Balance;
    ///
    /// assert_eq!(Balance::Even.cut(9, 2)?, [5, 4]);
    /// assert_eq!(Balance::Layers(vec![2, 7]).cut(9, 2)?, [2, 7]);
    /// assert_eq!(Balance::Costs(vec![1.0, 1.0, 1.0, 3.0]).cut(4, 2)?, [3, 1]);
    /// assert!(Balance::Layers(vec![2, 6]).cut(9, 2).is_err());
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there are no layers or stages, there are more stages than layers, given numbers of layers do not
    /// fit, or there is not one cost per layer.
    pub fn cut(&self, layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
        match (layers, stages) {
            (0, _) => Err(BuildError::NoLayers),
            (_, 0) => Err(BuildError::NoStages),
            _ if stages > layers => Err(BuildError::MoreStagesThanLayers { stages, layers }),
            _ => self.cut_into(layers, stages),
        }
    }

    /// The cut for a schedule. There are at least as many layers as stages.
    pub(crate) fn cut_scheduled(
        &self,
        layers: usize,
        schedule: &Schedule,
        (recompute, weights, bucket): (&Recompute, WeightPolicy, usize),
    ) -> Result<Vec<usize>, BuildError> {
        match self {
            Self::Times(measured) | Self::Planned(measured) => {
                let costs = measured.profile(0).layers.len();
                if costs != layers {
                    return Err(BuildError::CostCount { costs, layers });
                }
                let workers = schedule.workers().len();
                let setup = Setup {
                    profiles: measured.profiles(),
                    machine: &measured.machine(workers),
                    devices: &(0..workers).collect::<Vec<_>>(),
                    schedule,
                    recompute,
                    weights,
                    state: OptimizerState::default(),
                    bucket: bucket as u64,
                };
                Ok(match self {
                    Self::Times(_) => setup.balanced_cut()?,
                    _ => setup.best_cut()?.balance,
                })
            }
            _ => self.cut(layers, schedule.stages()),
        }
    }

    /// The cut into stages. There is at least one, and at most one per layer.
    fn cut_into(&self, layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
        match self {
            Self::Even => Ok(even_parts(layers, stages)),
            Self::Layers(balance) => checked(balance, layers, stages),
            Self::Costs(costs) => by_costs(costs.len(), layers, stages, |_, layer| costs[layer]),
            Self::Times(measured) | Self::Planned(measured) => {
                let times = (0..stages).map(|stage| measured.profile(stage).times());
                let times: Vec<_> = times.collect();
                let costs = times.iter().map(Vec::len).min().unwrap_or_default();
                by_costs(costs, layers, stages, |stage, layer| times[stage][layer])
            }
        }
    }
}

fn by_costs(
    costs: usize,
    layers: usize,
    stages: usize,
    cost: impl Fn(usize, usize) -> f64,
) -> Result<Vec<usize>, BuildError> {
    if costs != layers {
        return Err(BuildError::CostCount { costs, layers });
    }
    Ok(cut_chain_by(layers, stages, cost)?)
}

fn checked(balance: &[usize], layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
    let balance = balance.to_vec();
    let sum = (balance.iter()).fold(0, |sum: usize, &count| sum.saturating_add(count));
    if balance.len() != stages {
        Err(BuildError::BalanceStages { balance, stages })
    } else if let Some(stage) = balance.iter().position(|&count| count == 0) {
        Err(BuildError::EmptyStage(stage))
    } else if sum != layers {
        Err(BuildError::BalanceSum {
            balance,
            sum,
            layers,
        })
    } else {
        Ok(balance)
    }
}
