//! The bytes of a mini-batch over time, read by a thread beside it.

use std::{
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Mini-batches that are read, one after the other: the first ones allocate what stays.
const MINI_BATCHES: usize = 3;
const INTERVAL: Duration = Duration::from_micros(200);
/// With so many readings, pairs become one, and there is twice as much time between further ones.
const MOST: usize = 8192;

/// Reads the bytes of the first mini-batches, and keeps those of the last one.
pub(super) struct MemorySampler {
    read: Arc<dyn Fn() -> u64 + Send + Sync>,
    left: usize,
    /// Seconds since the begin of the mini-batch, and bytes.
    found: Vec<(f64, f64)>,
}

/// Readings of a mini-batch under way. They end when this is dropped.
pub(super) struct Sampling {
    stop: Sender<()>,
    thread: JoinHandle<Vec<(f64, f64)>>,
}

impl MemorySampler {
    pub(super) fn new(read: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self {
            read: Arc::new(read),
            left: MINI_BATCHES,
            found: Vec::new(),
        }
    }

    /// Whether the next mini-batch is to be read.
    pub(super) fn is_due(&self) -> bool {
        self.left > 0
    }

    /// Begins with a mini-batch, if another one is to be read.
    pub(super) fn begin(&mut self) -> Option<Sampling> {
        self.left = self.left.checked_sub(1)?;
        let read = self.read.clone();
        let (stop, stopped) = channel();
        let thread = thread::Builder::new().name("memory".to_owned());
        let thread = thread.spawn(move || {
            let (began, mut interval, mut found) = (Instant::now(), INTERVAL, Vec::new());
            loop {
                found.push((began.elapsed().as_secs_f64(), read() as f64));
                if found.len() == MOST {
                    found = halved(&found);
                    interval *= 2;
                }
                if stopped.recv_timeout(interval) != Err(RecvTimeoutError::Timeout) {
                    return found;
                }
            }
        });
        let thread = thread.ok()?;
        Some(Sampling { stop, thread })
    }

    /// Ends with the mini-batch.
    pub(super) fn end(&mut self, Sampling { stop, thread }: Sampling) {
        drop(stop);
        if let Ok(found) = thread.join() {
            self.found = found;
        }
    }

    pub(super) fn found(&self) -> &[(f64, f64)] {
        &self.found
    }
}

/// Of each pair, the time of the first and the most bytes.
fn halved(found: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let pair = |pair: &[(f64, f64)]| {
        let most = pair.iter().map(|&(_, bytes)| bytes).fold(0.0, f64::max);
        (pair[0].0, most)
    };
    found.chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn few_mini_batches_are_read_and_the_last_one_counts() {
        let bytes = Arc::new(AtomicU64::new(0));
        let now = bytes.clone();
        let mut sampler = MemorySampler::new(move || now.load(Ordering::SeqCst));
        for mini_batch in 1..=MINI_BATCHES as u64 {
            bytes.store(mini_batch, Ordering::SeqCst);
            let sampling = sampler.begin().unwrap();
            sampler.end(sampling);
        }
        assert!(sampler.begin().is_none());
        let found = sampler.found();
        assert!(!found.is_empty() && found.is_sorted_by(|one, next| one.0 < next.0));
        assert!(found.iter().all(|&(_, bytes)| bytes == MINI_BATCHES as f64));
    }

    #[test]
    fn pairs_keep_their_most() {
        let found = [(0.0, 1.0), (1.0, 5.0), (2.0, 4.0), (3.0, 2.0), (4.0, 3.0)];
        assert_eq!(halved(&found), [(0.0, 5.0), (2.0, 4.0), (4.0, 3.0)]);
    }
}
