//! A training loop as Burn's users write it: no stages, no engine.

use burn::{
    module::Module,
    nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig},
    optim::{AdamWConfig, GradientsAccumulator, GradientsParams, ModuleOptimizer},
    tensor::{Device, Int, Tensor},
};
use stovepipe::prelude::*;

use crate::{Failure, classifier::Classifier, flows::attach, measured::PlainLoop, models::Recipe};

/// The learning rate everywhere: nothing is to be learned.
pub const RATE: f64 = 1e-6;

/// One model and one mini-batch, trained again and again. Gradients are accumulated over
/// micro-batches with one backward pass each, as one does where a mini-batch is too large.
pub struct Plain<L: Classifier> {
    layers: Option<Vec<L>>,
    batches: Vec<(L::Input, Tensor<1, Int>)>,
    loss: CrossEntropyLoss,
    optimizer: Option<ModuleOptimizer>,
}

impl<L: Classifier> Plain<L> {
    /// A loop over so many micro-batches.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    pub fn new(model: &Recipe<L>, micro_batches: usize) -> Result<Self, Failure> {
        let layers = model.layers()?.into_iter().map(Module::train).collect();
        Ok(Self {
            layers: Some(layers),
            batches: vec![model.batch(model.samples); micro_batches],
            loss: CrossEntropyLossConfig::new().init(&Device::flex()),
            optimizer: None,
        })
    }

    fn micro_batch(
        &self,
        layers: &Vec<L>,
        input: L::Input,
        labels: Tensor<1, Int>,
    ) -> Result<GradientsParams, Failure> {
        let mut flow = L::enter(attach(input, false));
        for layer in layers {
            flow = layer.forward(flow, &mut Context::new(&(), true))?;
        }
        let logits = L::leave(flow)?;
        let loss = self.loss.forward(logits, labels.autodiff());
        let share = loss.div_scalar(self.batches.len() as f64);
        Ok(GradientsParams::from_grads(share.backward(), layers))
    }
}

impl<L: Classifier> PlainLoop for Plain<L> {
    fn step(&mut self) -> Result<(), Failure> {
        let layers = self.layers.take().ok_or("an earlier step failed")?;
        let mut accumulator = GradientsAccumulator::new();
        for (input, labels) in &self.batches {
            let gradients = self.micro_batch(&layers, input.clone(), labels.clone())?;
            accumulator.accumulate(&layers, gradients);
        }
        let gradients = accumulator.grads();
        self.layers = Some(match &mut self.optimizer {
            Some(optimizer) => optimizer.step(RATE, layers, gradients),
            None => layers,
        });
        Ok(())
    }

    fn add_optimizer(&mut self) {
        self.optimizer = Some(AdamWConfig::new().with_weight_decay(0.01).init());
    }
}
