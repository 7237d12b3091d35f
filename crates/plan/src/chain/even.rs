//! The cut whose stages differ least, among those whose slowest stage is within a limit.

use std::ops::RangeInclusive;

use super::{Chain, Sums};

/// Where a stage may end, and for each end its first possible begin.
struct Ends {
    ends: Vec<usize>,
    first_begins: Vec<usize>,
}

impl<F: Fn(usize, usize) -> f64> Chain<F> {
    /// The numbers of layers of the cut with the least sum of squares whose stages cost at most `limit`.
    /// There must be one.
    pub(super) fn evenest(&self, limit: f64) -> Vec<usize> {
        let mut best = vec![f64::INFINITY; self.layers + 1];
        best[0] = 0.0;
        let mut choices = Vec::with_capacity(self.stages);
        for (stage, ends) in self.ends_within(limit).into_iter().enumerate() {
            let sums = self.sums(stage);
            let ends = self.possible(stage, &sums, limit, ends, &best);
            // Relative to the limit, so that no square is too large. A power of two rounds nothing.
            let unit = power_of_two_below(limit);
            let square = |begin, end| (sums.between(begin, end) / unit).powi(2);
            let begins = least_squares(&ends, &best, square);
            let mut next = vec![f64::INFINITY; self.layers + 1];
            for (&end, &begin) in ends.ends.iter().zip(&begins) {
                next[end] = best[begin] + square(begin, end);
            }
            best = next;
            choices.push((ends.ends, begins));
        }
        self.counts(&choices)
    }

    /// The ends of a stage in all cuts within the limit.
    fn possible(
        &self,
        stage: usize,
        sums: &Sums,
        limit: f64,
        ends: RangeInclusive<usize>,
        best: &[f64],
    ) -> Ends {
        // next_begin[i]: the first possible begin from i on.
        let mut next_begin = vec![usize::MAX; best.len() + 1];
        for begin in (0..best.len()).rev() {
            let (is_possible, later) = (best[begin].is_finite(), next_begin[begin + 1]);
            next_begin[begin] = if is_possible { begin } else { later };
        }
        let ends = ends.filter_map(|end| {
            let first = self.first_begin(stage, sums, end, (limit, next_begin[0]));
            let first = next_begin[first];
            (first < end).then_some((end, first))
        });
        let (ends, first_begins) = ends.unzip();
        Ends { ends, first_begins }
    }

    /// The first begin with which a stage that ends at `end` costs at most a limit, from the least begin
    /// on. Costs are added up only if rounding decides.
    fn first_begin(&self, stage: usize, sums: &Sums, end: usize, limits: (f64, usize)) -> usize {
        let (limit, least) = limits;
        let perhaps = sums.first_begin(end, limit + sums.error()).max(least);
        let surely = sums.first_begin(end, limit - sums.error());
        if surely <= perhaps {
            return perhaps.min(end);
        }
        let within = self.backwards(stage, end);
        let within = within.take_while(|&(begin, cost)| begin >= perhaps && cost <= limit);
        within.last().map_or(end, |(begin, _)| begin)
    }

    fn counts(&self, choices: &[(Vec<usize>, Vec<usize>)]) -> Vec<usize> {
        let mut end = self.layers;
        let mut counts: Vec<_> = (choices.iter().rev())
            .map(|(ends, begins)| {
                let begin = begins[ends.partition_point(|&other| other < end)];
                let count = end - begin;
                end = begin;
                count
            })
            .collect();
        counts.reverse();
        counts
    }
}

/// The largest power of two up to a number, or 1 for 0 and subnormal numbers.
fn power_of_two_below(number: f64) -> f64 {
    let exponent_only = f64::from_bits(number.to_bits() & f64::INFINITY.to_bits());
    let is_normal = exponent_only > 0.0;
    if is_normal { exponent_only } else { 1.0 }
}

/// For each end, the begin with the least sum of squares, or the last one of several.
///
/// The later the end, the later the best begin, since squares grow ever faster (the quadrangle
/// inequality; D. Knuth, *Optimum binary search trees*, 1971, and F. Yao, 1980). Bounds of the begins do
/// not change that: they never move back either. So the middle end's best begin halves the work on both
/// sides: n·log n steps.
fn least_squares(ends: &Ends, best: &[f64], square: impl Fn(usize, usize) -> f64) -> Vec<usize> {
    let mut begins = vec![0; ends.ends.len()];
    let mut open = vec![(0..ends.ends.len(), 0..=usize::MAX)];
    while let Some((rows, bounds)) = open.pop() {
        if rows.is_empty() {
            continue;
        }
        let middle = rows.start + rows.len() / 2;
        let end = ends.ends[middle];
        let first = ends.first_begins[middle].max(*bounds.start());
        let last = (end - 1).min(*bounds.end());
        let mut least = f64::INFINITY;
        for begin in (first..=last).rev() {
            let sum = best[begin] + square(begin, end);
            if sum < least {
                (least, begins[middle]) = (sum, begin);
            }
        }
        open.push((rows.start..middle, *bounds.start()..=begins[middle]));
        open.push((middle + 1..rows.end, begins[middle]..=*bounds.end()));
    }
    begins
}
