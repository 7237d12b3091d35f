//! The results of a run and of its epochs.

use std::fmt;

use serde::Serialize;
use stovepipe_pipeline::{Layer, Pipeline};

use crate::task::{Metrics, TrainingMetrics};

/// The results of a run: `summary.json`.
///
/// Test results are under `test`, as in `metrics.jsonl`: `test.loss`, and the metrics of the task by
/// name, such as `test.accuracy`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Parameters of the model, without running statistics.
    pub parameters: usize,
    /// Layers and parameters of each stage.
    pub stages: Vec<StageSummary>,
    /// Complete epochs.
    pub epochs: usize,
    /// Mean training loss of the last epoch.
    pub train_loss: f64,
    /// Test results of the model.
    pub test: Metrics,
    /// Test results of the averaged weights, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub averaged: Option<Metrics>,
    /// The epoch whose model is in `best.safetensors`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub best: Option<BestEpoch>,
    /// Training samples a second, with loading and updates, without tests.
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle.
    pub bubble: f64,
    /// Whether that is [in host time](stovepipe_schedule::Timeline::host_time).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub host_time: bool,
    /// In f16, how the loss was scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Duration of the run.
    pub seconds: f64,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// The end of an epoch with the best test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestEpoch {
    /// Its number, counted from 1.
    pub epoch: usize,
    /// Its test results, of the averaged weights if there are any.
    pub test: Metrics,
}

/// How the loss was scaled in f16.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossScale {
    /// The last scale of the loss.
    pub scale: f64,
    /// Updates that were skipped because gradients were not finite.
    pub skipped: usize,
}

/// A stage in a summary.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSummary {
    /// The worker that ran it.
    pub worker: usize,
    /// Its device.
    pub device: String,
    /// The names of its layers.
    pub layers: Vec<String>,
    /// Its parameters.
    pub parameters: usize,
}

/// Test results of a model and of its averaged weights.
pub(super) struct Tested {
    pub(super) model: Metrics,
    pub(super) averaged: Option<Metrics>,
}

impl Tested {
    /// Those of the averaged weights, if there are any: they decide which checkpoint is best.
    pub(super) fn of_best_weights(&self) -> &Metrics {
        self.averaged.as_ref().unwrap_or(&self.model)
    }
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct EpochMetrics {
    pub(super) epoch: usize,
    pub(super) steps: usize,
    pub(super) updates: usize,
    pub(super) learning_rate: f64,
    #[serde(flatten)]
    pub(super) train: TrainingMetrics,
    /// `None` if the epoch was not tested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) test: Option<Metrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) averaged: Option<Metrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) loss_scale: Option<LossScale>,
    pub(super) samples_per_second: f64,
    pub(super) bubble: f64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) host_time: bool,
    pub(super) seconds: f64,
}

/// A line of `steps.jsonl`: a mini-batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct StepMetrics {
    /// Mini-batches of all epochs so far.
    pub(super) step: u64,
    pub(super) epoch: usize,
    pub(super) loss: f64,
    pub(super) learning_rate: f64,
    /// Before clipping; `None` if there was no update.
    pub(super) gradient_norm: Option<f64>,
    pub(super) samples_per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tokens_per_second: Option<f64>,
    /// Bytes of main memory that the process holds, if the system reports it.
    pub(super) memory: Option<u64>,
    pub(super) bubble: f64,
}

/// The layers and parameters of a pipeline's stages.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{example::Dense, run::stage_summaries};
///
/// let device = Device::flex();
/// let pipeline = Pipeline::builder(vec![Dense::new(3, 2)]).devices([device]).build()?;
/// assert_eq!(stage_summaries(&pipeline)[0].parameters, 8);
/// # Ok::<(), stovepipe_pipeline::BuildError>(())
/// ```
#[must_use]
pub fn stage_summaries<L: Layer>(pipeline: &Pipeline<L>) -> Vec<StageSummary> {
    (pipeline.stages().into_iter().zip(pipeline.stage_layers()))
        .map(|(stage, layers)| StageSummary {
            worker: stage.worker,
            layers: layers.iter().map(L::name).collect(),
            device: stage.device_name,
            parameters: stage.parameters,
        })
        .collect()
}

impl fmt::Display for EpochMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.train)?;
        if let Some(test) = &self.test {
            write!(f, " · test {test}")?;
        }
        if let Some(averaged) = &self.averaged {
            write!(f, " · averaged {averaged}")?;
        }
        if let Some(LossScale { scale, skipped }) = self.loss_scale {
            write!(f, " · loss scale {scale}, {skipped} updates skipped")?;
        }
        let (rate, bubble) = (self.samples_per_second, 100.0 * self.bubble);
        let (clock, seconds) = (clock(self.host_time), self.seconds);
        write!(
            f,
            " · {rate:.0} samples/s · bubble {bubble:.0} %{clock} · {seconds:.1} s"
        )
    }
}

/// What follows a bubble that is [in host time](stovepipe_schedule::Timeline::host_time).
pub(super) const fn clock(host_time: bool) -> &'static str {
    if host_time { " in host time" } else { "" }
}
