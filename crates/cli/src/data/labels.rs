//! What images show: a class each, or shares of several where images are mixed.

use burn::tensor::{Int, Tensor};
use stovepipe::{
    Flow,
    pipeline::{CrossEntropy, Objective},
};

/// The targets of a batch of images.
#[derive(Clone, Debug, Flow)]
pub enum Labels {
    /// The class of each `[n]`.
    Classes(Tensor<1, Int>),
    /// The share of each class `[n, classes]`.
    Shares(Tensor<2>),
}

impl Objective<Tensor<2>, Labels> for CrossEntropy {
    fn loss(&self, logits: Tensor<2>, labels: Labels) -> Tensor<1> {
        match labels {
            Labels::Classes(classes) => self.loss(logits, classes),
            Labels::Shares(shares) => self.loss(logits, shares),
        }
    }

    fn weight(&self, labels: &Labels) -> f64 {
        match labels {
            Labels::Classes(classes) => Objective::<Tensor<2>, _>::weight(self, classes),
            Labels::Shares(shares) => Objective::<Tensor<2>, _>::weight(self, shares),
        }
    }

    fn auxiliary_loss(&self, logits: Tensor<2>, labels: Labels) -> Tensor<1> {
        match labels {
            Labels::Classes(classes) => self.auxiliary_loss(logits, classes),
            Labels::Shares(shares) => self.auxiliary_loss(logits, shares),
        }
    }

    fn scores(&self, logits: Tensor<2>, labels: Labels) -> Option<Tensor<1>> {
        match labels {
            Labels::Classes(classes) => self.scores(logits, classes),
            Labels::Shares(shares) => self.scores(logits, shares),
        }
    }
}
