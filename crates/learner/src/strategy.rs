//! How burn-train trains a pipeline.

use std::sync::Arc;

use burn::{data::dataloader::Progress, optim::GradientsAccumulator};
use burn_train::{
    EventProcessorTraining, Interrupter, ItemLazy, Learner, LearnerEvent,
    SupervisedLearningStrategy, SupervisedTrainingEventProcessor, TrainLoader, TrainingComponents,
    TrainingError, TrainingItem, TrainingStrategy, ValidLoader, train::WorkerFailure,
};
use stovepipe_pipeline::{Flow, Layer, Objective, StepError};

use crate::Staged;

/// A strategy for `SupervisedTraining` that trains a [`Staged`] model. It gives the same bits as the default strategy,
/// and
///
/// - ends the training with an error if a step fails (`LearningResult::error`), where the default one panics;
/// - continues the count of steps when a training resumes, on which random numbers depend: with a loader that yields
///   batches of one size, the last of an epoch excepted;
/// - ends the training as an interruption does if the pipeline's
///   [stop handle](stovepipe_pipeline::Pipeline::stop_handle) is used;
/// - tells layers that change while they train, such as drop-path,
///   [how far](stovepipe_pipeline::Pipeline::set_progress) the training is.
///
/// ```
/// # use burn::{data::{dataloader::{DataLoaderBuilder, batcher::Batcher}, dataset::InMemDataset}, optim::SgdConfig};
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_train::{ClassificationOutput, Learner, SupervisedTraining};
/// # use stovepipe_pipeline::doc_example::Dense;
/// use stovepipe_learner::{Bars, PipelineStrategy, Staged};
/// use stovepipe_pipeline::{Batch, CrossEntropy, Pipeline};
///
/// # #[derive(Clone)]
/// # struct Points;
/// # impl Batcher<f32, (Tensor<2>, Tensor<1, Int>)> for Points {
/// #     fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
/// #         (Tensor::ones([items.len(), 3], device), Tensor::zeros([items.len()], device))
/// #     }
/// # }
/// # let loader = || DataLoaderBuilder::new(Points).batch_size(4).build(InMemDataset::new(vec![0.0; 8]));
/// # let (train, valid, directory) = (loader(), loader(), tempfile::tempdir()?);
/// let pipeline = Pipeline::builder(Dense::layers(&[3, 8, 2]))
///     .devices([Device::flex(), Device::flex()])
///     .build()?;
/// let model = Staged::new(pipeline, CrossEntropy::new(), Batch::from, ClassificationOutput::new);
/// let result = SupervisedTraining::new(directory.path(), train, valid)
///     .with_training_strategy(PipelineStrategy.into())
/// #    .with_application_logger(None)
///     .renderer(Box::new(Bars::new()))
///     .launch(Learner::new(model, SgdConfig::new().init(), 0.1));
/// assert!(result.error.is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct PipelineStrategy;

impl<L, O, I, T, M> From<PipelineStrategy> for TrainingStrategy<Staged<L, O, I, T, M>>
where
    L: Layer,
    O: Objective<L::Output, T> + Clone + Send + 'static,
    I: Send + 'static,
    T: Flow,
    M: ItemLazy + 'static,
{
    fn from(strategy: PipelineStrategy) -> Self {
        Self::Custom(Arc::new(strategy))
    }
}

impl<L, O, I, T, M> SupervisedLearningStrategy<Staged<L, O, I, T, M>> for PipelineStrategy
where
    L: Layer,
    O: Objective<L::Output, T> + Clone + Send + 'static,
    I: Send + 'static,
    T: Flow,
    M: ItemLazy + 'static,
{
    fn fit(
        &self,
        components: TrainingComponents<Staged<L, O, I, T, M>>,
        learner: Learner<Staged<L, O, I, T, M>>,
        train: TrainLoader<Staged<L, O, I, T, M>>,
        valid: ValidLoader<Staged<L, O, I, T, M>>,
        first_epoch: usize,
    ) -> (
        Staged<L, O, I, T, M>,
        SupervisedTrainingEventProcessor<Staged<L, O, I, T, M>>,
    ) {
        let device = learner.model().first_device();
        let epochs = components.num_epochs;
        let (mut checkpointer, mut early_stopping) =
            (components.checkpointer, components.early_stopping);
        let mut training = Training {
            learner,
            events: components.event_processor,
            interrupter: components.interrupter,
            accumulate: components.grad_accumulation.unwrap_or(1),
            epochs,
            resumes: first_epoch > 1,
        };
        let (train, valid) = (train.to_device(&device), valid.to_device(&device));
        for epoch in first_epoch..=epochs {
            training.train(&train, epoch);
            if training.is_stopped() {
                break;
            }
            training.validate(&valid, epoch);
            training.tell(Split::Train, LearnerEvent::EndEpoch(epoch));
            // Both read what metrics have written.
            if checkpointer.is_some() || early_stopping.is_some() {
                training.interrupter.fail_on_error(training.events.flush());
            }
            if training.is_stopped() {
                break;
            }
            let store = &components.event_store;
            if let Some(checkpointer) = &mut checkpointer {
                checkpointer.checkpoint(&training.learner, epoch, store);
            }
            if let Some(early_stopping) = &mut early_stopping
                && early_stopping.should_stop(epoch, store)
            {
                break;
            }
        }
        (training.learner.model(), training.events)
    }
}

