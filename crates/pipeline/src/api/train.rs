//! A training step, in four phases: the mini-batch is split, the schedule runs, how it went is agreed on,
//! and the model changes or not.

mod agree;
mod commit;
mod run;
mod split;

use std::sync::Arc;

use self::{agree::Outcome, split::MiniBatch};
use crate::{
    api::{
        batch::{Batch, Step},
        error::StepError,
        gradient_store::GradientStore,
        objective::Objective,
        pipeline::Pipeline,
    },
    model::{flow::Flow, layer::Layer},
};

impl<L: Layer> Pipeline<L> {
    /// Whether [`train_step_into`](Self::train_step_into) puts the gradients of a layer into the store of its stage: not
    /// if some are to be added to those of other layers or of replicas.
    ///
    /// ```
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::{Pipeline, doc_example::Dense};
    ///
    /// let builder = Pipeline::builder(Dense::layers(&[3, 4, 2]));
    /// let pipeline = builder.devices([Device::flex()]).build()?;
    /// assert!(pipeline.stores_gradients(0) && pipeline.stores_gradients(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stores_gradients(&self, layer: usize) -> bool {
        let engine = &self.engine;
        let mut places = engine.ties.places().iter().flatten();
        let shared = engine.shared.as_ref();
        let is_tied = places.any(|place| place.0 == layer)
            || shared.is_some_and(|shared| shared.touches(layer));
        let stage = (engine.stages.iter()).position(|stage| stage.layers.contains(&layer));
        let replicas = stage.map_or(0, |stage| engine.seats().of_stage(stage).len());
        !is_tied && replicas == 1
    }

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
        self.train_step_into(batch, objective, &[])
    }

    /// The same, with the gradients of each stage in its store, if it has one: what lies there is not in
    /// [`Step::gradients`]. What a stage has on its device meanwhile are the gradients of one layer.
    ///
    /// Gradients of parameters in several layers, and of stages with replicas, are in the result all the same.
    ///
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use burn::{module::list_param_ids, optim::GradientsParams, tensor::{Device, Int, Tensor}};
    /// use stovepipe_pipeline::{
    ///     CrossEntropy, GradientStore, Pipeline, doc_example::Dense, error::BoxedError,
    /// };
    ///
    /// /// Of one layer, in memory.
    /// #[derive(Default)]
    /// struct Kept(Mutex<Option<GradientsParams>>);
    ///
    /// impl GradientStore<Dense> for Kept {
    ///     fn take(&self, _: &Dense) -> Result<GradientsParams, BoxedError> {
    ///         Ok(self.0.lock().map_err(|_| "a panic")?.take().unwrap_or_default())
    ///     }
    ///
    ///     fn put(&self, _: &Dense, gradients: GradientsParams) -> Result<(), BoxedError> {
    ///         *self.0.lock().map_err(|_| "a panic")? = Some(gradients);
    ///         Ok(())
    ///     }
    ///
    ///     fn clear(&self) {
    ///         let _ = self.take(&Dense::layers(&[1, 1])[0]);
    ///     }
    /// }
    ///
    /// let device = Device::flex();
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 2]))
    ///     .devices([device.clone()])
    ///     .micro_batches(2)
    ///     .build()?;
    /// let labels = Tensor::<1, Int>::zeros([4], &device);
    /// let batch = (Tensor::ones([4, 3], &device), labels);
    /// let store = Arc::new(Kept::default());
    /// let stores = [Some(store.clone() as Arc<dyn GradientStore<Dense>>)];
    /// let step = pipeline.train_step_into(batch, &CrossEntropy::new(), &stores)?;
    /// let weight = list_param_ids(&pipeline)[0];
    /// assert!(step.gradients.get::<2>(weight).is_none());
    /// assert!(store.take(&pipeline.layers()[0])?.get::<2>(weight).is_some());
    /// # Ok::<(), BoxedError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`train_step`](Self::train_step), or if a store fails. Stores then hold no gradients that can be used.
    pub fn train_step_into<T: Flow>(
        &self,
        batch: impl Into<Batch<L::Input, T, L::Side>>,
        objective: &impl Objective<L::Output, T>,
        stores: &[Option<Arc<dyn GradientStore<L>>>],
    ) -> Result<Step<L>, StepError> {
        let prepare = || {
            let turn = self.engine.begin_step()?;
            let batch = MiniBatch::split(self, batch.into(), objective, stores)?;
            Ok::<_, StepError>((turn, batch))
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
