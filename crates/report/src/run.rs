//! What a run's JSON files say: `summary.json`, and the lines of `metrics.jsonl`.
//!
//! JSON has no word for numbers that are none. Where a program could give no finite number, these
//! files have `null`, and here it becomes NaN.

use serde::{Deserialize, Deserializer};

/// What a run came to: `summary.json`.
///
/// ```
/// use stovepipe_report::Summary;
///
/// let text = r#"{
///     "parameters": 101326,
///     "stages": [{ "worker": 0, "device": "cpu", "layers": ["Stem", "Head"], "parameters": 101326 }],
///     "epochs": 8,
///     "test": { "loss": 0.15, "accuracy": 0.98, "top5": 1.0 },
///     "samples_per_second": 201.4,
///     "bubble": 0.21,
///     "seconds": 47.7,
///     "stopped": false
/// }"#;
/// let summary: Summary = serde_json::from_str(text)?;
/// assert_eq!(summary.stages[0].layers, ["Stem", "Head"]);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Summary {
    /// Parameters of the model.
    pub parameters: u64,
    /// What each stage held.
    pub stages: Vec<Stage>,
    /// Epochs that were trained to their end.
    pub epochs: usize,
    /// What the test set says of the model.
    pub test: Scores,
    /// What it says of the averaged weights, if there are any.
    pub averaged: Option<Scores>,
    /// Training samples a second.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub bubble: f64,
    /// Seconds that the run took.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
    /// Whether it was stopped before its end.
    pub stopped: bool,
}

/// A stage of a pipeline.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Stage {
    /// The worker that ran it, counted from 0.
    pub worker: usize,
    /// Its device.
    pub device: String,
    /// The names of its layers, in order.
    pub layers: Vec<String>,
    /// Its parameters.
    pub parameters: u64,
}

/// How good a model is.
///
/// ```
/// use stovepipe_report::Scores;
///
/// let text = r#"{ "loss": null, "accuracy": 0.5, "top5": 0.9, "perplexity": 2.9 }"#;
/// let scores: Scores = serde_json::from_str(text)?;
/// assert!(scores.loss.is_nan());
/// assert_eq!(scores.perplexity, Some(2.9)); // none if the model has no language
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Scores {
    /// Mean loss.
    #[serde(deserialize_with = "number")]
    pub loss: f64,
    /// Share of the samples, or tokens, that were right, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub accuracy: f64,
    /// Share of those whose class was among the five likeliest, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub top5: f64,
    /// Of a language model: its perplexity a token.
    #[serde(default, deserialize_with = "some_number")]
    pub perplexity: Option<f64>,
}

/// An epoch: a line of `metrics.jsonl`.
///
/// ```
/// use stovepipe_report::Epoch;
///
/// let line = r#"{"epoch":1,"steps":23,"learning_rate":0.004,"train_loss":1.7,"train_accuracy":0.5,
///     "test":{"loss":1.8,"accuracy":0.54,"top5":0.95},"samples_per_second":99,"bubble":0.2,"seconds":14.6}"#;
/// let epoch: Epoch = serde_json::from_str(line)?;
/// assert_eq!(epoch.test.accuracy, 0.54);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct Epoch {
    /// Which one, counted from 1.
    pub epoch: usize,
    /// Mini-batches.
    pub steps: usize,
    /// The learning rate of its last update.
    #[serde(deserialize_with = "number")]
    pub learning_rate: f64,
    /// Mean loss of the training samples, with label smoothing and the losses of auxiliary heads.
    #[serde(deserialize_with = "number")]
    pub train_loss: f64,
    /// Share of the training samples that were right, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub train_accuracy: f64,
    /// What the test set says of the model after it.
    pub test: Scores,
    /// What it says of the averaged weights, if there are any.
    pub averaged: Option<Scores>,
    /// How the loss was scaled, if it was.
    pub loss_scale: Option<LossScale>,
    /// Training samples a second.
    #[serde(deserialize_with = "number")]
    pub samples_per_second: f64,
    /// Mean share of a step in which stages were idle, from 0 to 1.
    #[serde(deserialize_with = "number")]
    pub bubble: f64,
    /// Seconds that it took to train.
    #[serde(deserialize_with = "number")]
    pub seconds: f64,
}

/// What an epoch in f16 made of its gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
pub struct LossScale {
    /// What the loss was multiplied by in the end.
    #[serde(deserialize_with = "number")]
    pub scale: f64,
    /// Updates that were skipped because gradients were not finite.
    pub skipped: u64,
}

fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let number = Option::deserialize(deserializer)?;
    Ok(number.unwrap_or(f64::NAN))
}

/// A number that may be left out. `null` is not left out: it is a number that is none.
fn some_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    number(deserializer).map(Some)
}
