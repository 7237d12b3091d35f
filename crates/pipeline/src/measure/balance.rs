//! How many layers each stage gets.

use stovepipe_plan::{OptimizerState, Profile, Setup, cut_chain_by};
use stovepipe_schedule::{Recompute, Schedule};

use crate::{api::error::BuildError, measure::measured::Measured, model::layer::Layer};

/// Where a model is cut into stages.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Balance {
    /// As many layers in each stage as in any other, the first ones taking one more.
    #[default]
    Even,
    /// The number of layers of each stage, by hand.
    Layers(Vec<usize>),
    /// The cost of each layer, in any unit: the most costly stage costs as little as can be.
    Costs(Vec<f64>),
    /// What each layer costs: the slowest stage takes as little as can be. Stages that compute forward
    /// passes again count them twice.
    Times(Measured),
    /// What each layer costs: of all cuts, the one whose step is foretold to take least.
    Planned(Measured),
}

impl Balance {
    /// By what `cost` says of each layer, given with its place.
    ///
    /// ```
    /// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, LayerError};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
    /// # }
    /// use stovepipe_pipeline::{Balance, count_parameters};
    ///
    /// let layers: Vec<_> = [(9, 9), (9, 9), (9, 30)].map(|(inputs, outputs)| Dense {
    ///     linear: LinearConfig::new(inputs, outputs).init(&Device::flex()),
    /// }).into();
    /// let balance = Balance::by_cost(&layers, |_, layer| count_parameters(layer) as f64)?;
    /// assert_eq!(balance.cut(3, 2)?, [2, 1]);
    /// # Ok::<(), stovepipe_pipeline::BuildError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a cost is negative, infinite or NaN.
    pub fn by_cost<L: Layer>(
        layers: &[L],
        mut cost: impl FnMut(usize, &L) -> f64,
    ) -> Result<Self, BuildError> {
        let costs = layers.iter().enumerate().map(|(index, layer)| {
            let cost = cost(index, layer);
            match cost.is_finite() && cost >= 0.0 {
                true => Ok(cost),
                false => Err(BuildError::Cost {
                    layer: index,
                    name: layer.name(),
                    cost,
                }),
            }
        });
        Ok(Self::Costs(costs.collect::<Result<_, _>>()?))
    }

    /// By the time that forward and backward took.
    #[must_use]
    pub fn by_time(measured: impl Into<Measured>) -> Self {
        Self::Times(measured.into())
    }

    /// By the memory that training needs.
    #[must_use]
    pub fn by_size(profile: &Profile) -> Self {
        Self::Costs(profile.sizes())
    }

    /// The number of layers of each of `stages` stages, if nothing is computed twice.
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
    /// If there are no layers or stages, more stages than layers, the numbers given by hand are
    /// not those of `stages` stages with a layer each, `layers` in all, or the costs are not those
    /// of `layers` layers.
    pub fn cut(&self, layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
        match (layers, stages) {
            (0, _) => Err(BuildError::NoLayers),
            (_, 0) => Err(BuildError::NoStages),
            _ if stages > layers => Err(BuildError::MoreStagesThanLayers { stages, layers }),
            _ => self.cut_into(layers, stages),
        }
    }

    /// The cut for a schedule, of a model with at least as many layers as there are stages.
    pub(crate) fn cut_scheduled(
        &self,
        layers: usize,
        schedule: &Schedule,
        recompute: Recompute,
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
                    state: OptimizerState::default(),
                };
                Ok(match self {
                    Self::Times(_) => setup.balanced_cut()?,
                    _ => setup.best_cut()?.balance,
                })
            }
            _ => self.cut(layers, schedule.stages()),
        }
    }

    /// The cut into stages, from one to as many as there are layers.
    fn cut_into(&self, layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
        match self {
            Self::Even => Ok((0..stages)
                .map(|stage| layers / stages + usize::from(stage < layers % stages))
                .collect()),
            Self::Layers(balance) => by_hand(balance, layers, stages),
            Self::Costs(costs) => by_costs(costs.len(), layers, stages, |_, layer| costs[layer]),
            Self::Times(measured) | Self::Planned(measured) => {
                let times: Vec<_> = (0..stages)
                    .map(|stage| measured.profile(stage).times())
                    .collect();
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
    match costs == layers {
        true => Ok(cut_chain_by(layers, stages, cost)?),
        false => Err(BuildError::CostCount { costs, layers }),
    }
}

fn by_hand(balance: &[usize], layers: usize, stages: usize) -> Result<Vec<usize>, BuildError> {
    let sum = balance
        .iter()
        .fold(0, |sum: usize, &count| sum.saturating_add(count));
    let balance = balance.to_vec();
    if balance.len() != stages {
        Err(BuildError::BalanceStages { balance, stages })
    } else if let Some(stage) = balance.iter().position(|&count| count == 0) {
        Err(BuildError::EmptyStage { stage })
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
