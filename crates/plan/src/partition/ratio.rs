//! How many workers are behind a group, for each of the groups that share a stage.

/// An exact fraction: it is rounded up in the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ratio {
    above: u128,
    below: u128,
}

impl Ratio {
    pub const ZERO: Self = Self { above: 0, below: 1 };

    /// (workers + this) / sharers.
    pub fn plus_over(self, workers: usize, sharers: usize) -> Self {
        let workers = (workers as u128).saturating_mul(self.below);
        let above = workers.saturating_add(self.above);
        let below = self.below.saturating_mul(sharers as u128);
        let common = greatest_common_divisor(above, below);
        Self {
            above: above / common,
            below: below / common,
        }
    }

    pub fn rounded_up(self) -> f64 {
        self.above.div_ceil(self.below) as f64
    }
}

fn greatest_common_divisor(mut a: u128, mut b: u128) -> u128 {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
