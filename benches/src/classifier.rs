//! Models that classify.

use burn::tensor::Tensor;
use stovepipe::prelude::*;

/// A model whose output is logits `[n, classes]`.
pub trait Classifier: Layer<Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Output = Tensor<2>, Side = ()>> Classifier for L {}
