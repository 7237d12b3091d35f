//! Matrix products of a Transformer by `faer` alone: the rate that its steps can reach.

use std::{thread, time::Duration};

use faer::{Accum, MatMut, MatRef, Par, linalg::matmul::matmul};

use crate::{
    Failure,
    measure::{TurnCost, repeat},
    recipe::ModelShape,
};

/// The largest product of a block, `[tokens, d] · [d, 4d]`, which each of some threads computes for
/// itself.
#[derive(Clone, Copy, Debug)]
pub struct Products {
    tokens: usize,
    d: usize,
    threads: usize,
}

impl Products {
    /// With the tokens of a micro-batch.
    pub fn of(shape: ModelShape, samples: usize, threads: usize) -> Self {
        Self {
            tokens: samples * shape.extent(),
            d: shape.width(),
            threads,
        }
    }

    /// Floating-point operations of one product by each thread.
    pub fn operations(&self) -> f64 {
        2.0 * (self.threads * self.tokens * self.d * 4 * self.d) as f64
    }

    /// Repeats the product in all threads for at least `minimum`. Returns the mean time of one.
    pub fn turn(&self, minimum: Duration) -> Result<TurnCost, Failure> {
        let each = || {
            thread::scope(|scope| -> Result<Vec<TurnCost>, Failure> {
                let threads = (0..self.threads).map(|_| scope.spawn(|| self.repeat(minimum)));
                let threads: Vec<_> = threads.collect();
                let costs = threads.into_iter().map(|thread| thread.join());
                costs
                    .map(|cost| cost.map_err(|_| "a product panicked")?)
                    .collect()
            })
        };
        let costs = each()?;
        let mean = costs.iter().map(|cost| cost.seconds).sum::<f64>() / costs.len() as f64;
        Ok(TurnCost {
            seconds: mean,
            processor: f64::NAN,
        })
    }

    fn repeat(&self, minimum: Duration) -> Result<TurnCost, Failure> {
        let (rows, inner, columns) = (self.tokens, self.d, 4 * self.d);
        let a = vec![0.5_f32; rows * inner];
        let b = vec![0.25_f32; inner * columns];
        let mut product = vec![0.0_f32; rows * columns];
        repeat(minimum, || {
            matmul(
                MatMut::from_row_major_slice_mut(&mut product, rows, columns),
                Accum::Replace,
                MatRef::from_row_major_slice(&a, rows, inner),
                MatRef::from_row_major_slice(&b, inner, columns),
                1.0,
                Par::Seq,
            );
            Ok(())
        })
    }
}

/// Floating-point operations of the matrix products of a Transformer's training step, a sample:
/// twice as many backward as forward. `None` for other models.
pub fn step_operations(shape: ModelShape) -> Option<f64> {
    let ModelShape::Transformer {
        layers, d, length, ..
    } = shape
    else {
        return None;
    };
    let linear = 24 * length * d * d;
    let attention = 4 * length * length * d;
    Some((3 * layers * (linear + attention)) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations() -> Result<(), Failure> {
        let shape = ModelShape::transformer(8, 512, 8, 128);
        // Of the block: q, k, v and output 4 · 2 · 128 · 512², MLP 8 · 2 · 128 · 512², and twice
        // 2 · 128² · 512; three times for the two passes, and eight blocks.
        let block = 12.0 * 2.0 * 128.0 * 262_144.0 + 4.0 * 16_384.0 * 512.0;
        assert_eq!(step_operations(shape), Some(24.0 * block));
        assert_eq!(
            step_operations(ModelShape::amoebanet(3, 4, 16, false)),
            None
        );
        let products = Products::of(ModelShape::transformer(1, 2, 1, 3), 5, 2);
        assert_eq!(products.operations(), 2.0 * 2.0 * 15.0 * 2.0 * 8.0);
        assert!(products.turn(Duration::ZERO)?.seconds > 0.0);
        Ok(())
    }
}
