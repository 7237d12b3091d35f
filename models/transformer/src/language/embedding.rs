//! The first layer: from tokens to vectors.

use burn::{
    module::{Module, Param},
    tensor::{Device, Int, Tensor, module::embedding},
};
use stovepipe_pipeline::{KeyedRng, LayerError, nn::Dropout};

use super::{
    config::LmConfig,
    positions::{Positions, Sinusoids},
};
use crate::initial;

/// Looks up tokens and adds their positions: `[n, length]` to `[n, length, d]`.
#[derive(Module, Debug)]
pub struct TokenEmbedding {
    /// A row for each token.
    pub(super) tokens: Param<Tensor<2>>,
    positions: Option<Param<Tensor<2>>>,
    dropout: Dropout,
    #[module(skip)]
    sinusoids: Sinusoids,
    length: usize,
}

impl TokenEmbedding {
    pub(super) fn new(config: &LmConfig, device: &Device) -> Self {
        let (width, length) = (config.d_model, config.length);
        let learned = || initial::normal([length, width], 0.02, device);
        let tokens = [config.vocabulary, width];
        Self {
            tokens: initial::normal(tokens, Self::deviation(config), device),
            positions: (config.positions == Positions::Learned).then(learned),
            dropout: Dropout::new(config.dropout),
            sinusoids: Sinusoids::new(length, width),
            length,
        }
    }

    /// The standard deviation of the initial table. With sinusoids, rows are multiplied by √d, and so
    /// become as large as the sinusoids.
    pub(super) fn deviation(config: &LmConfig) -> f64 {
        match config.positions {
            Positions::Sinusoidal => 1.0 / (config.d_model as f64).sqrt(),
            Positions::Learned => 0.02,
        }
    }

    /// The maximum length of a sequence.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// The number of different tokens.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.tokens.shape()[0]
    }

    pub(super) fn forward(
        &self,
        tokens: Tensor<2, Int>,
        rng: &mut KeyedRng,
    ) -> Result<Tensor<3>, LayerError> {
        self.check(&tokens)?;
        let [_, length] = tokens.dims();
        let table = self.tokens.val();
        let [_, width] = table.dims();
        let rows = embedding(table, tokens);
        let x = match &self.positions {
            Some(positions) => rows + positions.val().narrow(0, 0, length).unsqueeze(),
            None => {
                let sinusoids = self.sinusoids.rows(length, &rows.device().inner());
                let mut sinusoids = sinusoids.cast(rows.dtype());
                if rows.is_autodiff() {
                    sinusoids = sinusoids.autodiff();
                }
                rows.mul_scalar((width as f64).sqrt()) + sinusoids.unsqueeze()
            }
        };
        Ok(self.dropout.forward(x, rng))
    }

    fn check(&self, tokens: &Tensor<2, Int>) -> Result<(), LayerError> {
        let [samples, length] = tokens.dims();
        if samples == 0 || !(1..=self.length).contains(&length) {
            let expected = format!("sequences of 1 to {} tokens", self.length);
            return Err(LayerError::new(expected, format!("{:?}", tokens.dims())));
        }
        // On other devices than the CPU, reading the tokens would wait for all queued work.
        if tokens.device() != Device::flex() {
            return Ok(());
        }
        let vocabulary = self.vocabulary();
        let ends = [tokens.clone().min(), tokens.clone().max()];
        let [least, most] = ends.map(|end| end.into_scalar::<i64>());
        if least < 0 || most >= vocabulary as i64 {
            let expected = format!("tokens from 0 to {}", vocabulary - 1);
            return Err(LayerError::new(expected, format!("{least} to {most}")));
        }
        Ok(())
    }
}
