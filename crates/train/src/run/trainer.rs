//! Trains and tests, epoch by epoch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use stovepipe_pipeline::{Flow, Layer, Objective, Pipeline, StepError, StopHandle};
use stovepipe_schedule::Timeline;

use super::{
    folder::RunFolder,
    progress::Progress,
    summary::{Summary, Tested},
};
use crate::{
    checkpoint::{Contents, Damaged, Sums, TrainerState},
    data::{self, Source},
    error::TrainError,
    optimizer::{GradientAccumulator, LearningRate, StagedOptimizer, WeightAverage},
    settings::TrainSettings,
    task::{Task, evaluate},
};

/// Trains a pipeline for a [`Task`].
///
/// ```no_run
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Data, Progress, RunFolder, Task, TrainError, TrainSettings, Trainer};
/// # use burn::tensor::{Int, Tensor};
/// # use stovepipe_train::example::Dense;
///
/// # fn train(
/// #     pipeline: Pipeline<Dense>,
/// #     data: Data<Tensor<2>, Tensor<1, Int>>,
/// # ) -> Result<(), TrainError> {
/// let settings = TrainSettings { epochs: 20, ..TrainSettings::default() };
/// let task = Task::classification(&settings);
/// let folder = RunFolder::create("runs/first".as_ref())?;
/// let mut trainer = Trainer::new(pipeline, task, settings)?;
/// let summary = trainer.run(&data, &folder, Progress::new)?;
/// println!("{}", summary.test); // loss 0.1345, accuracy 98.6 %, top-5 100.0 %
/// folder.finish()?;
/// # Ok(())
/// # }
/// ```
pub struct Trainer<L: Layer, O> {
    pub(super) pipeline: Pipeline<L>,
    pub(super) task: Task<O>,
    pub(super) optimizer: StagedOptimizer,
    pub(super) average: Option<WeightAverage<L>>,
    pub(super) accumulator: GradientAccumulator,
    pub(super) state: TrainerState,
    pub(super) settings: TrainSettings,
    stop: StopHandle,
    /// Whether to stop after the current step.
    ending: Arc<AtomicBool>,
    /// When this part of the training started.
    started: Instant,
    pub(super) timeline: Timeline,
}

/// Where a training resumes.
#[derive(Debug)]
#[must_use]
pub struct Resumed {
    /// The name of the checkpoint; `None` if there is none, so that the training starts.
    pub checkpoint: Option<String>,
    /// Epochs that are over.
    pub epochs: usize,
    /// Mini-batches of the next epoch that are over.
    pub batches: usize,
    /// Newer checkpoints that are damaged.
    pub damaged: Vec<Damaged>,
}

impl<L: Layer, O> Trainer<L, O> {
    /// A trainer of `pipeline`. Freezes the layers that the settings name.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range.
    pub fn new(
        mut pipeline: Pipeline<L>,
        task: Task<O>,
        settings: TrainSettings,
    ) -> Result<Self, TrainError> {
        settings.check()?;
        settings.freeze.apply_to(&mut pipeline)?;
        let averages = settings.ema > 0.0;
        Ok(Self {
            optimizer: StagedOptimizer::new(&settings, pipeline.stage_layers().count()),
            average: averages.then(|| WeightAverage::new(&pipeline, settings.ema)),
            accumulator: GradientAccumulator::default(),
            state: TrainerState::begin(&settings, &task.zero()),
            stop: pipeline.stop_handle(),
            ending: Arc::default(),
            started: Instant::now(),
            timeline: Timeline::default(),
            pipeline,
            task,
            settings,
        })
    }

