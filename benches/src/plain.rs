//! A training loop as Burn's users write it: no stages, no engine.

use burn::{
    module::Module,
    nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig},
    optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer},
    tensor::{Device, Int, Tensor},
};
use stovepipe::{pipeline::flows::attach, prelude::*};

use crate::{
    Failure,
    recipe::{Classifier, ModelRecipe},
};

/// The learning rate of benchmarks of speed.
pub const RATE: f64 = 1e-6;

/// One model and one mini-batch, trained again and again. Gradients are accumulated over
/// micro-batches with one backward pass each.
pub struct Plain<L: Classifier> {
    model: ModelRecipe<L>,
    layers: Option<Vec<L>>,
    batches: Vec<(L::Input, Tensor<1, Int>)>,
    loss: CrossEntropyLoss,
    optimizer: Option<ModuleOptimizer>,
    rate: f64,
}

impl<L: Classifier> Plain<L> {
    pub fn new(model: &ModelRecipe<L>, layers: Vec<L>, micro_batches: usize) -> Self {
        Self {
            model: model.clone(),
            layers: Some(layers.into_iter().map(Module::train).collect()),
            batches: vec![model.batch(model.samples); micro_batches],
            loss: CrossEntropyLossConfig::new().init(&Device::flex()),
            optimizer: None,
            rate: RATE,
        }
    }

    /// Sets the mini-batch, by its number, and the learning rate of the next steps.
    pub fn learn(&mut self, number: usize, rate: f64) {
        let (samples, micro_batches) = (self.model.samples, self.batches.len());
        let begin = number * micro_batches;
        self.batches = (begin..begin + micro_batches)
            .map(|micro_batch| self.model.batch_from(micro_batch * samples, samples))
            .collect();
        self.rate = rate;
    }

    /// Trains a mini-batch, and updates if there is an optimizer. Returns the loss before the update.
    pub fn mini_batch(&mut self) -> Result<f64, Failure> {
        let layers = self.layers.take().ok_or("an earlier step failed")?;
        let mut accumulator = GradientsAccumulator::new();
        let mut total = 0.0;
        for (input, labels) in &self.batches {
            let (loss, gradients) = self.micro_batch(&layers, input.clone(), labels.clone())?;
            accumulator.accumulate(&layers, gradients);
            total += loss;
        }
        let gradients = accumulator.grads();
        self.layers = Some(match &mut self.optimizer {
            Some(optimizer) => optimizer.step(self.rate, layers, gradients),
            None => layers,
        });
        Ok(total)
    }

    fn micro_batch(
        &self,
        layers: &Vec<L>,
        input: L::Input,
        labels: Tensor<1, Int>,
    ) -> Result<(f64, GradientsParams), Failure> {
        let mut flow = L::enter(attach(input, false));
        for layer in layers {
            flow = layer.forward(flow, &mut Context::new(&(), true))?;
        }
        let logits = L::leave(flow)?;
        let loss = self.loss.forward(logits, labels.autodiff());
        let share = loss.div_scalar(self.batches.len() as f64);
        let gradients = GradientsParams::from_grads(share.backward(), layers);
        Ok((f64::from(share.into_scalar::<f32>()), gradients))
    }
}

/// A plain loop that trains a mini-batch again and again.
pub trait PlainLoop: Send {
    /// Trains one mini-batch forward and backward, and updates if there is an optimizer.
    fn step(&mut self) -> Result<(), Failure>;

    /// Adds an update by AdamW to each of the next steps.
    fn add_optimizer(&mut self);
}

impl<L: Classifier> PlainLoop for Plain<L> {
    fn step(&mut self) -> Result<(), Failure> {
        self.mini_batch().map(|_| ())
    }

    fn add_optimizer(&mut self) {
        let optimizer = AdamWConfig::new().with_weight_decay(0.01);
        // as in PyTorch and in the pipeline
        self.optimizer = Some(optimizer.with_epsilon(1e-8).init());
    }
}
