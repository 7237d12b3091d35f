//! A level of the machine, and its cost of sharing a stage.

/// Units (workers, or machines of the next lower level) joined by links.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    pub units: usize,
    /// Bytes a second. Infinite if links cost nothing.
    pub bandwidth: f64,
    /// How many units of the next lower level a unit joins.
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

    /// Seconds to add up gradients of `parameters` bytes on this number of units.
    pub fn exchange(&self, parameters: f64, units: usize) -> f64 {
        4.0 * (units - 1) as f64 * parameters / (self.bandwidth * units as f64)
    }

    /// Seconds to send `bytes` over a cut, forward and back, from or to this number of units.
    pub fn transfer(&self, bytes: f64, units: usize) -> f64 {
        2.0 * bytes / (self.bandwidth * units as f64)
    }
}
