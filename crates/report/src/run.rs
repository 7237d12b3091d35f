//! The contents of a run's JSON files: `summary.json`, and the lines of `metrics.jsonl` and `steps.jsonl`.
//!
//! JSON cannot express NaN or infinity. The files have `null` instead, which is read as NaN.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// The results of a run: `summary.json`.
///
/// ```
/// use stovepipe_report::RunSummary;
///
/// let text = r#"{
///     "parameters": 101326, "epochs": 8, "test": { "loss": null, "mean_iou": 0.6 }, "stopped": false,
///     "stages": [{ "worker": 0, "device": "cpu", "layers": ["Stem", "Head"], "parameters": 101326 }],
///     "samples_per_second": 201.4, "bubble": 0.21, "seconds": 47.7
/// }"#;
/// let summary: RunSummary = serde_json::from_str(text)?;
/// assert_eq!(summary.stages[0].layers, ["Stem", "Head"]);
/// assert!(summary.test.loss.is_nan());
/// assert_eq!(summary.test.get("mean_iou"), Some(0.6));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct RunSummary {
    /// Parameters of the model.
    pub parameters: u64,
    /// The stages of the pipeline.
    pub stages: Vec<StageSummary>,
    /// Finished epochs.
    pub epochs: usize,
    /// Scores on the test set.
    pub test: TestScores,
    /// Scores of the averaged weights, if there are any.
    pub averaged: Option<TestScores>,
    /// Training samples per second.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub bubble: f64,
    /// Whether that is the time in which work was launched, not done: a device is a GPU.
    #[serde(default)]
    pub host_time: bool,
    /// Duration of the run in seconds.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Whether the run was stopped early.
    pub stopped: bool,
}

/// A stage of the pipeline.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct StageSummary {
    /// The worker that ran it, counted from 0.
    pub worker: usize,
    /// Its device.
    pub device: String,
    /// The names of its layers, in order.
    pub layers: Vec<String>,
    /// Its parameters.
    pub parameters: u64,
}

/// Scores on the test set.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TestScores {
    /// Mean loss.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// The metrics of the run's task by name, such as `accuracy` or `perplexity`.
    #[serde(flatten, deserialize_with = "numbers")]
    pub metrics: BTreeMap<String, f64>,
}

impl TestScores {
    /// A metric by name, or `loss`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        if name == "loss" {
            return Some(self.loss);
        }
        self.metrics.get(name).copied()
    }
}

/// An epoch: a line of `metrics.jsonl`.
///
/// ```
/// use stovepipe_report::Epoch;
///
/// let line = r#"{"epoch":1,"steps":23,"learning_rate":0.004,"train_loss":1.7,"train_accuracy":0.5,
///     "test":{"loss":1.8,"accuracy":0.54,"top5":0.95},"samples_per_second":99,"bubble":0.2,"seconds":14.6}"#;
/// let epoch: Epoch = serde_json::from_str(line)?;
/// assert_eq!(epoch.train["accuracy"], 0.5);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Epoch {
    /// Its number, counted from 1.
    pub epoch: usize,
    /// Its mini-batches.
    pub steps: usize,
    /// The learning rate of its last update.
    #[serde(deserialize_with = "number")]
    pub learning_rate: f64,
    /// Mean training loss, with label smoothing and auxiliary heads.
    #[serde(deserialize_with = "number")]
    pub train_loss: f64,
    /// Metrics of the training samples by name: `accuracy` is `train_accuracy` in the file.
    #[serde(flatten, deserialize_with = "training_numbers")]
    pub train: BTreeMap<String, f64>,
    /// Scores on the test set after the epoch, if it was tested.
    pub test: Option<TestScores>,
    /// Scores of the averaged weights, if there are any.
    pub averaged: Option<TestScores>,
    /// The scaling of the loss, in f16.
    pub loss_scale: Option<LossScaling>,
    /// Training samples per second.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub bubble: f64,
    /// Whether that is the time in which work was launched, not done.
    #[serde(default)]
    pub host_time: bool,
    /// Duration of its training in seconds.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// The scaling of the loss in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct LossScaling {
    /// The factor at the end of the epoch.
    #[serde(deserialize_with = "number")]
    pub scale: f64,
    /// Updates skipped because gradients were not finite.
    pub skipped: u64,
}

/// A mini-batch: a line of `steps.jsonl`.
///
/// ```
/// use stovepipe_report::Step;
///
/// let line = r#"{"step":7,"epoch":1,"loss":2.1,"learning_rate":0.001,"gradient_norm":null,
///     "samples_per_second":180,"memory":123456789,"bubble":0.2}"#;
/// let step: Step = serde_json::from_str(line)?;
/// assert_eq!((step.step, step.gradient_norm), (7, None));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Step {
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// Its number, counted from 1 over all epochs.
    pub step: usize,
    /// Its loss.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// The learning rate of its update.
    #[serde(deserialize_with = "number")]
    pub learning_rate: f64,
    /// The norm of all gradients before they were clipped; `None` without an update.
    pub gradient_norm: Option<f64>,
    /// Samples per second, with loading and the update.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Tokens per second, of a language model.
    pub tokens_per_second: Option<f64>,
    /// Bytes of main memory that the process held, if known.
    pub memory: Option<f64>,
    /// Share of the step in which stages were idle, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub bubble: f64,
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = Option::deserialize(deserializer)?;
    Ok(number.unwrap_or(f64::NAN))
}

/// All numbers by name. `null` is NaN.
fn numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, f64>, D::Error> {
    let values = BTreeMap::<String, Value>::deserialize(deserializer)?;
    let number = |(name, value): (String, Value)| match value {
        Value::Null => Some((name, f64::NAN)),
        other => Some((name, other.as_f64()?)),
    };
    Ok(values.into_iter().filter_map(number).collect())
}

/// The numbers whose names begin with `train_`, without it.
fn training_numbers<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, f64>, D::Error> {
    let numbers = numbers(deserializer)?.into_iter();
    let of_training =
        |(name, number): (String, f64)| Some((name.strip_prefix("train_")?.to_owned(), number));
    Ok(numbers.filter_map(of_training).collect())
}