    /// The pipeline in its current state.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &TrainSettings {
        &self.settings
    }

    /// The pipeline with averaged weights, if the settings ask for them.
    #[must_use]
    pub fn averaged(&self) -> Option<&Pipeline<L>> {
        self.average.as_ref().map(WeightAverage::pipeline)
    }

    /// Returns a function that ends the training after the current step, from any thread. (The
    /// pipeline's [stop handle](Pipeline::stop_handle) cancels that step.)
    pub fn end_after_step(&self) -> impl Fn() + Send + Sync + 'static {
        let ending = self.ending.clone();
        move || ending.store(true, Ordering::SeqCst)
    }

    pub(super) fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Restores the newest checkpoint in `folder` that is not damaged, if there is one:
    /// [`run`](Self::run) then continues to the same result as an uninterrupted run, with any
    /// number of stages. Renames damaged checkpoints.
    ///
    /// Settings may change, except those that the order of samples and the optimizer's state depend
    /// on.
    ///
    /// # Errors
    ///
    /// If such a setting has changed, the checkpoint is of another model or task, or a file cannot
    /// be read or written.
    pub fn resume(&mut self, folder: &RunFolder) -> Result<Resumed, TrainError> {
        let (checkpoint, damaged) = folder.checkpoints().newest()?;
        if let Some(checkpoint) = &checkpoint {
            let state = checkpoint.state()?;
            state.check(&self.settings)?;
            if !self.task.fits(&state.over.scores) || !self.task.fits(&state.under_way.scores) {
                return Err(TrainError::OtherTask);
            }
            self.state = checkpoint.load(self.contents())?;
        }
        // Later metrics do not count.
        folder.keep_lines("metrics.jsonl", self.state.epoch)?;
        Ok(Resumed {
            checkpoint: checkpoint.map(|checkpoint| checkpoint.name().to_owned()),
            epochs: self.state.epoch,
            batches: self.state.batch,
            damaged,
        })
    }

    pub(super) fn contents(&mut self) -> Contents<'_, L> {
        Contents {
            pipeline: &mut self.pipeline,
            average: self.average.as_mut(),
            optimizer: &mut self.optimizer,
            accumulator: &mut self.accumulator,
        }
    }

    /// Trains and tests the remaining epochs, or until the pipeline's stop handle is used. Makes
    /// checkpoints, and writes `metrics.jsonl`, `summary.json`, `model.safetensors`,
    /// `timeline.json` and `timeline.svg` to `folder`, with averaged weights also
    /// `averaged.safetensors`.
    ///
    /// # Errors
    ///
    /// If a set is empty or cannot be read, a mini-batch is larger than the training set, a step
    /// fails, the loss becomes NaN or infinite, or a file cannot be written.
    pub fn run<T>(
        &mut self,
        source: &dyn Source<L::Input, T, L::Side>,
        folder: &RunFolder,
        progress: impl FnOnce(usize, usize) -> Progress,
    ) -> Result<Summary, TrainError>
    where
        T: Flow,
        O: Objective<L::Output, T>,
    {
        let samples = data::check(source, self.settings.batch_size)?;
        self.check_batches(samples)?;
        self.check_samples(samples)?;
        self.started = Instant::now();
        let batches = samples.div_ceil(self.settings.batch_size);
        let mut progress = progress(self.settings.epochs, batches);
        let (mut tested, mut stopped) = (None, false);
        while self.state.epoch < self.settings.epochs && !stopped {
            stopped = self.train_epoch(batches, source, folder, &mut progress)?;
            if stopped {
                self.save(folder, &mut progress)?;
            }
            // A stopped epoch is tested and saved too.
            let (found, stopped_in_test) = self.test_to_the_end(source)?;
            self.report_epoch(batches, &found, folder, &mut progress)?;
            if !stopped {
                self.end_epoch(&found);
                self.save(folder, &mut progress)?;
            }
            stopped |= stopped_in_test || self.is_ending();
            tested = Some(found);
        }
        progress.finish();
        let tested = match tested {
            Some(tested) => tested,
            // All epochs were already over.
            None => self.test_to_the_end(source)?.0,
        };
        let summary = self.summary(tested, stopped);
        self.write(folder, &summary)?;
        Ok(summary)
    }

    /// Starts the next epoch.
    fn end_epoch(&mut self, tested: &Tested) {
        let next = Sums::of(&self.task.zero());
        let ended = std::mem::replace(&mut self.state.under_way, next);
        self.state.over.add(&ended);
        self.state.train_loss = ended.scores.mean_loss();
        self.state.test = Some(tested.averaged.as_ref().unwrap_or(&tested.model).clone());
        self.state.epoch += 1;
        (self.state.batch, self.state.updates) = (0, 0);
    }

    /// Checks in advance that every mini-batch of an epoch can run.
    fn check_batches(&self, samples: usize) -> Result<(), TrainError> {
        let batch_size = self.settings.batch_size;
        self.pipeline.check_batch(batch_size)?;
        match samples % batch_size {
            0 => Ok(()),
            samples => (self.pipeline.check_batch(samples))
                .map_err(|source| TrainError::LastBatch { samples, source }),
        }
    }

    /// Checks that a resumed training has the same number of samples.
    fn check_samples(&mut self, now: usize) -> Result<(), TrainError> {
        let then = std::mem::replace(&mut self.state.samples, now);
        if then > 0 && then != now {
            return Err(TrainError::OtherSamples { then, now });
        }
        Ok(())
    }

    pub(super) fn learning_rate(&self, batches: usize) -> LearningRate {
        LearningRate::new(&self.settings, self.updates_per_epoch(batches))
    }

    fn updates_per_epoch(&self, batches: usize) -> usize {
        batches.div_ceil(self.settings.accumulate)
    }

    /// The number of the next update, counted over all epochs.
    pub(super) fn update(&self, batches: usize) -> usize {
        self.state.epoch * self.updates_per_epoch(batches) + self.state.updates
    }

    /// Duration of all parts of the training so far.
    pub(super) fn seconds(&self) -> f64 {
        self.state.seconds + self.started.elapsed().as_secs_f64()
    }

    /// Tests, and again from the start if a stop cancels the test. Returns whether it was stopped.
    fn test_to_the_end<T>(
        &self,
        source: &dyn Source<L::Input, T, L::Side>,
    ) -> Result<(Tested, bool), TrainError>
    where
        T: Flow,
        O: Objective<L::Output, T>,
    {
        let was_stopped = self.stop.is_stopped();
        self.stop.reset();
        match self.test(source) {
            Err(TrainError::Step(StepError::Stopped)) => {
                self.stop.reset();
                Ok((self.test(source)?, true))
            }
            result => Ok((result?, was_stopped)),
        }
    }

    /// Evaluates the model, and its averaged weights, on the test set.
    fn test<T>(&self, source: &dyn Source<L::Input, T, L::Side>) -> Result<Tested, TrainError>
    where
        T: Flow,
        O: Objective<L::Output, T>,
    {
        let metrics = |pipeline: &Pipeline<L>| {
            let batches = source.test(self.settings.batch_size);
            let totals = evaluate(pipeline, batches, &self.task, |_| ())?;
            Ok::<_, TrainError>(self.task.metrics(&totals))
        };
        Ok(Tested {
            model: metrics(&self.pipeline)?,
            averaged: self.averaged().map(metrics).transpose()?,
        })
    }
}
