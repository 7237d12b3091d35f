//! How far the trials are.

use std::time::{Duration, Instant};

/// Tells how far the trials are, on the error stream.
pub(crate) struct Pace {
    began: Instant,
    done: usize,
    expected: usize,
}

impl Pace {
    pub(crate) fn new(expected: usize) -> Self {
        Self {
            began: Instant::now(),
            done: 0,
            expected,
        }
    }

    pub(crate) fn say(&self, what: &str) {
        eprintln!("[{:>4.0} s] {what}", self.began.elapsed().as_secs_f64());
    }

    pub(crate) fn tell(&mut self, what: &str) {
        self.done += 1;
        let left = self.expected.saturating_sub(self.done);
        let mean = self.began.elapsed() / self.done as u32;
        let seconds = Duration::as_secs(&(mean * left as u32));
        self.say(&format!(
            "{what} (about {left} more trainings, {seconds} s)"
        ));
    }
}
