//! A level of the machine, and what it costs to share a stage there.

/// Units (workers, or machines of the level below) that are joined by links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub units: usize,
    /// Bytes a second; infinite where links cost nothing.
    pub bandwidth: f64,
    /// How many units of the level below one unit joins.
    pub below: usize,
    /// How many workers a unit has.
    pub workers: usize,
}

impl Group {
    pub fn innermost(units: usize, bandwidth: f64) -> Self {
        Self {
            units,
            bandwidth,
            below: 1,
            workers: 1,
        }
    }

    pub fn above(&self, units: usize, bandwidth: f64) -> Self {
        Self {
            units,
            bandwidth,
            below: self.units,
            workers: self.workers.saturating_mul(self.units),
        }
    }

    /// Seconds to make the gradients of `parameters` bytes the same on so many units.
    pub fn exchange(&self, parameters: f64, units: usize) -> f64 {
        4.0 * (units - 1) as f64 * parameters / (self.bandwidth * units as f64)
    }

    /// Seconds to send `bytes` over a cut, forward and back, from or to so many units.
    pub fn transfer(&self, bytes: f64, units: usize) -> f64 {
        2.0 * bytes / (self.bandwidth * units as f64)
    }
}
