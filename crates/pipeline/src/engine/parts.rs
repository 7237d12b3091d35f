//! What a stage needs of each mini-batch: of one in a step, of one after another in a window.

use std::{collections::HashMap, ops::Range, sync::Arc};

use stovepipe_runtime::{CancelToken, Inbox};

use crate::{
    api::error::FailureCause,
    engine::{
        tape::{Head, LossAndScores},
        worker::ActionError,
    },
    model::{keyed_rng::StepKey, layer::Layer},
};

/// Computes the loss and the scores of an output for a micro-batch.
pub(crate) type MicroBatchLoss<L> =
    Box<dyn Fn(usize, Head, <L as Layer>::Output) -> LossAndScores + Send>;

/// What a stage does with the model's outputs. Stages before the last use `loss` for auxiliary heads.
pub(crate) struct OutputUse<L: Layer> {
    pub(crate) loss: Option<MicroBatchLoss<L>>,
    pub(crate) keep_outputs: bool,
}

/// What a stage needs of a mini-batch. Micro-batches are counted from its first.
pub(crate) struct Part<L: Layer> {
    /// The model's input for the first stage, for each of its micro-batches.
    pub(crate) inputs: HashMap<usize, L::Input>,
    pub(crate) side: Vec<L::Side>,
    /// The samples of each micro-batch, by their index in the mini-batch.
    pub(crate) samples: Arc<[Range<usize>]>,
    pub(crate) outputs: OutputUse<L>,
    /// In training.
    pub(crate) key: Option<StepKey>,
}

/// The parts of the mini-batches that are under way.
pub(crate) struct Parts<L: Layer> {
    /// The micro-batches of each.
    size: usize,
    here: HashMap<usize, Part<L>>,
    to_come: Option<Inbox<Part<L>>>,
}

impl<L: Layer> Parts<L> {
    /// The only mini-batch.
    pub(crate) fn one(part: Part<L>) -> Self {
        Self {
            size: usize::MAX,
            here: [(0, part)].into(),
            to_come: None,
        }
    }

    /// Mini-batches of so many micro-batches, which come one after another.
    pub(crate) fn to_come(size: usize, inbox: Inbox<Part<L>>) -> Self {
        Self {
            size,
            here: HashMap::new(),
            to_come: Some(inbox),
        }
    }

    /// Waits for the mini-batch of a micro-batch.
    pub(crate) fn wait_for(
        &mut self,
        micro_batch: usize,
        cancel: &CancelToken,
    ) -> Result<(), ActionError> {
        let number = micro_batch / self.size;
        if let Some(inbox) = &mut self.to_come
            && !self.here.contains_key(&number)
        {
            let part = inbox.receive(number, cancel);
            let part = part.map_err(|_| ActionError::Cancelled)?;
            self.here.insert(number, part);
        }
        Ok(())
    }

    /// The mini-batch of a micro-batch, and the micro-batch's index there.
    pub(crate) fn of(&self, micro_batch: usize) -> Result<(&Part<L>, usize), FailureCause> {
        let part = self.here.get(&(micro_batch / self.size));
        let part = part.ok_or(FailureCause::Internal("a mini-batch is missing"))?;
        Ok((part, micro_batch % self.size))
    }

    /// The model's input for a micro-batch.
    pub(crate) fn take_input(&mut self, micro_batch: usize) -> Option<L::Input> {
        let part = self.here.get_mut(&(micro_batch / self.size))?;
        part.inputs.remove(&(micro_batch % self.size))
    }

    /// Drops the mini-batch of a micro-batch.
    pub(crate) fn forget(&mut self, micro_batch: usize) {
        self.here.remove(&(micro_batch / self.size));
    }
}
