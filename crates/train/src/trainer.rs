//! A training, from the first batch to the files that it leaves.

use std::time::Instant;

use burn::optim::GradientsParams;
use stovepipe_pipeline::{
    Batch, CrossEntropy, Flow, Layer, Objective, Outputs, Pipeline, StepError, StopHandle,
    count_parameters,
};
use stovepipe_schedule::Timeline;

use crate::{
    average::WeightAverage,
    error::TrainError,
    folder::RunFolder,
    gradients::Window,
    labels::worker_labels,
    learning_rate::LearningRate,
    model_file::save_model,
    optimizer::StagedOptimizer,
    progress::{Progress, StepReport},
    scores::{Metrics, Scores, score},
    settings::TrainSettings,
    source::{self, Pass, Source, Task},
    summary::{EpochMetrics, Summary, stage_summaries},
};

/// Trains a pipeline as settings say, by cross-entropy.
pub struct Trainer<L: Layer<Side = ()>> {
    pipeline: Pipeline<L>,
    optimizer: StagedOptimizer,
    average: Option<WeightAverage<L>>,
    settings: TrainSettings,
    stop: StopHandle,
    timeline: Timeline,
}

/// One pass over the training set.
#[derive(Default)]
struct Epoch {
    scores: Scores,
    steps: usize,
    updates: usize,
    bubbles: f64,
    seconds: f64,
    rate: f64,
    stopped: bool,
}

