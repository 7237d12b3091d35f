//! A training, from the first batch to the files that it leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use burn::optim::GradientsParams;
use stovepipe_pipeline::{
    Batch, CrossEntropy, Flow, Layer, Objective, Outputs, Pipeline, StepError, StopHandle,
    count_parameters,
};
use stovepipe_schedule::Timeline;

use crate::{
    average::WeightAverage,
    checkpoint::{Contents, Damaged, Sums, TrainerState},
    error::TrainError,
    folder::RunFolder,
    gradients::GradientAccumulator,
    labels::worker_labels,
    learning_rate::LearningRate,
    model_file::save_model,
    optimizer::StagedOptimizer,
    progress::{Progress, StepReport},
    scores::{Metrics, score},
    settings::{SaveErrorSetting, TrainSettings},
    source::{self, Pass, Source, Task},
    summary::{EpochMetrics, LossScale, Summary, stage_summaries},
};

/// Trains a pipeline as settings say, by cross-entropy.
pub struct Trainer<L: Layer<Side = ()>> {
    pipeline: Pipeline<L>,
    optimizer: StagedOptimizer,
    average: Option<WeightAverage<L>>,
    /// Gradients that wait for an update.
    window: GradientAccumulator,
    /// Where the training stands.
    state: TrainerState,
    settings: TrainSettings,
    stop: StopHandle,
    /// Whether it is to end after the step under way.
    ending: Arc<AtomicBool>,
    /// When this part of the training began.
    began: Instant,
    timeline: Timeline,
}

/// What a training goes on from.
#[derive(Debug)]
#[must_use]
pub struct Resumed {
    /// The name of the checkpoint; none if there was none, so that the training begins.
    pub checkpoint: Option<String>,
    /// Epochs that are over.
    pub epochs: usize,
    /// Mini-batches of the epoch after them.
    pub batches: usize,
    /// Newer checkpoints that are of no use.
    pub damaged: Vec<Damaged>,
}

/// What the test set says of the model, and of its averaged weights.
#[derive(Clone, Copy)]
struct Tested {
    model: Metrics,
    averaged: Option<Metrics>,
}

impl Sums {
    fn samples_per_second(&self) -> f64 {
        self.scores.samples as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    fn bubble(&self) -> f64 {
        self.bubbles / self.steps.max(1) as f64
    }

    /// Adds a mini-batch, which ended when so many seconds of the epoch were over.
    fn count(&mut self, trained: &Trained, seconds: f64) {
        // Of one that overflowed, the loss may be no number.
        if trained.loss.is_finite() || !trained.overflowed {
            self.scores.add(
                trained.samples,
                trained.loss,
                trained.weight,
                &trained.scores,
            );
        }
        self.steps += 1;
        self.bubbles += trained.timeline.bubble();
        self.seconds = seconds;
    }

    fn report(&self, trained: &Trained, task: Task) -> StepReport {
        StepReport {
            metrics: Metrics::of(&self.scores, task),
            samples_per_second: self.samples_per_second(),
            slowest_worker: trained.timeline.slowest_worker().unwrap_or(0),
            bubble: trained.timeline.bubble(),
        }
    }
}

impl<L: Layer<Side = ()>> Trainer<L> {
    /// A trainer of `pipeline`, which freezes the layers that the settings say.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range.
    pub fn new(mut pipeline: Pipeline<L>, settings: TrainSettings) -> Result<Self, TrainError> {
        settings.check()?;
        settings.freeze.apply_to(&mut pipeline)?;
        let average = settings.ema > 0.0;
        Ok(Self {
            optimizer: StagedOptimizer::new(&settings, pipeline.stage_layers().count()),
            average: average.then(|| WeightAverage::new(&pipeline, settings.ema)),
            window: GradientAccumulator::default(),
            state: TrainerState::begin(&settings),
            stop: pipeline.stop_handle(),
            ending: Arc::default(),
            began: Instant::now(),
            timeline: Timeline::default(),
            pipeline,
            settings,
        })
    }

    /// The pipeline as it is now.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }

