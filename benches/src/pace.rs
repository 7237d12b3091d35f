//! How far a program is.

use std::time::{Duration, Instant};

/// Tells how far a program is with what it measures, on the error stream.
pub struct Pace {
    began: Instant,
    done: usize,
    expected: usize,
}

impl Pace {
    /// So many measurements are to come.
    #[must_use]
    pub fn new(expected: usize) -> Self {
        Self {
            began: Instant::now(),
            done: 0,
            expected,
        }
    }

    /// Says what the program does now.
    pub fn say(&self, what: &str) {
        eprintln!("[{:>4.0} s] {what}", self.began.elapsed().as_secs_f64());
    }

    /// Says that one more is done, and how long the others will take.
    pub fn tell(&mut self, what: &str) {
        self.done += 1;
        let left = self.expected.saturating_sub(self.done);
        let mean = self.began.elapsed() / self.done as u32;
        let seconds = Duration::as_secs(&(mean * left as u32));
        self.say(&format!("{what} (about {left} more, {seconds} s)"));
    }
}
