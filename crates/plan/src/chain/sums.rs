//! Costs of runs of layers: fast and approximate, or slow and exact to the last bit.

use std::ops::RangeInclusive;

use super::Chain;

/// Running sums of a stage's costs, with an error of at most [`Sums::error`].
pub(crate) struct Sums {
    up_to: Vec<f64>,
    error: f64,
}

impl Sums {
    pub fn new(costs: impl Iterator<Item = f64>) -> Self {
        let mut up_to = vec![0.0];
        let (mut sum, mut grain) = (0.0, f64::INFINITY);
        up_to.extend(costs.map(|cost| {
            sum += cost;
            grain = f64::min(grain, lowest_bit(cost));
            sum
        }));
        // Each of the three compared sums (two from the front, one from the back) is off by at most n
        // half-units of the last place of the total. A little more, to be safe.
        let error = 4.0 * up_to.len() as f64 * f64::EPSILON * sum;
        // Small multiples of one number are added without rounding.
        let exact = sum * f64::EPSILON < grain;
        Self {
            up_to,
            error: if exact { 0.0 } else { error },
        }
    }

    /// The cost of the layers `begin..end`. It never falls when the run grows.
    pub fn between(&self, begin: usize, end: usize) -> f64 {
        self.up_to[end] - self.up_to[begin]
    }

    /// The largest difference between [`Sums::between`] and the sum from the back.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// The first begin from which the layers up to `end` cost at most `limit`, or `end`.
    pub fn first_begin(&self, end: usize, limit: f64) -> usize {
        self.up_to[..end].partition_point(|sum| self.up_to[end] - sum > limit)
    }

    /// The last end up to which the layers from `begin` cost at most `limit`, or `begin`.
    pub fn last_end(&self, begin: usize, limit: f64) -> usize {
        let ends = &self.up_to[begin + 1..];
        begin + ends.partition_point(|sum| sum - self.up_to[begin] <= limit)
    }
}

/// The largest power of two that divides a number. Infinite for 0, and 0 for subnormal numbers.
fn lowest_bit(number: f64) -> f64 {
    if number == 0.0 {
        return f64::INFINITY;
    }
    let bits = number.to_bits();
    let zeros = bits.trailing_zeros().min(f64::MANTISSA_DIGITS - 1);
    let power_of_two = f64::from_bits(bits & f64::INFINITY.to_bits());
    power_of_two * f64::EPSILON * f64::from_bits((1023 + u64::from(zeros)) << 52)
}

impl<F: Fn(usize, usize) -> f64> Chain<F> {
    pub(super) fn sums(&self, stage: usize) -> Sums {
        Sums::new((0..self.layers).map(|layer| (self.cost)(stage, layer)))
    }

    /// The begins of a stage that ends at `end`, last first, each with the stage's cost: the sum from its
    /// last layer to its first.
    pub(super) fn backwards(
        &self,
        stage: usize,
        end: usize,
    ) -> impl Iterator<Item = (usize, f64)> + '_ {
        let mut sum = 0.0;
        (0..end).rev().map(move |begin| {
            sum += (self.cost)(stage, begin);
            // The sum from the front is finite. This one is at most a rounding error above it.
            (begin, f64::min(sum, f64::MAX))
        })
    }

    /// The ends of a stage that leave at least one layer for every other one.
    pub(super) fn ends(&self, stage: usize) -> RangeInclusive<usize> {
        stage + 1..=self.layers - (self.stages - 1 - stage)
    }

    /// For each stage, its ends in cuts whose stages cost at most `limit`, and perhaps a few more: what the
    /// stages before it can reach at most, and those after it need at least.
    pub(super) fn ends_within(&self, limit: f64) -> Vec<RangeInclusive<usize>> {
        let mut reached = 0;
        let mut ends: Vec<_> = (0..self.stages)
            .map(|stage| {
                let (sums, possible) = (self.sums(stage), self.ends(stage));
                reached = sums.last_end(reached, limit + sums.error());
                reached = reached.min(*possible.end());
                *possible.start()..=reached
            })
            .collect();
        let mut needed = self.layers;
        for stage in (0..self.stages).rev() {
            let sums = self.sums(stage);
            let start = needed.max(*ends[stage].start());
            ends[stage] = start..=*ends[stage].end();
            needed = sums.first_begin(needed, limit + sums.error());
        }
        ends
    }
}