    /// What it trains by.
    #[must_use]
    pub fn settings(&self) -> &TrainSettings {
        &self.settings
    }

    /// The pipeline with averaged weights, if the settings ask for them.
    #[must_use]
    pub fn averaged(&self) -> Option<&Pipeline<L>> {
        self.average.as_ref().map(WeightAverage::pipeline)
    }

    /// What ends the training after the step under way, from any thread. (The pipeline's
    /// [stop handle](Pipeline::stop_handle) gives that step up.)
    pub fn end_after_step(&self) -> impl Fn() + Send + Sync + 'static {
        let ending = self.ending.clone();
        move || ending.store(true, Ordering::SeqCst)
    }

    fn is_ending(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Takes the training to where the newest checkpoint in `folder` was made, if there is one that is not damaged:
    /// [`run`](Self::run) goes on from there, and comes to what it would have come to unbroken, under any number of
    /// stages. Damaged ones are put aside.
    ///
    /// Settings may have changed but for those that the order of samples and the optimizer's states depend on.
    ///
    /// # Errors
    ///
    /// If such a setting has changed, the checkpoint is of another model, or a file cannot be read or written.
    pub fn resume(&mut self, folder: &RunFolder) -> Result<Resumed, TrainError> {
        let (checkpoint, damaged) = folder.checkpoints().newest()?;
        if let Some(checkpoint) = &checkpoint {
            checkpoint.state()?.check(&self.settings)?;
            self.state = checkpoint.load(self.contents())?;
        }
        // Of what came after the checkpoint, nothing counts.
        folder.keep_lines("metrics.jsonl", self.state.epoch)?;
        Ok(Resumed {
            checkpoint: checkpoint.map(|checkpoint| checkpoint.name().to_owned()),
            epochs: self.state.epoch,
            batches: self.state.batch,
            damaged,
        })
    }

    fn contents(&mut self) -> Contents<'_, L> {
        Contents {
            pipeline: &mut self.pipeline,
            average: self.average.as_mut(),
            optimizer: &mut self.optimizer,
            window: &mut self.window,
        }
    }

    /// Trains and tests for all epochs that are left, or until the pipeline's stop handle is used, makes checkpoints, and
    /// writes `metrics.jsonl`, `summary.json`, `model.safetensors`, `timeline.json` and `timeline.svg`
    /// into `folder`; with averaged weights also `averaged.safetensors`.
    ///
    /// # Errors
    ///
    /// If a set is empty or cannot be read, a mini-batch is larger than the training set, a step
    /// fails, the loss is no longer finite, or a file cannot be written.
    pub fn run<T, S>(
        &mut self,
        source: &S,
        folder: &RunFolder,
        mut progress: impl FnMut(usize, usize) -> Progress,
    ) -> Result<Summary, TrainError>
    where
        L::Input: 'static,
        T: Flow,
        S: Source<L::Input, T> + ?Sized,
        CrossEntropy: Objective<L::Output, T>,
    {
        let samples = source::check(source, self.settings.batch_size)?;
        self.check_batches(samples)?;
        self.check_samples(samples)?;
        self.began = Instant::now();
        let batches = samples.div_ceil(self.settings.batch_size);
        let mut progress = progress(self.settings.epochs, batches);
        let (mut tested, mut stopped) = (None, false);
        while self.state.epoch < self.settings.epochs && !stopped {
            stopped = self.train_epoch(batches, source, folder, &mut progress)?;
            if stopped {
                self.save(folder, &mut progress)?;
            }
            // Stopped or not, what was trained is tested and saved.
            let (found, stopped_in_test) = self.test_to_the_end(source)?;
            let epoch = self.state.epoch + 1;
            if !found.model.loss.is_finite() {
                let loss = found.model.loss;
                return Err(TrainError::TestLossNotFinite { loss, epoch });
            }
            tested = Some(found);
            if self.state.under_way.steps > 0 {
                self.report(batches, found, folder, &mut progress)?;
            }
            if !stopped {
                self.end_epoch(found);
                self.save(folder, &mut progress)?;
            }
            stopped |= stopped_in_test || self.is_ending();
        }
        progress.finish();
        let tested = match tested {
            Some(tested) => tested,
            // All epochs were over before.
            None => self.test_to_the_end(source)?.0,
        };
        let summary = self.summary(tested, stopped);
        self.write(folder, &summary)?;
        Ok(summary)
    }

