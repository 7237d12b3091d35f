//! A training step, in four phases: the mini-batch is split, the schedule runs, how it went is agreed on,
//! and the model changes or not.

mod agree;
mod commit;
mod run;
mod split;

use self::{agree::Outcome, split::MiniBatch};
use crate::{
    api::{
        batch::{Batch, Step},
        error::StepError,
        objective::Objective,
        pipeline::Pipeline,
    },
    model::{flow::Flow, layer::Layer},
};

impl<L: Layer> Pipeline<L> {
    /// Runs a mini-batch forward and backward. The batch is a tuple, `(input, target)` or `(input, target,
    /// side)`, or a [`Batch`].
    ///
    /// Parameters do not change: an optimizer applies the gradients. Running statistics change once, by
    /// those of the whole mini-batch.
    ///
    /// # Errors
    ///
    /// If the batch is empty or its parts have different sizes, a layer fails, the loss or a gradient is
    /// NaN or infinite (in f16: with a [scale](crate::LossScaler) below 1), or the step is stopped or
    /// stalls. The model does not change then, and neither do running statistics.
    pub fn train_step<T: Flow>(
        &self,
        batch: impl Into<Batch<L::Input, T, L::Side>>,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Step<L>, StepError> {
        let prepare = || {
            let turn = self.engine.begin_step()?;
            Ok::<_, StepError>((turn, MiniBatch::split(self, batch.into(), objective)?))
        };
        let ((_turn, mut batch), first) = self.meet(prepare(), |(_, batch)| {
            (batch.terms(self), batch.trainable_from)
        })?;
        batch.trainable_from = first.into_iter().min().unwrap_or(self.layers().len());
        let mut result = self.run(&batch, objective, false)?;
        match self.agree(&mut result) {
            Outcome::Succeeded => self.commit(result, batch, false),
            Outcome::Overflowed => self.commit(result, batch, true),
            Outcome::NotFinite(what) => {
                // The step draws the same numbers again, so the same layer fails, now with checks.
                let place = match self.run(&batch, objective, true) {
                    Ok(_) => None,
                    Err(StepError::Failed(failure)) => Some(failure),
                    Err(other) => return Err(other),
                };
                Err(StepError::NotFinite { what, place })
            }
        }
    }
}
