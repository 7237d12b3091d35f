//! Which numbers are drawn, and how they are made of words.

use burn::tensor::{Device, Int, Tensor, TensorData};
use rayon::prelude::*;

use super::threefry::{self, Key};

/// Numbers that one thread draws at least.
pub(super) const SHARE: usize = 1 << 15;

/// Random numbers of some samples: each is a function of the key, the sample and its place there.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_kernels::random::Draw;
///
/// let device = Device::flex();
/// let draw = Draw { key: [1, 2], first: 0, samples: 3, each: 5 };
/// let last = Draw { first: 2, samples: 1, ..draw };
/// let uniform = draw.uniform(&device);
/// assert_eq!(uniform.dims(), [3, 5]);
/// assert_eq!(uniform.slice([2..3]).to_data(), last.uniform(&device).to_data());
///
/// let many = Draw { each: 10_000, ..draw };
/// let deviation = many.normal(&device).var(1).sqrt().mean().into_scalar::<f32>();
/// assert!((deviation - 1.0).abs() < 0.02);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// Whose numbers.
    pub key: Key,
    /// The first sample.
    pub first: u32,
    /// How many samples.
    pub samples: usize,
    /// How many numbers of each.
    pub each: usize,
}

impl Draw {
    pub(super) fn numbers(&self, kind: &dyn Kind, device: &Device) -> Tensor<2> {
        let shape = [self.samples, self.each];
        if shape.contains(&0) {
            return Tensor::zeros(shape, device);
        }
        if device.clone().inner() == Device::flex() {
            let mut numbers = vec![0.0; self.samples * self.each];
            self.for_samples(&mut numbers, &|sample, numbers| {
                kind.fill(self.key, sample, numbers);
            });
            return Tensor::from_data(TensorData::new(numbers, shape), device);
        }
        let rows = (self.first, self.samples);
        let words = threefry::tensors(self.key, rows, self.each.div_ceil(2), device);
        let halves = kind.tensors(words).to_vec();
        Tensor::cat(halves, 1).narrow(1, 0, self.each)
    }

    /// Calls `fill` with each sample, and what belongs to it of values that all have as many of. Threads share samples.
    pub(super) fn for_samples<T: Send>(
        &self,
        values: &mut [T],
        fill: &(dyn Fn(u32, &mut [T]) + Sync),
    ) {
        let samples = values
            .par_chunks_mut(values.len() / self.samples)
            .enumerate();
        let least = SHARE.div_ceil(self.each);
        samples.with_min_len(least).for_each(|(sample, own)| {
            fill(self.first.wrapping_add(sample as u32), own);
        });
    }
}

/// How two random words become two numbers.
pub(super) trait Kind: Sync {
    /// Numbers of `[first, 0]`, `[first, 1]` and so on.
    fn fill(&self, key: Key, first: u32, numbers: &mut [f32]);

    fn tensors(&self, words: [Tensor<2, Int>; 2]) -> [Tensor<2>; 2];
}