    /// Makes a checkpoint. Where that fails, the setting says what becomes of the training.
    fn save(&mut self, folder: &RunFolder, progress: &mut Progress) -> Result<(), TrainError> {
        let state = TrainerState {
            steps: self.pipeline.steps(),
            averaged: self.average.as_ref().map_or(0, WeightAverage::updates),
            waiting: self.window.mini_batches(),
            waiting_weight: self.window.weight(),
            spoiled: self.window.is_spoiled(),
            loss_scaler: self.pipeline.loss_scaler(),
            seconds: self.seconds(),
            ..self.state.clone()
        };
        let kept = (self.settings.keep_last, self.settings.keep_best);
        let saved = folder.checkpoints().save(&self.contents(), &state, kept);
        match (saved, self.settings.on_save_error) {
            (Err(error), SaveErrorSetting::Stop) => Err(TrainError::NotSaved(Box::new(error))),
            (Err(error), SaveErrorSetting::Continue) => {
                progress.warn(&format!("no checkpoint could be made, going on: {error}"));
                Ok(())
            }
            (Ok(()), _) => Ok(()),
        }
    }

    /// Begins the next epoch.
    fn end_epoch(&mut self, tested: Tested) {
        let ended = std::mem::take(&mut self.state.under_way);
        self.state.over.add(&ended);
        self.state.train_loss = ended.scores.mean_loss();
        self.state.test = Some(tested.averaged.unwrap_or(tested.model));
        self.state.epoch += 1;
        (self.state.batch, self.state.updates) = (0, 0);
    }

    /// Finds what would end the run at the end of its first epoch before it begins.
    fn check_batches(&self, samples: usize) -> Result<(), TrainError> {
        let batch_size = self.settings.batch_size;
        self.pipeline.check_batch(batch_size)?;
        match samples % batch_size {
            0 => Ok(()),
            samples => (self.pipeline.check_batch(samples))
                .map_err(|source| TrainError::LastBatch { samples, source }),
        }
    }

    /// Refuses to go on with another number of samples, which would be other ones.
    fn check_samples(&mut self, now: usize) -> Result<(), TrainError> {
        let then = std::mem::replace(&mut self.state.samples, now);
        match then == 0 || then == now {
            true => Ok(()),
            false => Err(TrainError::OtherSamples { then, now }),
        }
    }

    /// What is made small: the task's loss, with label smoothing and the losses of auxiliary heads.
    fn objective(&self, task: Task) -> CrossEntropy {
        task.objective()
            .with_smoothing(self.settings.label_smoothing)
            .with_auxiliary_share(self.settings.auxiliary_share)
    }

