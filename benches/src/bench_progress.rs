//! The progress of a benchmark, on the error stream.

use std::time::Instant;

/// Reports which measurement is done, and how long the others will take.
pub struct BenchProgress {
    began: Instant,
    done: usize,
    expected: usize,
}

impl BenchProgress {
    /// The progress of `expected` measurements.
    pub fn new(expected: usize) -> Self {
        Self {
            began: Instant::now(),
            done: 0,
            expected,
        }
    }

    /// Reports what the program does now.
    pub fn note(&self, what: &str) {
        eprintln!("[{:>4.0} s] {what}", self.began.elapsed().as_secs_f64());
    }

    /// Counts one more measurement that is done, without a line.
    pub fn skip(&mut self) {
        self.done += 1;
    }

    /// Reports that one more measurement is done, and the time that the others will take.
    pub fn done(&mut self, what: &str) {
        self.done += 1;
        let left = self.expected.saturating_sub(self.done);
        let seconds = (self.began.elapsed() / self.done as u32 * left as u32).as_secs();
        self.note(&format!("{what} (about {left} more, {seconds} s)"));
    }
}
