//! What a run says of itself when it is over, and after each epoch.

use std::fmt;

use serde::Serialize;
use stovepipe_pipeline::{Layer, Pipeline};

use crate::scores::Metrics;

/// What a run came to: `summary.json`.
///
/// What was tested is under `test`, as it is in `metrics.jsonl`: `test.loss`, `test.accuracy`, `test.top5`, and of tokens
/// `test.perplexity`. Files of earlier versions have `test_loss` and `test_accuracy` instead.
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
    /// What the test set says of the model, without label smoothing.
    pub test: Metrics,
    /// What it says of the averaged weights, if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub averaged: Option<Metrics>,
    /// Training samples a second, loading and updates included, testing not.
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle.
    pub bubble: f64,
    /// In f16, how the loss is scaled, and what that has cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    /// Duration of the run.
    pub seconds: f64,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// What came of scaling the loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LossScale {
    /// What the loss is multiplied by in the end.
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

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct EpochMetrics {
    pub(crate) epoch: usize,
    pub(crate) steps: usize,
    pub(crate) updates: usize,
    pub(crate) learning_rate: f64,
    /// With label smoothing and the losses of auxiliary heads.
    pub(crate) train_loss: f64,
    pub(crate) train_accuracy: f64,
    pub(crate) test: Metrics,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) averaged: Option<Metrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) loss_scale: Option<LossScale>,
    pub(crate) samples_per_second: f64,
    pub(crate) bubble: f64,
    pub(crate) seconds: f64,
}

/// What a pipeline's stages hold.
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
/// # use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};
/// # #[derive(Module, Debug)]
/// # struct Dense { linear: Linear }
/// # impl Layer for Dense {
/// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
/// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
/// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
/// #         Ok(self.linear.forward(x))
/// #     }
/// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
/// # }
/// # let device = Device::flex();
/// let layers = vec![Dense { linear: LinearConfig::new(3, 2).init(&device) }];
/// let pipeline = Pipeline::builder(layers).devices([device]).build()?;
/// assert_eq!(stovepipe_train::stage_summaries(&pipeline)[0].parameters, 8);
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
        let (loss, accuracy) = (self.train_loss, 100.0 * self.train_accuracy);
        write!(
            f,
            "train loss {loss:.4}, accuracy {accuracy:.1} % · test {}",
            self.test
        )?;
        if let Some(averaged) = &self.averaged {
            write!(f, " · averaged {averaged}")?;
        }
        if let Some(LossScale { scale, skipped }) = self.loss_scale {
            write!(f, " · loss scale {scale}, {skipped} updates skipped")?;
        }
        write!(
            f,
            " · {:.0} samples/s · bubble {:.0} % · {:.1} s",
            self.samples_per_second,
            100.0 * self.bubble,
            self.seconds
        )
    }
}