struct Training<L, O, I, T, M>
where
    L: Layer,
    O: Objective<L::Output, T> + Clone + Send + 'static,
    I: Send + 'static,
    T: Flow,
    M: ItemLazy + 'static,
{
    learner: Learner<Staged<L, O, I, T, M>>,
    events: SupervisedTrainingEventProcessor<Staged<L, O, I, T, M>>,
    interrupter: Interrupter,
    /// Mini-batches of an update.
    accumulate: usize,
    epochs: usize,
    /// Whether earlier steps are still to be counted.
    resumes: bool,
}

impl<L, O, I, T, M> Training<L, O, I, T, M>
where
    L: Layer,
    O: Objective<L::Output, T> + Clone + Send + 'static,
    I: Send + 'static,
    T: Flow,
    M: ItemLazy + 'static,
{
    fn is_stopped(&self) -> bool {
        self.interrupter.should_stop()
    }

    fn train(&mut self, loader: &TrainLoader<Staged<L, O, I, T, M>>, epoch: usize) {
        self.tell(Split::Train, begin(epoch, loader.num_items()));
        let (mut batches, mut iteration, mut waiting) = (loader.iter(), 0, 0);
        let (mut sum, mut before) = (GradientsAccumulator::new(), 0);
        while let Some(item) = self.unless_failed(batches.next()) {
            let (progress, model) = (batches.progress(), self.learner.model());
            self.count_earlier(&model, &progress, epoch);
            let done = before as f64 / progress.items_total.max(1) as f64;
            (model.pipeline()).set_progress(((epoch - 1) as f64 + done) / self.epochs as f64);
            before = progress.items_processed;
            iteration += 1;
            let Some(output) = self.unless_ended(model.try_train(item)) else {
                break;
            };
            let gradients = if self.accumulate > 1 {
                sum.accumulate(&model, output.grads);
                waiting += 1;
                let is_due = waiting == self.accumulate || progress.is_completed();
                is_due.then(|| {
                    waiting = 0;
                    sum.grads()
                })
            } else {
                Some(output.grads)
            };
            drop(model);
            if let Some(gradients) = gradients {
                self.learner.lr_step();
                self.learner.optimizer_step(gradients);
            }
            let rate = Some(self.learner.lr_current());
            let item = TrainingItem::new(output.item, progress, Some(iteration), rate);
            self.tell(Split::Train, LearnerEvent::ProcessedItem(item));
            if self.is_stopped() {
                break;
            }
        }
        self.tell(Split::Train, LearnerEvent::EndSplit(epoch));
    }

    fn validate(&mut self, loader: &ValidLoader<Staged<L, O, I, T, M>>, epoch: usize) {
        self.tell(Split::Valid, begin(epoch, loader.num_items()));
        let (model, mut batches, mut iteration) = (self.learner.model(), loader.iter(), 0);
        while let Some(item) = self.unless_failed(batches.next()) {
            iteration += 1;
            let Some(output) = self.unless_ended(model.try_infer(item)) else {
                break;
            };
            let item = TrainingItem::new(output, batches.progress(), Some(iteration), None);
            self.tell(Split::Valid, LearnerEvent::ProcessedItem(item));
            if self.is_stopped() {
                break;
            }
        }
        self.tell(Split::Valid, LearnerEvent::EndSplit(epoch));
    }

    /// Tells Burn what has happened. An error of its own ends the training.
    fn tell(&mut self, split: Split, event: LearnerEvent<M>) {
        let told = match split {
            Split::Train => self.events.process_train(event),
            Split::Valid => self.events.process_valid(event),
        };
        self.interrupter.fail_on_error(told);
    }

    /// The item that was loaded. Loading that fails ends the training.
    fn unless_failed<R>(&self, loaded: Option<Result<R, impl Into<TrainingError>>>) -> Option<R> {
        let fail = |error| self.interrupter.fail(error);
        loaded?.map_err(fail).ok()
    }

    /// What a step returned. One that did not end well ends the training; a pipeline's stop handle is no error.
    fn unless_ended<R>(&self, step: Result<R, StepError>) -> Option<R> {
        let end = |error| match error {
            StepError::Stopped => self.interrupter.stop(Some("the pipeline was stopped")),
            error => self.interrupter.fail(failed(&error)),
        };
        step.map_err(end).ok()
    }

    /// Before the first step of a training that resumes: the steps of earlier epochs, from the size of a batch.
    fn count_earlier(&mut self, model: &Staged<L, O, I, T, M>, progress: &Progress, epoch: usize) {
        if std::mem::take(&mut self.resumes) && progress.items_processed > 0 {
            let batches = progress.items_total.div_ceil(progress.items_processed);
            model.pipeline().set_steps(((epoch - 1) * batches) as u64);
        }
    }
}

#[derive(Clone, Copy)]
enum Split {
    Train,
    Valid,
}

fn begin<M>(epoch_number: usize, total_items: usize) -> LearnerEvent<M> {
    LearnerEvent::StartSplit {
        epoch_number,
        total_items,
    }
}

/// burn-train's own name for it. Stages number the workers; the message says the rest.
fn failed(error: &StepError) -> TrainingError {
    let device_id = match error {
        StepError::Failed(failure) => failure.stage,
        _ => 0,
    };
    let message = error.to_string();
    TrainingError::Workers(vec![WorkerFailure { device_id, message }])
}
