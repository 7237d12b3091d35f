//! The loss, said in such a way that micro-batches add up to the mini-batch exactly.

use burn::tensor::Tensor;

use crate::model::flow::Flow;

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

    /// What else is to be known of an output: sums over its samples, such as how many of them were right. They
    /// are added up over the micro-batches, and no gradient flows through them. None by default.
    fn scores(&self, output: O, target: T) -> Option<Tensor<1>> {
        let _ = (output, target);
        None
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