impl Epoch {
    fn samples_per_second(&self) -> f64 {
        self.scores.samples as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    fn bubble(&self) -> f64 {
        self.bubbles / self.steps.max(1) as f64
    }

    /// Adds a mini-batch, which ended so many seconds after the epoch began.
    fn count(&mut self, trained: &Trained, seconds: f64) {
        self.scores.add(
            trained.samples,
            trained.loss,
            trained.weight,
            &trained.scores,
        );
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

/// What the test set says of the model, and of its averaged weights.
#[derive(Clone, Copy)]
struct Tested {
    model: Metrics,
    averaged: Option<Metrics>,
}

impl<L: Layer<Side = ()>> Trainer<L> {
    /// A trainer of `pipeline`.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range.
    pub fn new(pipeline: Pipeline<L>, settings: TrainSettings) -> Result<Self, TrainError> {
        settings.check()?;
        let average = settings.ema > 0.0;
        Ok(Self {
            optimizer: StagedOptimizer::new(&settings, pipeline.stage_layers().count()),
            average: average.then(|| WeightAverage::new(&pipeline, settings.ema)),
            stop: pipeline.stop_handle(),
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

    /// The pipeline with averaged weights, if the settings ask for them.
    #[must_use]
    pub fn averaged(&self) -> Option<&Pipeline<L>> {
        self.average.as_ref().map(WeightAverage::pipeline)
    }

    /// Trains and tests for all epochs, or until the pipeline's stop handle is used, and writes
    /// `metrics.jsonl`, `summary.json`, `model.safetensors`, `timeline.json` and `timeline.svg`
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
        T: Flow,
        S: Source<L::Input, T> + ?Sized,
        CrossEntropy: Objective<L::Output, T>,
    {
        let samples = source::check(source, self.settings.batch_size)?;
        self.check_batches(samples)?;
        let began = Instant::now();
        let batches = samples.div_ceil(self.settings.batch_size);
        let mut progress = progress(self.settings.epochs, batches);
        let mut epochs = Vec::new();
        let (mut tested, mut stopped) = (None, false);
        for index in 0..self.settings.epochs {
            let epoch = self.train_epoch(index, batches, source, &mut progress)?;
            // Stopped or not, what was trained is tested and saved.
            let (found, stopped_in_test) = self.test_to_the_end(source)?;
            tested = Some(found);
            stopped |= epoch.stopped || stopped_in_test;
            if !found.model.loss.is_finite() {
                let (loss, epoch) = (found.model.loss, index + 1);
                return Err(TrainError::TestLossNotFinite { loss, epoch });
            }
            if epoch.steps > 0 {
                self.report(index, &epoch, found, folder, &mut progress)?;
                epochs.push(epoch);
            }
            if stopped {
                break;
            }
        }
        progress.finish();
        let seconds = began.elapsed().as_secs_f64();
        let tested = tested.ok_or(TrainError::EmptySet("training"))?;
        let summary = self.summary(&epochs, tested, (seconds, stopped));
        self.write(folder, &summary)?;
        Ok(summary)
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

    /// What is made small: the task's loss, with label smoothing and the losses of auxiliary heads.
    fn objective(&self, task: Task) -> CrossEntropy {
        task.objective()
            .with_smoothing(self.settings.label_smoothing)
            .with_auxiliary_share(self.settings.auxiliary_share)
    }

    fn train_epoch<T, S>(
        &mut self,
        index: usize,
        batches: usize,
        source: &S,
        progress: &mut Progress,
    ) -> Result<Epoch, TrainError>
    where
        T: Flow,
        S: Source<L::Input, T> + ?Sized,
        CrossEntropy: Objective<L::Output, T>,
    {
        let pass = Pass {
            epoch: index,
            seed: self.settings.seed,
            batch_size: self.settings.batch_size,
        };
        let objective = self.objective(source.task());
        let updates = batches.div_ceil(self.settings.accumulate);
        let rate = LearningRate::new(&self.settings, updates);
        let began = Instant::now();
        let mut epoch = Epoch::default();
        let mut window = Window::default();
        let mut loaded = source.train(pass).enumerate().peekable();
        while let Some((batch, parts)) = loaded.next() {
            let (input, target) = parts?;
            let update = index * updates + epoch.updates;
            epoch.rate = rate.at(update);
            self.pipeline.set_progress(rate.progress(update));
            let mut trained = match self.train_batch(input, target, &objective) {
                Err(StepError::Stopped) => {
                    epoch.stopped = true;
                    break;
                }
                Err(source @ StepError::NotFinite { .. }) => {
                    return Err(TrainError::Diverged {
                        epoch: index + 1,
                        batch: batch + 1,
                        source,
                    });
                }
                other => other?,
            };
            // The last window of an epoch may be smaller.
            let is_last = loaded.peek().is_none();
            epoch.updates +=
                usize::from(self.gather(&mut window, &mut trained, is_last, epoch.rate)?);
            epoch.count(&trained, began.elapsed().as_secs_f64());
            progress.step(index + 1, batch + 1, &epoch.report(&trained, source.task()));
            // The picture is of the last mini-batch that was whole.
            if trained.samples == self.settings.batch_size {
                self.timeline = trained.timeline;
            }
        }
        Ok(epoch)
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
            timeline: step.timeline,
            began,
        })
    }

    /// Puts a mini-batch's gradients with those that wait. Where that makes a whole window, or the last one of
    /// an epoch, updates the parameters, and says so.
    fn gather(
        &mut self,
        window: &mut Window,
        trained: &mut Trained,
        is_last: bool,
        rate: f64,
    ) -> Result<bool, TrainError> {
        let mut gradients = std::mem::take(&mut trained.gradients);
        let is_whole = window.mini_batches() + 1 >= self.settings.accumulate;
        if window.mini_batches() > 0 || !(is_whole || is_last) {
            window.add(&self.pipeline, gradients, trained.weight);
            if !(is_whole || is_last) {
                return Ok(false);
            }
            gradients = window.take(&self.pipeline);
        }
        let (pipeline, began) = (&mut self.pipeline, trained.began);
        let spans = self.optimizer.step(rate, pipeline, gradients, began)?;
        for (stage, span) in self.pipeline.stages().iter().zip(spans) {
            trained.timeline.workers[stage.worker].push(span);
        }
        if let Some(average) = &mut self.average {
            average.update(&self.pipeline)?;
        }
        Ok(true)
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

    fn report(
        &self,
        index: usize,
        epoch: &Epoch,
        tested: Tested,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let metrics = EpochMetrics {
            epoch: index + 1,
            steps: epoch.steps,
            updates: epoch.updates,
            learning_rate: epoch.rate,
            train_loss: epoch.scores.mean_loss(),
            train_accuracy: epoch.scores.accuracy(),
            test: tested.model,
            averaged: tested.averaged,
            samples_per_second: epoch.samples_per_second(),
            bubble: epoch.bubble(),
            seconds: epoch.seconds,
        };
        progress.epoch(index + 1, &metrics.to_string());
        folder.append_json_line("metrics.jsonl", &metrics)
    }

    fn summary(
        &self,
        epochs: &[Epoch],
        tested: Tested,
        (seconds, stopped): (f64, bool),
    ) -> Summary {
        let sum = |of: fn(&Epoch) -> f64| epochs.iter().map(of).sum::<f64>();
        let steps = sum(|epoch| epoch.steps as f64).max(1.0);
        let trained_for = sum(|epoch| epoch.seconds).max(f64::MIN_POSITIVE);
        Summary {
            parameters: count_parameters(&self.pipeline),
            stages: stage_summaries(&self.pipeline),
            epochs: epochs.iter().filter(|epoch| !epoch.stopped).count(),
            train_loss: epochs.last().map_or(0.0, |epoch| epoch.scores.mean_loss()),
            test: tested.model,
            averaged: tested.averaged,
            samples_per_second: sum(|epoch| epoch.scores.samples as f64) / trained_for,
            bubble: sum(|epoch| epoch.bubbles) / steps,
            seconds,
            stopped,
        }
    }

    fn write(&self, folder: &RunFolder, summary: &Summary) -> Result<(), TrainError> {
        save_model(&self.pipeline, folder.file("model.safetensors"))?;
        if let Some(averaged) = self.averaged() {
            save_model(averaged, folder.file("averaged.safetensors"))?;
        }
        let labels = worker_labels(&self.pipeline.stages());
        folder.write("timeline.svg", self.timeline.to_svg(&labels).as_bytes())?;
        folder.write_json("timeline.json", &self.timeline.to_chrome_trace(&labels))?;
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
    timeline: Timeline,
    began: Instant,
}
