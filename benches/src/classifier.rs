//! What is measured: models that tell classes.

use burn::tensor::Tensor;
use stovepipe::prelude::*;

/// A model that gives each input logits `[n, classes]`.
pub trait Classifier: Layer<Output = Tensor<2>, Side = ()> {}

impl<L: Layer<Output = Tensor<2>, Side = ()>> Classifier for L {}
