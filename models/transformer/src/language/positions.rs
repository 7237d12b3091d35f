//! Encodings of positions.

use std::sync::{Arc, OnceLock};

use burn::{
    config::Config,
    tensor::{Device, Tensor, TensorData},
};

/// The encoding of positions, which is added to embeddings.
#[derive(Config, Debug, Copy, PartialEq, Eq)]
pub enum Positions {
    /// Sines and cosines (Vaswani et al., 2017), without parameters. Embeddings are multiplied by √d.
    Sinusoidal,
    /// A learned vector for each position.
    Learned,
}

/// sin(t / 10000^(2i/d)) at column 2i and the cosine at column 2i + 1, for position t.
#[derive(Clone, Debug)]
pub(crate) struct Sinusoids {
    length: usize,
    width: usize,
    /// Computed on first use.
    table: Arc<OnceLock<Vec<f32>>>,
}

impl Sinusoids {
    pub(crate) fn new(length: usize, width: usize) -> Self {
        Self {
            length,
            width,
            table: Arc::default(),
        }
    }

    /// The first `length` rows.
    pub(crate) fn rows(&self, length: usize, device: &Device) -> Tensor<2> {
        let table = self.table.get_or_init(|| self.compute());
        let rows = table[..length * self.width].to_vec();
        Tensor::from_data(TensorData::new(rows, [length, self.width]), device)
    }

    fn compute(&self) -> Vec<f32> {
        let row = |place: usize| {
            (0..self.width).map(move |column| {
                let pair = (column / 2 * 2) as f64 / self.width as f64;
                let angle = place as f64 / 10_000f64.powf(pair);
                [angle.sin(), angle.cos()][column % 2] as f32
            })
        };
        (0..self.length).flat_map(row).collect()
    }
}
