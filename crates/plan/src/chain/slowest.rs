//! The least possible cost of a chain's slowest stage.

use std::{collections::VecDeque, ops::RangeInclusive};

use super::Chain;

/// Adds a stage to cuts of the layers before it. For each of its `ends`, calls `put` with the cost of the
/// slowest stage and the begin of the new stage, if there is such a cut. `best[begin]` is the cost of the
/// slowest stage of the layers before `begin`, infinite if they cannot be cut.
///
/// `cost` must not fall when a run of layers grows at either end. Of two begins, the earlier one is kept
/// only if `best` is smaller there, since its stage costs as much or more. Over the kept ones, `best`
/// rises and the new stage's cost falls. The least maximum of both is where they cross: n·log n steps.
pub(crate) fn join_stage(
    best: &[f64],
    ends: RangeInclusive<usize>,
    cost: impl Fn(usize, usize) -> f64,
    mut put: impl FnMut(usize, f64, usize),
) {
    let mut begins: Vec<usize> = Vec::new();
    for end in ends {
        let begin = end - 1;
        if best[begin].is_finite() {
            while begins.pop_if(|last| best[*last] >= best[begin]).is_some() {}
            begins.push(begin);
        }
        let crossing = begins.partition_point(|&begin| best[begin] < cost(begin, end));
        let around = crossing.saturating_sub(1)..begins.len().min(crossing + 1);
        let joined = |begin: usize| f64::max(best[begin], cost(begin, end));
        let around = begins[around].iter().map(|&begin| (joined(begin), begin));
        if let Some((joined, begin)) = around.min_by(|a, b| a.0.total_cmp(&b.0)) {
            put(end, joined, begin);
        }
    }
}

impl<F: Fn(usize, usize) -> f64> Chain<F> {
    /// The cost of the slowest stage of the best cut, to the last bit.
    pub(super) fn slowest(&self) -> f64 {
        let (about, error) = self.about();
        // Surely between these, and strictly above the first if anything is rounded.
        self.slowest_between(about - 2.0 * error, about + error)
    }

    /// The cost of the slowest stage of the best cut, and its largest error.
    fn about(&self) -> (f64, f64) {
        let mut error = 0.0;
        let mut best = vec![f64::INFINITY; self.layers + 1];
        best[0] = 0.0;
        for stage in 0..self.stages {
            let sums = self.sums(stage);
            let mut next = vec![f64::INFINITY; self.layers + 1];
            let cost = |begin, end| sums.between(begin, end);
            let put = |end: usize, joined, _| next[end] = joined;
            join_stage(&best, self.ends(stage), cost, put);
            best = next;
            error = f64::max(error, sums.error());
        }
        (best[self.layers], error)
    }

    /// The cost of the slowest stage of the best cut, which is from `low` to `high`. Lower costs count as
    /// `low`: most stages are far from the limit and need not be added up.
    fn slowest_between(&self, low: f64, high: f64) -> f64 {
        let mut best = vec![f64::INFINITY; self.layers + 1];
        best[0] = low;
        let mut begins = 0..=0;
        for (stage, ends) in self.ends_within(high).into_iter().enumerate() {
            let sums = self.sums(stage);
            let mut next = vec![f64::INFINITY; self.layers + 1];
            let mut cheap = LeastInWindow::new(&best, *begins.start());
            for end in ends.clone() {
                let first = sums.first_begin(end, high + sums.error());
                let first_cheap = sums.first_begin(end, low - sums.error());
                let mut least = cheap.least(first_cheap, end);
                if least > low && first_cheap > *begins.start() {
                    for (begin, cost) in self.backwards(stage, end) {
                        if begin < first.max(*begins.start()) || cost >= least {
                            break;
                        }
                        least = least.min(best[begin].max(cost));
                    }
                }
                next[end] = least;
            }
            (best, begins) = (next, ends);
        }
        best[self.layers]
    }
}

/// The least value in a window whose ends never move back.
struct LeastInWindow<'a> {
    values: &'a [f64],
    /// The first value that has not been in the window.
    next: usize,
    /// Places of values less than all later ones in the window.
    least: VecDeque<usize>,
}

impl<'a> LeastInWindow<'a> {
    fn new(values: &'a [f64], start: usize) -> Self {
        Self {
            values,
            next: start,
            least: VecDeque::new(),
        }
    }

    /// The least value of `begin..end`, or infinity.
    fn least(&mut self, begin: usize, end: usize) -> f64 {
        for new in self.next..end {
            let value = self.values[new];
            while (self.least.pop_back_if(|last| self.values[*last] >= value)).is_some() {}
            self.least.push_back(new);
        }
        self.next = self.next.max(end);
        while self.least.pop_front_if(|first| *first < begin).is_some() {}
        (self.least.front()).map_or(f64::INFINITY, |&first| self.values[first])
    }
}
