//! The training of a classifier, from the first batch to the files that it leaves.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::Dataset},
    module::Module,
    store::{ModuleSnapshot, SafetensorsStore},
    tensor::{Device, Int, Tensor},
};
use serde::Serialize;
use stovepipe_pipeline::{
    Batch, CrossEntropy, Layer, Objective, Outputs, Pipeline, Step, StepError, StopHandle,
    count_parameters,
};
use stovepipe_schedule::Timeline;

use crate::{
    error::TrainError,
    folder::RunFolder,
    learning_rate::LearningRate,
    loader::{Loader, shuffled},
    optimizer::StagedOptimizer,
    progress::{Progress, StepReport},
    scores::Scores,
    settings::TrainSettings,
};

/// A model that gives each input logits `[n, classes]`.
pub trait Classifier: Layer<Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Output = Tensor<2>, Side = ()>> Classifier for L {}

/// A training set and a test set, and how items become batches.
pub struct Data<D, B> {
    /// What is trained on.
    pub train: Arc<D>,
    /// What is tested with.
    pub test: Arc<D>,
    /// Makes `(input, targets [n])` of items.
    pub batcher: Arc<B>,
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

/// What a run came to: `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Parameters of the model, without running statistics.
    pub parameters: usize,
    /// Layers and parameters of each stage.
    pub stages: Vec<StageSummary>,
    /// Epochs that were trained to their end.
    pub epochs: usize,
    /// Mean loss over the last epoch's training samples, with label smoothing.
    pub train_loss: f64,
    /// Mean loss over the test samples, with label smoothing.
    pub test_loss: f64,
    /// Share of the test samples that were right.
    pub test_accuracy: f64,
    /// Share of the test samples whose class was among the five highest.
    pub test_top5: f64,
    /// Training samples a second, loading and updates included, testing not.
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle.
    pub bubble: f64,
    /// Duration of the run.
    pub seconds: f64,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// A stage in a summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    /// Its device.
    pub device: String,
    /// The names of its layers.
    pub layers: Vec<String>,
    /// Its parameters.
    pub parameters: usize,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct EpochMetrics {
    epoch: usize,
    steps: usize,
    learning_rate: f64,
    train_loss: f64,
    train_accuracy: f64,
    test_loss: f64,
    test_accuracy: f64,
    test_top5: f64,
    samples_per_second: f64,
    bubble: f64,
    seconds: f64,
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
            optimizer: StagedOptimizer::new(&settings, pipeline.stages().len()),
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
    /// If a set is empty or cannot be read, a step fails, the loss is no longer finite, or a file
    /// cannot be written.
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
        let samples = data.train.len();
        for (set, name) in [(&data.train, "training"), (&data.test, "test")] {
            if set.is_empty() {
                return Err(TrainError::EmptySet(name));
            }
        }
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
        let mut summary = self.summary(&epochs, &test, began.elapsed().as_secs_f64());
        summary.stopped = stopped;
        self.write(folder, &summary)?;
        Ok(summary)
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
        for (batch, loaded) in self.load(data, &data.train, order).enumerate() {
            epoch.rate = rate.at(index * batches + batch);
            let step = match self.train_batch(loaded?, epoch.rate) {
                Err(TrainError::Step(StepError::Stopped)) => {
                    epoch.stopped = true;
                    break;
                }
                other => other?,
            };
            if !step.loss.is_finite() {
                return Err(TrainError::LossNotFinite {
                    loss: step.loss,
                    epoch: index + 1,
                    batch: batch + 1,
                });
            }
            epoch.scores.add(step.scores, step.loss);
            epoch.steps += 1;
            epoch.bubbles += step.timeline.bubble();
            epoch.seconds = began.elapsed().as_secs_f64();
            let report = StepReport {
                loss: epoch.scores.mean_loss(),
                accuracy: epoch.scores.accuracy(),
                samples_per_second: epoch.samples_per_second(),
                slowest_stage: step.timeline.slowest_worker().unwrap_or(0),
                bubble: step.timeline.bubble(),
            };
            progress.step(index + 1, batch + 1, &report);
            // The picture is of the last mini-batch that was whole.
            if step.scores.samples == self.settings.batch_size.min(data.train.len()) {
                self.timeline = step.timeline;
            }
        }
        Ok(epoch)
    }

