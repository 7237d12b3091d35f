//! A task: objectives and metrics.

use stovepipe_pipeline::CrossEntropy;

use super::{
    metric::{About, Metric, Metrics},
    totals::Totals,
};
use crate::{error::TrainError, settings::TrainSettings};

/// The target of tokens that do not count in [`Task::language_model`]: the text ended before its
/// window.
pub const PADDING: i64 = -1;

/// What a model learns: the objective that training minimises, the one that tests compute, and the
/// metrics that say how good the model is.
///
/// [`classification`](Task::classification) and [`language_model`](Task::language_model) are tasks
/// for [`CrossEntropy`]. Any other [`Objective`](stovepipe_pipeline::Objective) makes a task of its
/// own: its [scores](stovepipe_pipeline::Objective::scores) are summed over all samples, and each
/// metric computes a number from these sums.
///
/// ```
/// use burn::tensor::Tensor;
/// use stovepipe_pipeline::Objective;
/// use stovepipe_train::{Metric, Task};
///
/// /// The squared error, and how many predictions are less than 0.1 off.
/// #[derive(Clone)]
/// struct Squared;
///
/// impl Objective<Tensor<2>, Tensor<2>> for Squared {
///     fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
///         (output - target).powi_scalar(2).sum()
///     }
///     fn weight(&self, target: &Tensor<2>) -> f64 {
///         target.dims()[0] as f64
///     }
///     fn scores(&self, output: Tensor<2>, target: Tensor<2>) -> Option<Tensor<1>> {
///         Some((output - target).abs().lower_elem(0.1).int().sum().float())
///     }
/// }
///
/// let task = Task::new(Squared)
///     .with_scores(["close"])
///     .with_metric(Metric::percent("within_0.1", |totals| totals.mean("close")).primary());
/// # let _ = task;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Task<O> {
    pub(crate) training: O,
    pub(crate) test: O,
    scores: Vec<String>,
    metrics: Vec<Metric>,
    /// Whether the objective's weight is a number of tokens.
    pub(crate) counts_tokens: bool,
}

impl<O: Clone> Task<O> {
    /// Minimises an objective, and measures nothing but its loss.
    pub fn new(objective: O) -> Self {
        Self {
            training: objective.clone(),
            test: objective,
            scores: Vec::new(),
            metrics: Vec::new(),
            counts_tokens: false,
        }
    }
}

impl<O> Task<O> {
    /// Tests with another objective: without label smoothing, for example.
    pub fn with_test_objective(self, test: O) -> Self {
        Self { test, ..self }
    }

    /// Names the objective's scores, in their order. Checkpoints contain their sums by name, beside
    /// `samples`, `weight` and `loss`.
    pub fn with_scores<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.scores = names.into_iter().map(Into::into).collect();
        self
    }

    /// Adds a metric.
    pub fn with_metric(mut self, metric: Metric) -> Self {
        self.metrics.push(metric);
        self
    }

    /// Removes a metric by its name. Its sums stay in checkpoints.
    pub fn without_metric(mut self, name: &str) -> Self {
        self.metrics.retain(|metric| metric.about.name != name);
        self
    }

    /// The metrics of samples with these sums.
    #[must_use]
    pub fn metrics(&self, totals: &Totals) -> Metrics {
        Metrics::of(totals, &self.metrics)
    }

    pub(crate) fn zero(&self) -> Totals {
        Totals::zero(&self.scores)
    }

    /// Adds samples with their mean loss, its weight, and the sums of their scores.
    pub(crate) fn add(
        &self,
        totals: &mut Totals,
        samples: usize,
        loss: (f64, f64),
        scores: &[f64],
    ) -> Result<(), TrainError> {
        let (named, found) = (self.scores.len(), scores.len());
        if named != found {
            return Err(TrainError::Scores { named, found });
        }
        let scores = self.scores.iter().zip(scores.iter().copied());
        totals.add(samples, loss, scores);
        Ok(())
    }

    /// Whether sums are of this task.
    pub(crate) fn fits(&self, totals: &Totals) -> bool {
        totals.has_scores(&self.scores)
    }

    /// The metric that says which checkpoints are best.
    pub(crate) fn primary(&self) -> Option<&About> {
        let mut abouts = self.metrics.iter().map(|metric| &metric.about);
        abouts.find(|about| about.is_primary)
    }
}

