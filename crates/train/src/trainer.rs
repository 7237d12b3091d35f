//! The training of a classifier, from the first batch to the files that it leaves.

use std::{sync::Arc, time::Instant};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    tensor::{Device, Int, Tensor},
};
use stovepipe_pipeline::{
    Batch, CrossEntropy, Layer, Objective, Outputs, Pipeline, Stage, Step, StepError, StopHandle,
    count_parameters,
};
use stovepipe_schedule::Timeline;

use crate::{
    error::TrainError,
    folder::RunFolder,
    learning_rate::LearningRate,
    loader::{Loader, shuffled},
    model_file::save_model,
    optimizer::StagedOptimizer,
    progress::{Progress, StepReport},
    scores::Scores,
    settings::TrainSettings,
    summary::{EpochMetrics, Summary, stage_summaries},
};

/// A model that gives each input logits `[n, classes]`.
pub trait Classifier: Layer<Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Output = Tensor<2>, Side = ()>> Classifier for L {}

/// A training set and a test set, and the batchers that make `(input, targets [n])` of their items.
pub struct Data<D, B> {
    train: Arc<D>,
    test: Arc<D>,
    training_batcher: Box<dyn Fn(usize) -> Arc<B> + Send + Sync>,
    test_batcher: Arc<B>,
}

impl<D, B: Send + Sync + 'static> Data<D, B> {
    /// What is trained on, what is tested with, and the batcher for both.
    ///
    /// ```
    /// use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
    /// use stovepipe_train::Data;
    ///
    /// struct Points;
    /// impl Batcher<[f32; 2], (Tensor<2>, Tensor<1, Int>)> for Points {
    ///     fn batch(&self, items: Vec<[f32; 2]>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    ///         let points = TensorData::new(items.concat(), [items.len(), 2]);
    ///         let targets = TensorData::new(vec![0; items.len()], [items.len()]);
    ///         (Tensor::from_data(points, device), Tensor::from_data(targets, device))
    ///     }
    /// }
    ///
    /// let set = || InMemDataset::new(vec![[0.0, 1.0], [1.0, 0.0]]);
    /// let data = Data::new(set(), set(), Points);
    /// ```
    #[must_use]
    pub fn new(train: D, test: D, batcher: B) -> Self {
        let batcher = Arc::new(batcher);
        Self {
            train: Arc::new(train),
            test: Arc::new(test),
            test_batcher: batcher.clone(),
            training_batcher: Box::new(move |_| batcher.clone()),
        }
    }

    /// Has training use a batcher of its own for each epoch, counted from 0: one that augments, and
    /// draws anew each time.
    ///
    /// ```
    /// use burn::{data::{dataloader::batcher::Batcher, dataset::InMemDataset}, tensor::*};
    /// use stovepipe_train::Data;
    ///
    /// /// Moves points a little further every epoch.
    /// struct Moved(f32);
    /// impl Batcher<[f32; 2], (Tensor<2>, Tensor<1, Int>)> for Moved {
    ///     fn batch(&self, items: Vec<[f32; 2]>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    ///         let points = TensorData::new(items.concat(), [items.len(), 2]);
    ///         let targets = TensorData::new(vec![0; items.len()], [items.len()]);
    ///         let points = Tensor::from_data(points, device) + self.0;
    ///         (points, Tensor::from_data(targets, device))
    ///     }
    /// }
    ///
    /// let set = || InMemDataset::new(vec![[0.0, 1.0], [1.0, 0.0]]);
    /// let data = Data::new(set(), set(), Moved(0.0));
    /// let data = data.with_training_batcher(|epoch| Moved(0.1 * epoch as f32));
    /// ```
    #[must_use]
    pub fn with_training_batcher(
        mut self,
        of_epoch: impl Fn(usize) -> B + Send + Sync + 'static,
    ) -> Self {
        self.training_batcher = Box::new(move |epoch| Arc::new(of_epoch(epoch)));
        self
    }

    /// The number of training samples, which must be enough for a batch.
    ///
    /// # Errors
    ///
    /// If a set is empty, or the training set smaller than a batch.
    pub fn check<I>(&self, batch_size: usize) -> Result<usize, TrainError>
    where
        D: Dataset<I>,
    {
        for (set, name) in [(&self.train, "training"), (&self.test, "test")] {
            if set.is_empty() {
                return Err(TrainError::EmptySet(name));
            }
        }
        let samples = self.train.len();
        match batch_size > samples {
            true => Err(TrainError::BatchTooLarge {
                batch_size,
                samples,
            }),
            false => Ok(samples),
        }
    }
}

