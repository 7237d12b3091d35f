//! The loss, in a form in which micro-batches add up to the mini-batch exactly.

use burn::tensor::Tensor;

use crate::model::{flow::Flow, flows};

/// What training minimises: the mean loss of a mini-batch.
///
/// It is Σ `loss` over the micro-batches, divided by the `weight` of the whole mini-batch, which is known
/// before the first backward pass. So a micro-batch with few samples, or with many padded tokens, counts
/// less.
pub trait Objective<O, T>: Clone + Send + 'static {
    /// The *sum* of the weighted losses of the samples (or tokens), as one element.
    fn loss(&self, output: O, target: T) -> Tensor<1>;

    /// The sum of the weights: the number of samples, or of tokens that are not padding.
    fn weight(&self, target: &T) -> f64;

    /// The [`loss`](Self::loss) of an auxiliary head's output, times the head's share. By default it counts
    /// as much as the main loss.
    fn auxiliary_loss(&self, output: O, target: T) -> Tensor<1> {
        self.loss(output, target)
    }

    /// Other sums over the samples of an output, such as the number of right answers. They are added over
    /// micro-batches and have no gradient. None by default.
    fn scores(&self, output: O, target: T) -> Option<Tensor<1>> {
        let _ = (output, target);
        None
    }

    /// [`loss`](Self::loss) and [`scores`](Self::scores), for objectives that compute both at once.
    fn loss_and_scores(&self, output: O, target: T) -> (Tensor<1>, Option<Tensor<1>>)
    where
        O: Flow,
        T: Flow,
    {
        let scores = self.scores(flows::detach(output.clone()), target.clone());
        (self.loss(output, target), scores)
    }
}

/// A loss function that returns the mean over its samples, as most do.
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
pub struct MeanOf<F>(pub F);

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
