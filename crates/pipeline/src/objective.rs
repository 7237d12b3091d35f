//! The loss, said in such a way that micro-batches add up to the mini-batch exactly.

use burn::tensor::{Int, Tensor, activation::log_softmax};

use crate::flow::Flow;

/// What training makes small: the mean loss over the weight of a mini-batch.
///
/// A mini-batch's loss is Σ `loss` over its micro-batches, divided by Σ `weight`. The engine asks
/// for the weight of the whole mini-batch before the first backward pass, so that a micro-batch of
/// few samples, or of many padded tokens, counts for what it holds.
pub trait Objective<O, T>: Clone + Send + 'static {
    /// The *sum* of the weighted losses of the samples (or tokens), as one element.
    fn loss(&self, output: O, target: T) -> Tensor<1>;

    /// The sum of the weights: of samples, or of tokens that are not padding.
    fn weight(&self, target: &T) -> f64;

    /// The same as [`loss`](Self::loss) for the output of an auxiliary head, times the head's
    /// share. By default it counts as much as the main loss.
    fn auxiliary_loss(&self, output: O, target: T) -> Tensor<1> {
        self.loss(output, target)
    }
}

/// A loss function that returns the mean over the samples it is given, as most do.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_pipeline::{MeanOf, Objective};
///
/// let squared = MeanOf(|y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean());
/// let device = Device::flex();
/// let (y, t) = (Tensor::<2>::ones([4, 2], &device), Tensor::<2>::zeros([4, 2], &device));
/// assert_eq!(squared.weight(&t), 4.0);
/// assert_eq!(squared.loss(y, t).into_scalar::<f32>(), 4.0); // the sum over four samples
/// ```
#[derive(Clone, Copy, Debug)]
pub struct MeanOf<F>(
    /// The loss function.
    pub F,
);

impl<O, T, F> Objective<O, T> for MeanOf<F>
where
    T: Flow,
    F: Fn(O, T) -> Tensor<1> + Clone + Send + 'static,
{
    fn loss(&self, output: O, target: T) -> Tensor<1> {
        let weight = Objective::<O, T>::weight(self, &target);
        (self.0)(output, target).mul_scalar(weight)
    }

    fn weight(&self, target: &T) -> f64 {
        let mut sizes = Vec::new();
        target.batch_sizes(&mut sizes);
        sizes.first().map_or(0.0, |&samples| samples as f64)
    }
}

/// Softmax cross-entropy, with label smoothing and a class that is ignored (padding).
///
/// Takes logits `[n, classes]` with targets `[n]`, or logits `[n, length, classes]` with targets
/// `[n, length]`. Smoothing ε gives every class ε / classes of the target, as in PyTorch and in
/// Szegedy et al., "Rethinking the Inception Architecture" (2016).
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_pipeline::{CrossEntropy, Objective};
///
/// let device = Device::flex();
/// let logits = Tensor::<2>::zeros([2, 10], &device);
/// let target = Tensor::<1, Int>::from_ints([3, -1], &device);
/// let loss = CrossEntropy::new().ignoring(-1);
/// assert_eq!(loss.weight(&target), 1.0);
/// assert!((loss.loss(logits, target).into_scalar::<f32>() - 10f32.ln()).abs() < 1e-6);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    smoothing: f64,
    ignored: Option<i64>,
    auxiliary_share: Option<f64>,
}

impl CrossEntropy {
    /// Without smoothing; nothing ignored; auxiliary heads count fully.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Smooths the labels by `smoothing`, a fraction from 0 to 1.
    #[must_use]
    pub fn with_smoothing(self, smoothing: f64) -> Self {
        Self { smoothing, ..self }
    }

    /// Gives targets equal to `class` no weight.
    #[must_use]
    pub fn ignoring(self, class: i64) -> Self {
        Self {
            ignored: Some(class),
            ..self
        }
    }

    /// Counts the loss of auxiliary heads by `share`.
    #[must_use]
    pub fn with_auxiliary_share(self, share: f64) -> Self {
        Self {
            auxiliary_share: Some(share),
            ..self
        }
    }
}

impl Objective<Tensor<2>, Tensor<1, Int>> for CrossEntropy {
    fn loss(&self, logits: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
        let [_, classes] = logits.dims();
        let ignored = self.ignored.map(|class| target.clone().equal_elem(class));
        let target = match &ignored {
            // Any class will do: its loss is masked below.
            Some(mask) => target.mask_fill(mask.clone(), 0),
            None => target,
        };
        let log_probabilities = log_softmax(logits, 1);
        let mut losses = log_probabilities
            .clone()
            .gather(1, target.unsqueeze_dim(1))
            .mul_scalar(-(1.0 - self.smoothing));
        if self.smoothing > 0.0 {
            let uniform = log_probabilities.sum_dim(1);
            losses = losses - uniform.mul_scalar(self.smoothing / classes as f64);
        }
        if let Some(mask) = ignored {
            losses = losses.mask_fill(mask.unsqueeze_dim(1), 0.0);
        }
        losses.sum()
    }

    fn weight(&self, target: &Tensor<1, Int>) -> f64 {
        match self.ignored {
            None => target.dims()[0] as f64,
            Some(class) => {
                let counted = target.clone().not_equal_elem(class).int().sum();
                counted.into_scalar::<i64>() as f64
            }
        }
    }

    fn auxiliary_loss(&self, logits: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
        let loss = self.loss(logits, target);
        match self.auxiliary_share {
            Some(share) => loss.mul_scalar(share),
            None => loss,
        }
    }
}

impl Objective<Tensor<3>, Tensor<2, Int>> for CrossEntropy {
    fn loss(&self, logits: Tensor<3>, target: Tensor<2, Int>) -> Tensor<1> {
        self.loss(logits.flatten::<2>(0, 1), target.flatten::<1>(0, 1))
    }

    fn weight(&self, target: &Tensor<2, Int>) -> f64 {
        self.weight(&target.clone().flatten::<1>(0, 1))
    }

    fn auxiliary_loss(&self, logits: Tensor<3>, target: Tensor<2, Int>) -> Tensor<1> {
        self.auxiliary_loss(logits.flatten::<2>(0, 1), target.flatten::<1>(0, 1))
    }
}
