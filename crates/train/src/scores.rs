//! How good a model is.

use std::fmt;

use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{CrossEntropy, Flow, Layer, Objective, Pipeline};

use crate::{
    error::TrainError,
    source::{Batches, Task},
};

/// Counts of a model's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// Samples seen.
    pub samples: usize,
    /// What answers were counted of: samples, or tokens that are not padding.
    pub weight: f64,
    /// Answers whose class got the highest logit.
    pub top1: f64,
    /// Answers whose class was among the five highest.
    pub top5: f64,
    /// Sum of the losses.
    pub loss: f64,
}

impl Scores {
    /// Adds what is known of more samples: the weight of their mean loss, and the scores that
    /// [`CrossEntropy::counting`] gives.
    pub(crate) fn add(&mut self, samples: usize, loss: f64, weight: f64, scores: &[f64]) {
        let score = |place| scores.get(place).copied().unwrap_or(0.0);
        self.samples += samples;
        self.weight += weight;
        self.top1 += score(0);
        self.top5 += score(1);
        self.loss += loss * weight;
    }

    /// Adds those of other samples.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.samples += other.samples;
        self.weight += other.weight;
        self.top1 += other.top1;
        self.top5 += other.top5;
        self.loss += other.loss;
    }

    /// The share of answers that were right.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.mean(self.top1)
    }

    /// The share of answers whose class was among the five highest.
    #[must_use]
    pub fn top5_accuracy(&self) -> f64 {
        self.mean(self.top5)
    }

    /// The mean loss.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        self.mean(self.loss)
    }

    /// Among how many tokens, all as likely as each other, the model would be as uncertain: e to the mean
    /// loss.
    #[must_use]
    pub fn perplexity(&self) -> f64 {
        self.mean_loss().exp()
    }

    fn mean(&self, sum: f64) -> f64 {
        match self.weight > 0.0 {
            true => sum / self.weight,
            false => 0.0,
        }
    }
}

/// What files and terminals are told of scores.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Mean loss.
    pub loss: f64,
    /// Share of the samples, or tokens, that were right.
    pub accuracy: f64,
    /// Share of those whose class was among the five highest.
    pub top5: f64,
    /// Of a language model: its perplexity a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub perplexity: Option<f64>,
}

impl Metrics {
    /// What matters for a task.
    ///
    /// ```
    /// use stovepipe_train::{Metrics, Scores, Task};
    ///
    /// let scores = Scores { samples: 4, weight: 4.0, top1: 3.0, top5: 4.0, loss: 2.0 };
    /// let metrics = Metrics::of(&scores, Task::Classes);
    /// assert_eq!(metrics.to_string(), "loss 0.5000, accuracy 75.0 %, top-5 100.0 %");
    /// let metrics = Metrics::of(&scores, Task::Tokens);
    /// assert_eq!(metrics.to_string(), "loss 0.5000, perplexity 1.65, accuracy 75.0 %");
    /// ```
    #[must_use]
    pub fn of(scores: &Scores, task: Task) -> Self {
        Self {
            loss: scores.mean_loss(),
            accuracy: scores.accuracy(),
            top5: scores.top5_accuracy(),
            perplexity: (task == Task::Tokens).then(|| scores.perplexity()),
        }
    }

    /// What is higher for a better model: accuracy, or for text less perplexity; of equal ones, less loss.
    pub(crate) fn quality(&self) -> (f64, f64) {
        match self.perplexity {
            Some(perplexity) => (-perplexity, -self.loss),
            None => (self.accuracy, -self.loss),
        }
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (accuracy, top5) = (100.0 * self.accuracy, 100.0 * self.top5);
        write!(f, "loss {:.4}", self.loss)?;
        match self.perplexity {
            Some(perplexity) => write!(f, ", perplexity {perplexity:.2}, accuracy {accuracy:.1} %"),
            None => write!(f, ", accuracy {accuracy:.1} %, top-5 {top5:.1} %"),
        }
    }
}

/// Scores a model on batches, such as those of [`Source::test`](crate::Source::test). `on_batch` is told how
/// many samples have been seen.
///
/// ```
/// # use burn::{module::Module, nn::{Linear, LinearConfig}, tensor::{Device, Int, Tensor}};
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
/// use stovepipe_train::{Batches, Task, score};
///
/// let device = Device::flex();
/// let layers = vec![Dense { linear: LinearConfig::new(3, 2).init(&device) }];
/// let pipeline = Pipeline::builder(layers).devices([device.clone()]).build()?;
/// let batch = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
/// let batches: Batches<_, _> = Box::new([Ok(batch)].into_iter());
/// let scores = score(&pipeline, batches, Task::Classes, |_| ())?;
/// assert_eq!(scores.samples, 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If a batch cannot be loaded, or a forward pass fails.
pub fn score<L, T>(
    pipeline: &Pipeline<L>,
    batches: Batches<L::Input, T>,
    task: Task,
    mut on_batch: impl FnMut(usize),
) -> Result<Scores, TrainError>
where
    L: Layer<Side = ()>,
    T: Flow,
    CrossEntropy: Objective<L::Output, T>,
{
    let objective = task.objective();
    let mut scores = Scores::default();
    for batch in batches {
        let (input, target) = batch?;
        let samples = samples(&input);
        let judged = pipeline.evaluate(input, target, &objective)?;
        scores.add(samples, judged.loss, judged.weight, &judged.scores);
        on_batch(scores.samples);
    }
    Ok(scores)
}

/// The samples of an input.
fn samples(input: &impl Flow) -> usize {
    let mut sizes = Vec::new();
    input.batch_sizes(&mut sizes);
    sizes.first().copied().unwrap_or(0)
}

impl Task {
    /// What says how good a model is: without smoothing.
    pub(crate) fn objective(self) -> CrossEntropy {
        let objective = CrossEntropy::new().counting();
        match self {
            Self::Classes => objective,
            Self::Tokens => objective.ignoring(crate::source::PADDING),
        }
    }
}
