//! Bugs that are rebuilt in an objective.

use burn::tensor::{Int, Tensor};
use stovepipe_pipeline::{Batch, CrossEntropy, Objective};
use stovepipe_verify::{Report, Verifier};

use super::steps::{SAMPLES, dense};
use crate::palette::{Value, cpu, pattern};

/// The mean over the tokens that count, or the one over the tokens of each micro-batch by itself.
#[derive(Clone)]
struct Mean {
    sum: CrossEntropy,
    of_own_tokens: bool,
}

impl Objective<Tensor<2>, Tensor<1, Int>> for Mean {
    fn loss(&self, output: Tensor<2>, target: Tensor<1, Int>) -> Tensor<1> {
        let samples = target.dims()[0] as f64;
        let tokens = self.sum.weight(&target);
        let sum = self.sum.loss(output, target);
        if self.of_own_tokens {
            sum.mul_scalar(samples / tokens.max(1.0))
        } else {
            sum
        }
    }

    fn weight(&self, target: &Tensor<1, Int>) -> f64 {
        if self.of_own_tokens {
            target.dims()[0] as f64
        } else {
            self.sum.weight(target)
        }
    }
}

pub fn mean_of_own_tokens(has_bug: bool) -> Report {
    let sum = CrossEntropy::new().ignoring(-1);
    let objective = Mean {
        sum,
        of_own_tokens: has_bug,
    };
    // Two of the first three tokens are padding, and none of the others.
    let targets = Tensor::from_ints([2, -1, -1, 0, 1, 2, 0], &cpu());
    let words = Value::Vectors(pattern([SAMPLES, 5]));
    let batch = Batch::from((words, targets, None));
    let verifier = Verifier::new(dense(), batch, objective);
    verifier.stages([1, 2]).micro_batches([3]).run().unwrap()
}
