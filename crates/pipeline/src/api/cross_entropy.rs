//! Softmax cross-entropy.

#![cfg_attr(test, allow(clippy::unwrap_used))]

use burn::tensor::{Bool, Int, Tensor, activation::log_softmax};
use stovepipe_autodiff::arange;

use crate::{api::objective::Objective, model::flow::Flow};

/// Softmax cross-entropy, with label smoothing and an ignored class (padding).
///
/// Logits are `[n, classes]` with targets `[n]`, or with shares of the classes `[n, classes]` for mixed
/// images; or `[n, length, classes]` with targets `[n, length]`. Smoothing ε gives every class ε / classes
/// of the target, as in PyTorch and in Szegedy et al., "Rethinking the Inception Architecture" (2016).
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
///
/// let logits = Tensor::<2>::from_floats([[0.1, 0.9, 0.0], [5.0, 4.0, 3.0]], &device);
/// let target = Tensor::<1, Int>::from_ints([1, 2], &device);
/// let scores = loss.counting().scores(logits, target).unwrap(); // best, and among the best five
/// assert_eq!(scores.into_data().iter::<f32>().collect::<Vec<_>>(), [1.0, 2.0]);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CrossEntropy {
    smoothing: f64,
    ignored: Option<i64>,
    auxiliary_share: Option<f64>,
    counting: bool,
}

impl CrossEntropy {
    /// No smoothing, no ignored class, auxiliary heads count fully.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Smooths the labels by `smoothing`, a fraction from 0 to 1.
    #[must_use]
    pub fn with_smoothing(self, smoothing: f64) -> Self {
        Self { smoothing, ..self }
    }

    /// Ignores targets equal to `class`.
    #[must_use]
    pub fn ignoring(mut self, class: i64) -> Self {
        self.ignored = Some(class);
        self
    }

    /// Multiplies the loss of auxiliary heads by `share`.
    #[must_use]
    pub fn with_auxiliary_share(mut self, share: f64) -> Self {
        self.auxiliary_share = Some(share);
        self
    }

    /// Adds two [scores](Objective::scores): for how many samples (or tokens) the target has the highest
    /// logit, and for how many it is among the five highest. Of equal logits, the first one counts as
    /// higher. NaN is never right.
    #[must_use]
    pub fn counting(mut self) -> Self {
        self.counting = true;
        self
    }

    /// How much of the target all classes share.
    #[must_use]
    pub fn smoothing(&self) -> f64 {
        self.smoothing
    }

    /// The class that is not counted, if there is one.
    #[must_use]
    pub fn ignored(&self) -> Option<i64> {
        self.ignored
    }

    /// Whether it has scores, see [`counting`](Self::counting).
    #[must_use]
    pub fn is_counting(&self) -> bool {
        self.counting
    }

    fn shared(&self, auxiliary: Tensor<1>) -> Tensor<1> {
        match self.auxiliary_share {
            Some(share) => auxiliary.mul_scalar(share),
            None => auxiliary,
        }
    }
}

impl Objective<Tensor<2>, Tensor<1, Int>> for CrossEntropy {
    fn loss(&self, logits: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
        let [_, classes] = logits.dims();
        let ignored = self.ignored.map(|class| target.clone().equal_elem(class));
        let target = match &ignored {
            // Any class: its loss is masked below.
            Some(mask) => target.mask_fill(mask.clone(), 0),
            None => target,
        };
        let log_probabilities = log_softmax(logits, 1);
        let of_target = log_probabilities.clone().gather(1, target.unsqueeze_dim(1));
        let mut losses = of_target.mul_scalar(-(1.0 - self.smoothing));
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
        self.shared(self.loss(logits, target))
    }

    fn scores(&self, logits: Tensor<2>, target: Tensor<1, Int>) -> Option<Tensor<1>> {
        self.counting.then(|| {
            let is_counted = |class| target.clone().not_equal_elem(class);
            let counted = self.ignored.map(is_counted);
            // An ignored class may have no logit.
            let target = match &counted {
                Some(counted) => target.mask_fill(counted.clone().bool_not(), 0),
                None => target,
            };
            right_answers(logits, target, counted)
        })
    }
}

impl Objective<Tensor<2>, Tensor<2>> for CrossEntropy {
    fn loss(&self, logits: Tensor<2>, shares: Tensor<2>) -> Tensor<1> {
        let [_, classes] = logits.dims();
        let smooth = self.smoothing / classes as f64;
        let shares = shares.mul_scalar(1.0 - self.smoothing).add_scalar(smooth);
        log_softmax(logits, 1).mul(shares).sum().neg()
    }

    fn weight(&self, shares: &Tensor<2>) -> f64 {
        shares.dims()[0] as f64
    }

    fn auxiliary_loss(&self, logits: Tensor<2>, shares: Tensor<2>) -> Tensor<1> {
        self.shared(self.loss(logits, shares))
    }

    /// The class with the largest share counts.
    fn scores(&self, logits: Tensor<2>, shares: Tensor<2>) -> Option<Tensor<1>> {
        let [samples, _] = shares.dims();
        self.counting
            .then(|| right_answers(logits, shares.argmax(1).reshape([samples]), None))
    }
}

/// The logits of tokens, `[n, length, classes]`, or what they will be made of: a language model's output. With
/// large vocabularies, a type of its own need not have them all in memory to compute their loss.
pub trait TokenLogits: Flow {
    /// The logits.
    fn logits(self) -> Tensor<3>;

    /// The loss and the scores of [`CrossEntropy`], for targets `[n, length]`.
    fn cross_entropy(
        self,
        target: Tensor<2, Int>,
        objective: &CrossEntropy,
    ) -> (Tensor<1>, Option<Tensor<1>>) {
        let logits = self.logits().flatten::<2>(0, 1);
        objective.loss_and_scores(logits, target.flatten::<1>(0, 1))
    }
}