impl Task<CrossEntropy> {
    /// Classification, with accuracy and top-5 accuracy; the best model has the highest accuracy.
    /// Labels are smoothed, and auxiliary heads weighted, as `settings` say.
    ///
    /// ```
    /// use stovepipe_train::{Task, TrainSettings, Totals};
    ///
    /// let task = Task::classification(&TrainSettings::default());
    /// let nothing = task.metrics(&Totals::default());
    /// assert_eq!(nothing.get("loss"), Some(0.0));
    /// ```
    pub fn classification(settings: &TrainSettings) -> Self {
        Self::cross_entropy(CrossEntropy::new(), settings)
            .with_metric(accuracy().primary())
            .with_metric(top5())
    }

    /// Prediction of the next token, with accuracy and perplexity; the best model has the lowest
    /// perplexity. Targets of [`PADDING`] do not count.
    pub fn language_model(settings: &TrainSettings) -> Self {
        let perplexity = Metric::number("perplexity", |totals| totals.mean_loss().exp());
        let perplexity = perplexity.with_decimals(2).lower_is_better().test_only();
        let task = Self::cross_entropy(CrossEntropy::new().ignoring(PADDING), settings)
            .with_metric(accuracy())
            .with_metric(top5().hidden())
            .with_metric(perplexity.primary());
        Self {
            counts_tokens: true,
            ..task
        }
    }

    fn cross_entropy(objective: CrossEntropy, settings: &TrainSettings) -> Self {
        let objective = objective.counting();
        let training = objective
            .with_smoothing(settings.label_smoothing)
            .with_auxiliary_share(settings.auxiliary_share);
        Self::new(training)
            .with_test_objective(objective)
            .with_scores(["top1", "top5"])
    }
}

fn accuracy() -> Metric {
    Metric::percent("accuracy", |totals| totals.mean("top1"))
}

fn top5() -> Metric {
    Metric::percent("top5", |totals| totals.mean("top5"))
        .with_label("top-5")
        .test_only()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn shown(task: &Task<CrossEntropy>) -> (Metrics, String, String) {
        let mut totals = task.zero();
        task.add(&mut totals, 4, (0.5, 4.0), &[3.0, 4.0]).unwrap();
        let metrics = task.metrics(&totals);
        let (line, json) = (metrics.to_string(), serde_json::to_string(&metrics));
        (metrics, line, json.unwrap())
    }

    #[test]
    fn classification_and_language_models_report_what_they_always_did() {
        let settings = TrainSettings::default();
        let (_, line, json) = shown(&Task::classification(&settings));
        assert_eq!(line, "loss 0.5000, accuracy 75.0 %, top-5 100.0 %");
        assert_eq!(json, r#"{"loss":0.5,"accuracy":0.75,"top5":1.0}"#);
        let (metrics, line, json) = shown(&Task::language_model(&settings));
        assert_eq!(line, "loss 0.5000, perplexity 1.65, accuracy 75.0 %");
        let perplexity = 0.5f64.exp();
        let expected = r#"{"loss":0.5,"accuracy":0.75,"top5":1.0,"perplexity":"#;
        assert_eq!(json, format!("{expected}{perplexity}}}"));
        let train = serde_json::to_string(&crate::task::TrainingMetrics::of(metrics));
        let expected = r#"{"train_loss":0.5,"train_accuracy":0.75}"#;
        assert_eq!(train.unwrap(), expected);
    }

    #[test]
    fn the_primary_metric_says_which_model_is_better_and_then_the_loss() {
        let settings = TrainSettings::default();
        let check = |task: &Task<CrossEntropy>, better: &str, worse: &str| {
            let read = |text: &str| serde_json::from_str::<Metrics>(text).unwrap();
            let quality = |text: &str| read(text).quality(task.primary());
            assert!(quality(better) > quality(worse), "{better} {worse}");
        };
        let classes = Task::classification(&settings);
        let high = r#"{"loss":2,"accuracy":0.9}"#;
        let low = r#"{"loss":1,"accuracy":0.8}"#;
        check(&classes, high, low);
        check(&classes, r#"{"loss":1,"accuracy":0.9}"#, high);
        check(&classes, low, r#"{"loss":0}"#);
        let two = r#"{"loss":2,"perplexity":3}"#;
        let one = r#"{"loss":1,"perplexity":4}"#;
        check(&Task::language_model(&settings), two, one);
        check(&Task::new(CrossEntropy::new()), low, high);
        let ruined = r#"{"loss":null,"accuracy":1}"#; // NaN
        check(&classes, low, ruined);
        check(&Task::new(CrossEntropy::new()), low, ruined);
    }
}
