//! From time to pixels.

use std::time::Duration;

use super::{MARGIN, WIDTH};

/// Maps the time from zero to a timeline's length onto the width of the rows.
pub(super) struct Scale {
    pub length: Duration,
    pixels_per_second: f64,
}

impl Scale {
    /// Without any time, everything is at the left.
    pub fn new(length: Duration) -> Self {
        let seconds = length.as_secs_f64();
        let width = WIDTH - 2.0 * MARGIN;
        let pixels_per_second = if seconds > 0.0 { width / seconds } else { 0.0 };
        Self {
            length,
            pixels_per_second,
        }
    }

    /// The place of a moment.
    pub fn x(&self, time: Duration) -> f64 {
        MARGIN + self.width(time)
    }

    /// The width of a stretch of time.
    pub fn width(&self, length: Duration) -> f64 {
        length.as_secs_f64() * self.pixels_per_second
    }
}
