//! Random generators that depend on their purpose only.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// The generator for the augmentation of a sample, by its index in its folder.
pub(crate) fn sample_rng(seed: u64, epoch: usize, sample: usize) -> ChaCha8Rng {
    keyed_rng([seed, epoch as u64, sample as u64, 0])
}

/// The generator for the mixup of a batch, by its index in the epoch.
pub(crate) fn batch_rng(seed: u64, epoch: usize, batch: usize) -> ChaCha8Rng {
    keyed_rng([seed, epoch as u64, batch as u64, 1])
}

/// The numbers are the key, so order, batch size and threads do not matter.
fn keyed_rng(numbers: [u64; 4]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (place, number) in key.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