    /// Runs a mini-batch and updates the parameters, unless the loss is no number: the model is
    /// then the one that gave that loss.
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
        if trained.loss.is_finite() {
            let (pipeline, gradients) = (&mut self.pipeline, step.gradients);
            let spans = self.optimizer.step(rate, pipeline, gradients, began)?;
            for (stage, span) in spans.into_iter().enumerate() {
                trained.timeline.workers[stage].push(span);
            }
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
        for loaded in self.load(data, &data.test, order) {
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
        data: &Data<D, B>,
        set: &Arc<D>,
        order: Vec<usize>,
    ) -> Loader<(L::Input, Tensor<1, Int>)>
    where
        I: 'static,
        D: Dataset<I> + 'static,
        B: Batcher<I, (L::Input, Tensor<1, Int>)> + 'static,
    {
        // Batches are made on the CPU; the first and the last stage take them to their devices.
        let (set, batcher) = (set.clone(), data.batcher.clone());
        Loader::new(
            set,
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

    fn summary(&self, epochs: &[Epoch], test: &Scores, seconds: f64) -> Summary {
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
            stopped: false,
        }
    }

    fn write(&self, folder: &RunFolder, summary: &Summary) -> Result<(), TrainError> {
        save_model(&self.pipeline, folder.file("model.safetensors"))?;
        let labels: Vec<_> = (self.pipeline.stages().iter().enumerate())
            .map(|(index, stage)| {
                let (first, last) = (stage.layers.start, stage.layers.end - 1);
                let device = &stage.device_name;
                match first == last {
                    true => format!("stage {index} · layer {first} · {device}"),
                    false => format!("stage {index} · layers {first}–{last} · {device}"),
                }
            })
            .collect();
        folder.write("timeline.svg", self.timeline.to_svg(&labels).as_bytes())?;
        folder.write_json("timeline.json", &self.timeline.to_chrome_trace(&labels))?;
        folder.write_json("summary.json", summary)
    }
}

/// What is left of a step when its gradients have been used.
struct TrainedBatch {
    loss: f64,
    scores: Scores,
    timeline: Timeline,
}

/// What a pipeline's stages hold.
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # use stovepipe_pipeline::{Context, Layer, Miswired, Pipeline};
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # impl Layer for Dense {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
/// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, Miswired> {
/// #         Ok(self.linear.forward(x))
/// #     }
/// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, Miswired> { Ok(flow) }
/// # }
/// # let device = Device::flex();
/// let layers = vec![Dense { linear: LinearConfig::new(3, 2).init(&device) }];
/// let pipeline = Pipeline::builder(layers).devices([device]).build()?;
/// assert_eq!(stovepipe_train::stage_summaries(&pipeline)[0].parameters, 8);
/// # Ok::<(), stovepipe_pipeline::BuildError>(())
/// ```
#[must_use]
pub fn stage_summaries<L: Layer>(pipeline: &Pipeline<L>) -> Vec<StageSummary> {
    (pipeline.stages().into_iter())
        .map(|stage| StageSummary {
            layers: (pipeline.layers()[stage.layers].iter())
                .map(L::name)
                .collect(),
            device: stage.device_name,
            parameters: stage.parameters,
        })
        .collect()
}

/// Loads what [`save_model`] saved, under any number of stages.
///
/// # Errors
///
/// If the file cannot be read, or is of another model.
pub fn load_model<L: Layer>(pipeline: &mut Pipeline<L>, path: &Path) -> Result<(), TrainError> {
    let mut store = SafetensorsStore::from_file(path).skip_enum_variants(true);
    match pipeline.load_from(&mut store) {
        Ok(_) => Ok(()),
        Err(error) => Err(TrainError::Format {
            path: path.to_owned(),
            reason: error.to_string(),
        }),
    }
}

/// Saves a pipeline's parameters and statistics as safetensors, named by layer: `layers.3.…`.
///
/// # Errors
///
/// If the file cannot be written.
pub fn save_model<L: Layer>(pipeline: &Pipeline<L>, path: PathBuf) -> Result<(), TrainError> {
    // Burn keeps the permissions of a file that it overwrites; one of its own is for the owner alone.
    File::create(&path).map_err(TrainError::file(&path))?;
    // The metadata that Burn adds has no fixed order, and equal models should be equal files.
    let mut store = SafetensorsStore::from_file(&path)
        .clear_metadata()
        .skip_enum_variants(true)
        .overwrite(true);
    (pipeline.valid().save_into(&mut store)).map_err(|error| TrainError::Format {
        path,
        reason: error.to_string(),
    })
}

impl std::fmt::Display for EpochMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "train loss {:.4}, accuracy {:.1} % · test loss {:.4}, accuracy {:.1} %, top-5 {:.1} % · \
             {:.0} samples/s · bubble {:.0} % · {:.1} s",
            self.train_loss,
            100.0 * self.train_accuracy,
            self.test_loss,
            100.0 * self.test_accuracy,
            100.0 * self.test_top5,
            self.samples_per_second,
            100.0 * self.bubble,
            self.seconds
        )
    }
}
