//! Texts and numbers that all pictures of a timeline share.

use std::{ops::Range, time::Duration};

use crate::{Span, Timeline};

/// One line for a whole timeline.
pub(crate) fn title(timeline: &Timeline) -> String {
    let workers = count(timeline.workers.len(), "worker", "workers");
    let length = timeline.length();
    if length.is_zero() {
        return format!("{workers} · nothing happened");
    }
    format!(
        "{workers} · {} · {} · bubble {}",
        count(micro_batches(timeline), "micro-batch", "micro-batches"),
        duration(length),
        percent(timeline.bubble()),
    )
}

fn micro_batches(timeline: &Timeline) -> usize {
    let spans = timeline.workers.iter().flatten();
    let actions = spans.filter_map(|span| span.action);
    let last = actions.map(|action| action.micro_batch).max();
    last.map_or(0, |last| last.saturating_add(1))
}

/// A number of things.
pub(crate) fn count(number: usize, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{number} {noun}")
}

/// A share, to a hundredth.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// How busy a worker was while passes ran, from 0 to 1.
pub(crate) fn utilisation(timeline: &Timeline, worker: usize) -> f64 {
    let (start, end) = timeline.extent();
    if end == start {
        return 0.0;
    }
    let share = timeline.busy(worker).as_secs_f64() / (end - start).as_secs_f64();
    // Measured spans may overlap.
    share.min(1.0)
}

/// The unit for a time of this length, and how many make a second.
pub(crate) fn unit(length: Duration) -> (&'static str, f64) {
    match length.as_secs_f64() {
        10.0.. => ("s", 1.0),
        1e-3.. => ("ms", 1e3),
        _ => ("µs", 1e6),
    }
}

/// About three digits.
pub(crate) fn duration(length: Duration) -> String {
    let (unit, per_second) = unit(length);
    let value = length.as_secs_f64() * per_second;
    match value {
        100.0.. => format!("{value:.0} {unit}"),
        10.0.. => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

/// The stages of a worker in ascending order.
pub(crate) fn stages(spans: &[Span]) -> Vec<usize> {
    let actions = spans.iter().filter_map(|span| span.action);
    let mut stages: Vec<_> = actions.map(|action| action.stage).collect();
    stages.sort_unstable();
    stages.dedup();
    stages
}

/// The place of a span's stage among the stages of its worker.
pub(crate) fn chunk(span: &Span, stages: &[usize]) -> Option<usize> {
    stages.binary_search(&span.action?.stage).ok()
}

/// The workers that are drawn: the first and the last ones, if there are more than `most`.
pub(crate) struct Shown {
    pub first: Range<usize>,
    pub left_out: usize,
    pub last: Range<usize>,
}

impl Shown {
    pub fn of(workers: usize, most: usize) -> Self {
        if workers <= most {
            return Self {
                first: 0..workers,
                left_out: 0,
                last: workers..workers,
            };
        }
        Self {
            first: 0..most.div_ceil(2),
            left_out: workers - most,
            last: workers - most / 2..workers,
        }
    }

    pub fn workers(&self) -> impl Iterator<Item = usize> + use<> {
        self.first.clone().chain(self.last.clone())
    }

    /// The text between the first and the last ones.
    pub fn gap(&self) -> Option<String> {
        let workers = count(self.left_out, "more worker", "more workers");
        (self.left_out > 0).then(|| format!("⋯ {workers} ⋯"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_three_digits() {
        let check = |nanoseconds, expected: &str| {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), expected);
        };
        check(0, "0.00 µs");
        check(1_500, "1.50 µs");
        check(999_000, "999 µs");
        check(1_000_000, "1.00 ms");
        check(12_340_000, "12.3 ms");
        check(1_234_000_000, "1234 ms");
        check(12_340_000_000, "12.3 s");
    }

    #[test]
    fn first_and_last_workers_are_shown() {
        let check = |workers, most, expected: &[usize], gap: Option<&str>| {
            let shown = Shown::of(workers, most);
            assert_eq!(shown.workers().collect::<Vec<_>>(), expected);
            assert_eq!(shown.gap().as_deref(), gap);
        };
        check(0, 4, &[], None);
        check(4, 4, &[0, 1, 2, 3], None);
        check(5, 4, &[0, 1, 3, 4], Some("⋯ 1 more worker ⋯"));
        check(9, 3, &[0, 1, 8], Some("⋯ 6 more workers ⋯"));
    }
}
