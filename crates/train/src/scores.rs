//! How good a classifier is.

use burn::tensor::{Int, Tensor};

/// Counts of a classifier's answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    /// Samples seen.
    pub samples: usize,
    /// Samples whose class got the highest logit.
    pub top1: usize,
    /// Samples whose class was among the five highest.
    pub top5: usize,
    /// Sum of the losses over samples.
    pub loss: f64,
}

impl Scores {
    /// Counts the answers for logits `[n, classes]` and targets `[n]`.
    ///
    /// A class counts by the number of classes with a higher logit, and among equal ones by those
    /// before it: there is one answer, whatever the ties. A logit that is no number is never right.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use stovepipe_train::Scores;
    ///
    /// let device = Device::flex();
    /// let logits = Tensor::<2>::from_floats(
    ///     [[0.1, 0.9, 0.0, 0.0, 0.0, 0.0], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]],
    ///     &device,
    /// );
    /// let scores = Scores::of(logits, Tensor::<1, Int>::from_ints([1, 5], &device));
    /// assert_eq!((scores.samples, scores.top1, scores.top5), (2, 1, 1));
    /// ```
    #[must_use]
    pub fn of(logits: Tensor<2>, targets: Tensor<1, Int>) -> Self {
        let [samples, classes] = logits.dims();
        let logits: Vec<f32> = logits.into_data().iter().collect();
        let targets: Vec<i64> = targets.into_data().iter().collect();
        let ranks = (logits.chunks(classes).zip(&targets))
            .filter_map(|(logits, &target)| rank(logits, usize::try_from(target).ok()?));
        let mut scores = Self {
            samples,
            ..Self::default()
        };
        for rank in ranks {
            scores.top1 += usize::from(rank < 1);
            scores.top5 += usize::from(rank < 5);
        }
        scores
    }

    /// Adds the counts of more samples, whose mean loss is `loss`.
    pub fn add(&mut self, other: Self, loss: f64) {
        self.top1 += other.top1;
        self.top5 += other.top5;
        self.loss += loss * other.samples as f64;
        self.samples += other.samples;
    }

    /// The share of samples that were right.
    #[must_use]
    pub fn accuracy(&self) -> f64 {
        self.mean(self.top1 as f64)
    }

    /// The share of samples whose class was among the five highest.
    #[must_use]
    pub fn top5_accuracy(&self) -> f64 {
        self.mean(self.top5 as f64)
    }

    /// The mean loss.
    #[must_use]
    pub fn mean_loss(&self) -> f64 {
        self.mean(self.loss)
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / (self.samples.max(1)) as f64
    }
}

/// The number of classes before `target` in the order of their logits.
fn rank(logits: &[f32], target: usize) -> Option<usize> {
    let own = logits.get(target).filter(|own| !own.is_nan())?;
    let higher = logits.iter().filter(|other| *other > own).count();
    let equal_before = logits[..target]
        .iter()
        .filter(|other| *other == own)
        .count();
    Some(higher + equal_before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_by_logit_then_by_place() {
        let check = |logits: &[f32], target, expected| assert_eq!(rank(logits, target), expected);
        check(&[0.0, 2.0, 1.0], 1, Some(0));
        check(&[0.0, 2.0, 1.0], 0, Some(2));
        check(&[1.0, 1.0, 1.0], 0, Some(0));
        check(&[1.0, 1.0, 1.0], 2, Some(2));
        check(&[f32::NAN, 1.0], 0, None);
        check(&[f32::NAN, 1.0], 1, Some(0));
        check(&[1.0], 3, None);
    }
}