impl TokenLogits for Tensor<3> {
    fn logits(self) -> Tensor<3> {
        self
    }
}

impl<O: TokenLogits> Objective<O, Tensor<2, Int>> for CrossEntropy {
    fn loss(&self, logits: O, target: Tensor<2, Int>) -> Tensor<1> {
        let uncounted = Self {
            counting: false,
            ..*self
        };
        logits.cross_entropy(target, &uncounted).0
    }

    fn weight(&self, target: &Tensor<2, Int>) -> f64 {
        Objective::<Tensor<2>, _>::weight(self, &target.clone().flatten::<1>(0, 1))
    }

    fn auxiliary_loss(&self, logits: O, target: Tensor<2, Int>) -> Tensor<1> {
        self.shared(self.loss(logits, target))
    }

    fn scores(&self, logits: O, target: Tensor<2, Int>) -> Option<Tensor<1>> {
        (self.counting).then(|| logits.cross_entropy(target, self).1)?
    }

    fn loss_and_scores(&self, logits: O, target: Tensor<2, Int>) -> (Tensor<1>, Option<Tensor<1>>) {
        logits.cross_entropy(target, self)
    }
}

/// For how many of the `counted` samples the target has the highest logit, and for how many it is among the
/// five highest.
fn right_answers(
    logits: Tensor<2>,
    target: Tensor<1, Int>,
    counted: Option<Tensor<1, Bool>>,
) -> Tensor<1> {
    let shape @ [_, classes] = logits.dims();
    let target = target.unsqueeze_dim::<2>(1);
    let own = logits.clone().gather(1, target.clone());
    let higher = logits.clone().greater(own.clone().expand(shape));
    let equal = logits.equal(own.clone().expand(shape));
    let places = arange(0..classes as i64, &target.device());
    let places = places.unsqueeze_dim::<2>(0).expand(shape);
    let before = places.lower(target.expand(shape));
    let rank = higher.bool_or(equal.bool_and(before)).int().sum_dim(1);
    let mut counts = own.is_nan().bool_not();
    if let Some(counted) = counted {
        counts = counts.bool_and(counted.unsqueeze_dim(1));
    }
    let right = |most: i64| {
        let right = rank.clone().lower_elem(most).bool_and(counts.clone());
        right.int().sum().float()
    };
    Tensor::cat(vec![right(1), right(5)], 0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;

    /// The same by sorting, one sample at a time.
    fn by_sorting(logits: &[f32], target: usize) -> [f32; 2] {
        let mut classes: Vec<_> = (0..logits.len()).collect();
        classes.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        let place = classes.iter().position(|&class| class == target).unwrap();
        [place < 1, place < 5].map(|is_right| f32::from(u8::from(is_right)))
    }

    fn counted(logits: Vec<Vec<f32>>, targets: Vec<i64>) -> Vec<f32> {
        let (samples, classes, device) = (logits.len(), logits[0].len(), Device::flex());
        let logits = TensorData::new(logits.concat(), [samples, classes]);
        let logits = Tensor::from_data(logits, &device);
        let target = Tensor::<1, Int>::from_data(TensorData::new(targets, [samples]), &device);
        let objective = CrossEntropy::new().ignoring(-1).counting();
        let scores = objective.scores(logits, target).unwrap();
        scores.into_data().iter().collect()
    }

    #[test]
    fn right_answers_are_those_of_a_sort() {
        // Few different values, for ties; a stable sort puts the first class first.
        let value = |sample: usize, class: usize| ((sample * 7 + class * class * 3) % 5) as f32;
        let row = |sample| (0..9).map(|class| value(sample, class)).collect();
        let logits: Vec<Vec<_>> = (0..40).map(row).collect();
        let targets: Vec<_> = (0..40).map(|sample| sample % 9).collect();
        let mut expected = [0.0; 2];
        for (logits, &target) in logits.iter().zip(&targets) {
            let right = by_sorting(logits, target);
            expected = [expected[0] + right[0], expected[1] + right[1]];
        }
        let targets = targets.iter().map(|&target| target as i64).collect();
        assert_eq!(counted(logits, targets), expected);
        assert!(expected[0] > 0.0 && expected[1] > expected[0] && expected[1] < 40.0);
    }

    #[test]
    fn padding_and_nan_are_never_right() {
        let logits = vec![vec![1.0, 0.0], vec![f32::NAN, 1.0], vec![f32::NAN, 1.0]];
        assert_eq!(counted(logits.clone(), vec![-1, 0, 1]), [1.0, 1.0]);
        assert_eq!(counted(logits, vec![0, 0, 0]), [1.0, 1.0]);
    }

    #[test]
    fn shares_of_one_class_are_that_class() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.3, -1.0, 2.0], [0.0, 0.5, 0.1]], &device);
        let classes = Tensor::<1, Int>::from_ints([2, 0], &device);
        let shares = Tensor::<2>::from_floats([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], &device);
        for smoothing in [0.0, 0.2] {
            let objective = CrossEntropy::new().with_smoothing(smoothing).counting();
            let of_classes = objective.loss(logits.clone(), classes.clone());
            let of_shares = objective.loss(logits.clone(), shares.clone());
            let difference = (of_classes - of_shares).into_scalar::<f32>();
            assert!(difference.abs() < 1e-6, "{difference}");
            let scores = objective.scores(logits.clone(), shares.clone()).unwrap();
            let scores: Vec<f32> = scores.into_data().iter().collect();
            assert_eq!(scores, [1.0, 2.0]);
        }
    }
}
