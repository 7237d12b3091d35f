//! Random numbers that depend on what they are for, and on nothing else.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// What numbers are drawn for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum For {
    /// How a sample is shown, by its place in its folder.
    Sample(usize),
    /// How a batch is mixed, by its place in the epoch.
    Batch(usize),
}

/// The generator for something in an epoch. The numbers are its key: what it draws depends on no order, batch size or thread.
pub(crate) fn draws(seed: u64, epoch: usize, what: For) -> ChaCha8Rng {
    let (kind, number) = match what {
        For::Sample(place) => (0, place),
        For::Batch(place) => (1, place),
    };
    let mut key = [0; 32];
    let numbers = [seed, epoch as u64, number as u64, kind];
    for (place, number) in key.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}