    /// Trains what is left of the epoch under way. Returns whether it was stopped.
    fn train_epoch<T, S>(
        &mut self,
        batches: usize,
        source: &S,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<bool, TrainError>
    where
        L::Input: 'static,
        T: Flow,
        S: Source<L::Input, T> + ?Sized,
        CrossEntropy: Objective<L::Output, T>,
    {
        let epoch = self.state.epoch;
        let pass = Pass {
            epoch,
            seed: self.settings.seed,
            batch_size: self.settings.batch_size,
        };
        let objective = self.objective(source.task());
        let rate = self.learning_rate(batches);
        let (began, before) = (Instant::now(), self.state.under_way.seconds);
        let mut loaded = source.train_from(self.state.batch, pass).peekable();
        while let Some(parts) = loaded.next() {
            let (input, target) = parts?;
            let update = self.update(batches);
            self.pipeline.set_progress(rate.progress(update));
            let mut trained = match self.train_batch(input, target, &objective) {
                Err(StepError::Stopped) => return Ok(true),
                Err(source @ StepError::NotFinite { .. }) => {
                    return Err(TrainError::Diverged {
                        epoch: epoch + 1,
                        batch: self.state.batch + 1,
                        source,
                    });
                }
                other => other?,
            };
            // The last window of an epoch may be smaller.
            let is_last = loaded.peek().is_none();
            let gathered = self.gather(&mut trained, is_last, rate.at(update))?;
            let state = &mut self.state;
            // The learning rate falls by what was to be updated.
            state.updates += usize::from(gathered != Gathered::Waiting);
            state.under_way.skipped += usize::from(gathered == Gathered::Skipped);
            state.batch += 1;
            state.test = None;
            let seconds = before + began.elapsed().as_secs_f64();
            state.under_way.count(&trained, seconds);
            let report = state.under_way.report(&trained, source.task());
            progress.step(epoch + 1, state.batch, &report);
            // The picture is of the last mini-batch that was whole.
            if trained.samples == self.settings.batch_size {
                self.timeline = trained.timeline;
            }
            if self.is_save_due() {
                self.save(folder, progress)?;
            }
            if self.is_ending() && !is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a checkpoint is to be made after this mini-batch.
    fn is_save_due(&self) -> bool {
        let every = self.settings.save_every as u64;
        every > 0 && self.pipeline.steps().is_multiple_of(every)
    }

    fn learning_rate(&self, batches: usize) -> LearningRate {
        LearningRate::new(&self.settings, self.updates_per_epoch(batches))
    }

    fn updates_per_epoch(&self, batches: usize) -> usize {
        batches.div_ceil(self.settings.accumulate)
    }

    /// The number of the next update, counted over all epochs.
    fn update(&self, batches: usize) -> usize {
        self.state.epoch * self.updates_per_epoch(batches) + self.state.updates
    }

    /// Runs a mini-batch.
    fn train_batch<T: Flow>(
        &self,
        input: L::Input,
        target: T,
        objective: &CrossEntropy,
    ) -> Result<Trained, StepError>
    where
        CrossEntropy: Objective<L::Output, T>,
    {
        let began = Instant::now();
        let batch = Batch {
            input,
            target,
            side: (),
        };
        let step = self
            .pipeline
            .train_step_with(batch, objective, Outputs::Drop)?;
        Ok(Trained {
            samples: step.micro_batches.iter().sum(),
            loss: step.loss,
            weight: step.weight,
            scores: step.scores,
            gradients: step.gradients,
            overflowed: step.overflowed,
            timeline: step.timeline,
            began,
        })
    }

    /// Puts a mini-batch's gradients with those that wait. Where that makes a whole window, or the last one of
    /// an epoch, updates the parameters, unless some gradients of it were not finite.
    fn gather(
        &mut self,
        trained: &mut Trained,
        is_last: bool,
        rate: f64,
    ) -> Result<Gathered, TrainError> {
        let own = std::mem::take(&mut trained.gradients);
        let mut gradients = (!trained.overflowed).then_some(own);
        let window = &mut self.window;
        let is_whole = window.mini_batches() + 1 >= self.settings.accumulate;
        if window.mini_batches() > 0 || !(is_whole || is_last) {
            match gradients {
                Some(gradients) => window.add(&self.pipeline, gradients, trained.weight),
                None => window.spoil(trained.weight),
            }
            if !(is_whole || is_last) {
                return Ok(Gathered::Waiting);
            }
            gradients = window.take(&self.pipeline);
        }
        let Some(gradients) = gradients else {
            return Ok(Gathered::Skipped);
        };
        let (pipeline, began) = (&mut self.pipeline, trained.began);
        let spans = self.optimizer.step(rate, pipeline, gradients, began)?;
        for (stage, span) in self.pipeline.stages().iter().zip(spans) {
            trained.timeline.workers[stage.worker].push(span);
        }
        if let Some(average) = &mut self.average {
            average.update(&self.pipeline)?;
        }
        Ok(Gathered::Updated)
    }

    /// Scores the test set, once more if it was stopped meanwhile. Returns whether it was.
    fn test_to_the_end<T, S>(&self, source: &S) -> Result<(Tested, bool), TrainError>
    where
        T: Flow,
        S: Source<L::Input, T> + ?Sized,
        CrossEntropy: Objective<L::Output, T>,
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

    /// Scores the test set.
    fn test<T, S>(&self, source: &S) -> Result<Tested, TrainError>
    where
        T: Flow,
        S: Source<L::Input, T> + ?Sized,
        CrossEntropy: Objective<L::Output, T>,
    {
        let task = source.task();
        let metrics = |pipeline: &Pipeline<L>| {
            let batches = source.test(self.settings.batch_size);
            score(pipeline, batches, task, |_| ()).map(|scores| Metrics::of(&scores, task))
        };
        Ok(Tested {
            model: metrics(&self.pipeline)?,
            averaged: self.averaged().map(metrics).transpose()?,
        })
    }

    /// Says what came of the epoch under way, as far as it was trained.
    fn report(
        &self,
        batches: usize,
        tested: Tested,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let (state, sums) = (&self.state, &self.state.under_way);
        let last_update = self.update(batches).saturating_sub(1);
        let metrics = EpochMetrics {
            epoch: state.epoch + 1,
            steps: sums.steps,
            updates: state.updates,
            learning_rate: self.learning_rate(batches).at(last_update),
            train_loss: sums.scores.mean_loss(),
            train_accuracy: sums.scores.accuracy(),
            test: tested.model,
            averaged: tested.averaged,
            loss_scale: self.loss_scale(sums),
            samples_per_second: sums.samples_per_second(),
            bubble: sums.bubble(),
            seconds: sums.seconds,
        };
        progress.epoch(state.epoch + 1, &metrics.to_string());
        folder.append_json_line("metrics.jsonl", &metrics)
    }

    fn summary(&self, tested: Tested, stopped: bool) -> Summary {
        let (state, mut all) = (&self.state, self.state.over);
        all.add(&state.under_way);
        let train_loss = match state.under_way.steps {
            0 => state.train_loss,
            _ => state.under_way.scores.mean_loss(),
        };
        Summary {
            parameters: count_parameters(&self.pipeline),
            stages: stage_summaries(&self.pipeline),
            epochs: state.epoch,
            train_loss,
            test: tested.model,
            averaged: tested.averaged,
            samples_per_second: all.samples_per_second(),
            bubble: all.bubble(),
            loss_scale: self.loss_scale(&all),
            seconds: self.seconds(),
            stopped,
        }
    }

    /// How the loss is scaled now, if it is, and what that has cost.
    fn loss_scale(&self, sums: &Sums) -> Option<LossScale> {
        let scaler = self.pipeline.loss_scaler()?;
        Some(LossScale {
            scale: scaler.scale(),
            skipped: sums.skipped,
        })
    }

    /// What the training has taken so far, in all its parts.
    fn seconds(&self) -> f64 {
        self.state.seconds + self.began.elapsed().as_secs_f64()
    }

    fn write(&self, folder: &RunFolder, summary: &Summary) -> Result<(), TrainError> {
        save_model(&self.pipeline, folder.file("model.safetensors"))?;
        if let Some(averaged) = self.averaged() {
            save_model(averaged, folder.file("averaged.safetensors"))?;
        }
        // Where no step was taken, an earlier one's picture stays.
        if !self.timeline.workers.is_empty() || !folder.file("timeline.svg").exists() {
            let labels = worker_labels(&self.pipeline.stages());
            folder.write("timeline.svg", self.timeline.to_svg(&labels).as_bytes())?;
            folder.write_json("timeline.json", &self.timeline.to_chrome_trace(&labels))?;
        }
        folder.write_json("summary.json", summary)
    }
}

/// A mini-batch when it has been run.
struct Trained {
    samples: usize,
    loss: f64,
    weight: f64,
    scores: Vec<f64>,
    gradients: GradientsParams,
    overflowed: bool,
    timeline: Timeline,
    began: Instant,
}

/// What became of a mini-batch's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathered {
    /// They wait for those of others.
    Waiting,
    /// Parameters are updated.
    Updated,
    /// There is nothing to update by: some were not finite.
    Skipped,
}
