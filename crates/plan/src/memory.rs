//! The memory of a stage, as predicted by planning and before a run.

use std::ops::Add;

use serde::{Deserialize, Serialize};

/// How many numbers training keeps for each parameter, in addition to its value and gradient: 0 for
/// plain gradient descent, 1 for momentum, 2 for Adam; one more for a moving average of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OptimizerState {
    /// On the device of their parameter.
    pub on_device: u8,
    /// Elsewhere, but for those of three layers while these are updated.
    pub offloaded: u8,
    /// Whether gradients are elsewhere as well, but for those of three layers: of stages without replicas.
    #[serde(default)]
    pub offloads_gradients: bool,
    /// Whether gradients are summed over several mini-batches: one number more, where gradients are.
    #[serde(default)]
    pub accumulates: bool,
}

impl OptimizerState {
    /// So many numbers on the device.
    ///
    /// ```
    /// use stovepipe_plan::OptimizerState;
    ///
    /// assert_eq!(OptimizerState::new(2), OptimizerState::default()); // Adam
    /// ```
    #[must_use]
    pub const fn new(on_device: u8) -> Self {
        Self {
            on_device,
            offloaded: 0,
            offloads_gradients: false,
            accumulates: false,
        }
    }
}

impl Default for OptimizerState {
    fn default() -> Self {
        Self::new(2)
    }
}

/// Peak bytes of a stage, or of a worker with several.
///
/// Not included: code, buffers of threads, freed memory that a library keeps, targets, and the next mini-batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemoryUse {
    /// The parameters, and what a step's copies of the layers take besides. Under asynchronous schedules: all versions of
    /// the weights, and those that a window starts with.
    pub parameters: u64,
    /// The sum of the gradients of all micro-batches, which may not be there yet when most is needed.
    pub gradients: u64,
    /// The optimizer state, and sums of gradients over several mini-batches. Under asynchronous schedules also that of a
    /// window's start.
    pub optimizer: u64,
    /// The mini-batch's input, on workers with the first stage; on a GPU, that of micro-batches in flight.
    #[serde(default)]
    pub batch: u64,
    /// What enters layers that will be recomputed, of each micro-batch that waits. Skips on their way between stages:
    /// as many as if all stages were equally fast. On a GPU, another message from each neighbour.
    pub inputs: u64,
    /// Activations of micro-batches between forward and backward; of one that is recomputed, with its workspace.
    pub activations: u64,
    /// What another running layer needs besides, with its gradients before they are added to the sum. Unless it was
    /// [measured](crate::LayerProfile::workspace), these alone.
    #[serde(default)]
    pub workspace: u64,
}

impl MemoryUse {
    /// The sum.
    #[must_use]
    pub fn total(self) -> u64 {
        let at_rest = [self.parameters, self.gradients, self.optimizer, self.batch];
        let passes = [self.inputs, self.activations, self.workspace];
        let parts = at_rest.into_iter().chain(passes);
        parts.fold(0, u64::saturating_add)
    }

    /// What a stage with `parameters` bytes of parameters, of which `trained` are trained, always keeps in
    /// training.
    ///
    /// ```
    /// use stovepipe_plan::{MemoryUse, OptimizerState};
    ///
    /// let memory = MemoryUse::at_rest(400, 400, OptimizerState::new(2));
    /// assert_eq!((memory.parameters, memory.gradients, memory.optimizer), (400, 400, 800));
    /// assert_eq!(MemoryUse { activations: 100, ..memory }.total(), 1700);
    /// assert_eq!(MemoryUse::at_rest(400, 10, OptimizerState::new(2)).total(), 400 + 3 * 10);
    /// ```
    #[must_use]
    pub fn at_rest(parameters: u64, trained: u64, state: OptimizerState) -> Self {
        let gradients = trained * u64::from(!state.offloads_gradients);
        let states = trained.saturating_mul(u64::from(state.on_device));
        Self {
            parameters,
            gradients,
            optimizer: states.saturating_add(gradients * u64::from(state.accumulates)),
            ..Self::default()
        }
    }
}

impl Add for MemoryUse {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            parameters: self.parameters.saturating_add(other.parameters),
            gradients: self.gradients.saturating_add(other.gradients),
            optimizer: self.optimizer.saturating_add(other.optimizer),
            batch: self.batch.saturating_add(other.batch),
            inputs: self.inputs.saturating_add(other.inputs),
            activations: self.activations.saturating_add(other.activations),
            workspace: self.workspace.saturating_add(other.workspace),
        }
    }
}