/// Trains a pipeline as settings say.
pub struct Trainer<L: Classifier> {
    pipeline: Pipeline<L>,
    optimizer: StagedOptimizer,
    objective: CrossEntropy,
    settings: TrainSettings,
    stop: StopHandle,
    timeline: Timeline,
}

/// One pass over the training set.
#[derive(Default)]
struct Epoch {
    scores: Scores,
    steps: usize,
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
}

impl<L: Classifier> Trainer<L> {
    /// A trainer of `pipeline`.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range.
    pub fn new(pipeline: Pipeline<L>, settings: TrainSettings) -> Result<Self, TrainError> {
        settings.check()?;
        Ok(Self {
            optimizer: StagedOptimizer::new(&settings, pipeline.stage_layers().count()),
            objective: CrossEntropy::new()
                .with_smoothing(settings.label_smoothing)
                .with_auxiliary_share(settings.auxiliary_share),
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

    /// Trains and tests for all epochs, or until the pipeline's stop handle is used, and writes
    /// `metrics.jsonl`, `summary.json`, `model.safetensors`, `timeline.json` and `timeline.svg`
    /// into `folder`.
    ///
    /// # Errors
    ///
    /// If a set is empty or cannot be read, a mini-batch is larger than the training set, a step
    /// fails, the loss is no longer finite, or a file cannot be written.
    pub fn run<I, D, B>(
        &mut self,
        data: &Data<D, B>,
        folder: &RunFolder,
        mut progress: impl FnMut(usize, usize) -> Progress,
    ) -> Result<Summary, TrainError>
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, (L::Input, Tensor<1, Int>)> + 'static,
    {
        let samples = data.check(self.settings.batch_size)?;
        self.check_batches(samples)?;
        let began = Instant::now();
        let batches = samples.div_ceil(self.settings.batch_size);
        let rate = LearningRate::new(&self.settings, batches);
        let mut progress = progress(self.settings.epochs, batches);
        let mut epochs = Vec::new();
        let mut test = Scores::default();
        let mut stopped = false;
        for index in 0..self.settings.epochs {
            let epoch = self.train_epoch(index, data, &rate, &mut progress)?;
            // Stopped or not, what was trained is tested and saved.
            let stopped_in_test;
            (test, stopped_in_test) = self.test_to_the_end(data)?;
            stopped |= epoch.stopped || stopped_in_test;
            if !test.mean_loss().is_finite() {
                let (loss, epoch) = (test.mean_loss(), index + 1);
                return Err(TrainError::TestLossNotFinite { loss, epoch });
            }
            if epoch.steps > 0 {
                self.report(index, &epoch, &test, folder, &mut progress)?;
                epochs.push(epoch);
            }
            if stopped {
                break;
            }
        }
        progress.finish();
        let seconds = began.elapsed().as_secs_f64();
        let summary = self.summary(&epochs, &test, seconds, stopped);
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

    fn train_epoch<I, D, B>(
        &mut self,
        index: usize,
        data: &Data<D, B>,
        rate: &LearningRate,
        progress: &mut Progress,
    ) -> Result<Epoch, TrainError>
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, (L::Input, Tensor<1, Int>)> + 'static,
    {
        let order = shuffled(data.train.len(), self.settings.seed, index);
        let batches = order.len().div_ceil(self.settings.batch_size);
        let began = Instant::now();
        let mut epoch = Epoch::default();
        let batcher = (data.training_batcher)(index);
        for (batch, loaded) in self.load(&data.train, batcher, order).enumerate() {
            epoch.rate = rate.at(index * batches + batch);
            let step = match self.train_batch(loaded?, epoch.rate) {
                Err(TrainError::Step(StepError::Stopped)) => {
                    epoch.stopped = true;
                    break;
                }
                Err(TrainError::Step(source @ StepError::NotFinite { .. })) => {
                    return Err(TrainError::Diverged {
                        epoch: index + 1,
                        batch: batch + 1,
                        source,
                    });
                }
                other => other?,
            };
            epoch.scores.add(step.scores, step.loss);
            epoch.steps += 1;
            epoch.bubbles += step.timeline.bubble();
            epoch.seconds = began.elapsed().as_secs_f64();
            let report = StepReport {
                loss: epoch.scores.mean_loss(),
                accuracy: epoch.scores.accuracy(),
                samples_per_second: epoch.samples_per_second(),
                slowest_worker: step.timeline.slowest_worker().unwrap_or(0),
                bubble: step.timeline.bubble(),
            };
            progress.step(index + 1, batch + 1, &report);
            // The picture is of the last mini-batch that was whole.
            if step.scores.samples == self.settings.batch_size {
                self.timeline = step.timeline;
            }
        }
        Ok(epoch)
    }

    /// Runs a mini-batch and updates the parameters.
    fn train_batch(
        &mut self,
        (input, targets): (L::Input, Tensor<1, Int>),
        rate: f64,
    ) -> Result<TrainedBatch, TrainError> {
        let began = Instant::now();
        let batch = Batch {
            input,
            target: targets.clone(),
            side: (),
        };
        let step: Step<L> = self
            .pipeline
            .train_step_with(batch, &self.objective, Outputs::Keep)?;
        let scores = step.outputs.map(|outputs| Scores::of(outputs, targets));
        let mut trained = TrainedBatch {
            loss: step.loss,
            scores: scores.unwrap_or_default(),
            timeline: step.timeline,
        };
        let (pipeline, gradients) = (&mut self.pipeline, step.gradients);
        let spans = self.optimizer.step(rate, pipeline, gradients, began)?;
        for (stage, span) in self.pipeline.stages().iter().zip(spans) {
            trained.timeline.workers[stage.worker].push(span);
        }
        Ok(trained)
    }

    /// Scores the test set, once more if it was stopped meanwhile. Returns whether it was.
    fn test_to_the_end<I, D, B>(&self, data: &Data<D, B>) -> Result<(Scores, bool), TrainError>
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, (L::Input, Tensor<1, Int>)> + 'static,
    {
        let was_stopped = self.stop.is_stopped();
        self.stop.reset();
        match self.test(data) {
            Err(TrainError::Step(StepError::Stopped)) => {
                self.stop.reset();
                Ok((self.test(data)?, true))
            }
            result => Ok((result?, was_stopped)),
        }
    }

    /// Scores the test set.
    fn test<I, D, B>(&self, data: &Data<D, B>) -> Result<Scores, TrainError>
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, (L::Input, Tensor<1, Int>)> + 'static,
    {
        let order = (0..data.test.len()).collect();
        let mut scores = Scores::default();
        for loaded in self.load(&data.test, data.test_batcher.clone(), order) {
            let (input, targets) = loaded?;
            let output = self.pipeline.infer(input)?;
            let device = targets.device();
            let output = output.to_device(&device);
            let weight = Objective::<Tensor<2>, _>::weight(&self.objective, &targets);
            let loss = self.objective.loss(output.clone(), targets.clone());
            let loss = f64::from(loss.into_scalar::<f32>()) / weight;
            scores.add(Scores::of(output, targets), loss);
        }
        Ok(scores)
    }

    fn load<I, D, B>(
        &self,
        set: &Arc<D>,
        batcher: Arc<B>,
        order: Vec<usize>,
    ) -> Loader<(L::Input, Tensor<1, Int>)>
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, (L::Input, Tensor<1, Int>)> + 'static,
    {
        // Batches are made on the CPU; the first and the last stage take them to their devices.
        Loader::new(
            set.clone(),
            batcher,
            order,
            self.settings.batch_size,
            Device::flex(),
        )
    }

    fn report(
        &self,
        index: usize,
        epoch: &Epoch,
        test: &Scores,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let metrics = EpochMetrics {
            epoch: index + 1,
            steps: epoch.steps,
            learning_rate: epoch.rate,
            train_loss: epoch.scores.mean_loss(),
            train_accuracy: epoch.scores.accuracy(),
            test_loss: test.mean_loss(),
            test_accuracy: test.accuracy(),
            test_top5: test.top5_accuracy(),
            samples_per_second: epoch.samples_per_second(),
            bubble: epoch.bubble(),
            seconds: epoch.seconds,
        };
        progress.epoch(index + 1, &metrics.to_string());
        folder.append_json_line("metrics.jsonl", &metrics)
    }

    fn summary(&self, epochs: &[Epoch], test: &Scores, seconds: f64, stopped: bool) -> Summary {
        let sum = |of: fn(&Epoch) -> f64| epochs.iter().map(of).sum::<f64>();
        let steps = sum(|epoch| epoch.steps as f64).max(1.0);
        let trained_for = sum(|epoch| epoch.seconds).max(f64::MIN_POSITIVE);
        Summary {
            parameters: count_parameters(&self.pipeline),
            stages: stage_summaries(&self.pipeline),
            epochs: epochs.iter().filter(|epoch| !epoch.stopped).count(),
            train_loss: epochs.last().map_or(0.0, |epoch| epoch.scores.mean_loss()),
            test_loss: test.mean_loss(),
            test_accuracy: test.accuracy(),
            test_top5: test.top5_accuracy(),
            samples_per_second: sum(|epoch| epoch.scores.samples as f64) / trained_for,
            bubble: sum(|epoch| epoch.bubbles) / steps,
            seconds,
            stopped,
        }
    }

    fn write(&self, folder: &RunFolder, summary: &Summary) -> Result<(), TrainError> {
        save_model(&self.pipeline, folder.file("model.safetensors"))?;
        let labels = worker_labels(&self.pipeline.stages());
        folder.write("timeline.svg", self.timeline.to_svg(&labels).as_bytes())?;
        folder.write_json("timeline.json", &self.timeline.to_chrome_trace(&labels))?;
        folder.write_json("summary.json", summary)
    }
}

/// What pictures call each worker: its stages, with their layers if it has one stage, and its device.
fn worker_labels(stages: &[Stage]) -> Vec<String> {
    let workers = stages.iter().map(|stage| stage.worker + 1).max();
    let label = |worker| {
        let own = stages
            .iter()
            .enumerate()
            .filter(|(_, s)| s.worker == worker);
        match own.collect::<Vec<_>>()[..] {
            [(index, stage)] => one_stage_label(index, stage),
            ref several => {
                let numbers: Vec<_> = several.iter().map(|(index, _)| index.to_string()).collect();
                let device = several.first().map_or("", |(_, stage)| &stage.device_name);
                format!("stages {} · {device}", numbers.join(", "))
            }
        }
    };
    (0..workers.unwrap_or(0)).map(label).collect()
}

fn one_stage_label(index: usize, stage: &Stage) -> String {
    let (first, last) = (stage.layers.start, stage.layers.end - 1);
    let device = &stage.device_name;
    match first == last {
        true => format!("stage {index} · layer {first} · {device}"),
        false => format!("stage {index} · layers {first}–{last} · {device}"),
    }
}

/// What is left of a step when its gradients have been used.
struct TrainedBatch {
    loss: f64,
    scores: Scores,
    timeline: Timeline,
}
