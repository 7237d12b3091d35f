//! Texts and numbers that pictures and tables share.

use std::{ops::Range, time::Duration};

use crate::{Span, SpanKind, Timeline};

pub(crate) fn title(timeline: &Timeline) -> String {
    let workers = count(timeline.workers.len(), "worker");
    let length = timeline.length();
    if length.is_zero() {
        return format!("{workers} · nothing happened");
    }
    let mut title = format!(
        "{workers} · {} · {} · bubble {}",
        count(micro_batches(timeline), "micro-batch"),
        duration(length),
        percent(timeline.bubble()),
    );
    if timeline.host_time {
        title += " in host time";
    }
    if let Some(hidden) = hidden_all_reduce(timeline) {
        title += &format!(" · {} of all-reduce hidden", percent(hidden));
    }
    title
}

/// The share of all-reduces before the end of the last pass. None if updates within the step wait for
/// them.
fn hidden_all_reduce(timeline: &Timeline) -> Option<f64> {
    let (_, end) = timeline.extent();
    let spans = timeline.workers.iter().flatten();
    let waits = |span: &Span| span.kind == SpanKind::Update && span.action.is_some();
    if spans.clone().any(waits) {
        return None;
    }
    let reduced = spans.filter(|span| span.kind == SpanKind::AllReduce);
    let seconds = |span: &Span| {
        let hidden = span.end.min(end).saturating_sub(span.start);
        [hidden, span.length()].map(|time| time.as_secs_f64())
    };
    let sums = reduced
        .map(seconds)
        .reduce(|a, b| [a[0] + b[0], a[1] + b[1]]);
    let [hidden, all] = sums.filter(|[_, all]| *all > 0.0)?;
    Some(hidden / all)
}

fn micro_batches(timeline: &Timeline) -> usize {
    let spans = timeline.workers.iter().flatten();
    let actions = spans.filter_map(|span| span.action);
    let last = actions.map(|action| action.micro_batch).max();
    last.map_or(0, |last| last.saturating_add(1))
}

/// A number of bytes for people, with a binary unit.
///
/// ```
/// use stovepipe_schedule::format_bytes;
///
/// assert_eq!(format_bytes(1023), "1023 B");
/// assert_eq!(format_bytes(1536), "1.5 KiB");
/// assert_eq!(format_bytes(3 << 40), "3.0 TiB");
/// ```
#[must_use]
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A number of things. The first word gets a plural, unless there is one thing.
///
/// ```
/// use stovepipe_schedule::count;
///
/// assert_eq!([count(1, "epoch"), count(2, "epoch")], ["1 epoch", "2 epochs"]);
/// assert_eq!(count(0, "class of images"), "0 classes of images");
/// ```
#[must_use]
pub fn count(number: usize, things: &str) -> String {
    if number == 1 {
        return format!("1 {things}");
    }
    let (noun, rest) = things.split_at(things.find(' ').unwrap_or(things.len()));
    let is_hissing = noun.ends_with('s') || noun.ends_with("batch");
    let ending = if is_hissing { "es" } else { "s" };
    format!("{number} {noun}{ending}{rest}")
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
    pub last: Range<usize>,
}

impl Shown {
    pub fn of(workers: usize, most: usize) -> Self {
        let (first, last) = if workers <= most {
            (workers, workers)
        } else {
            (most.div_ceil(2), workers - most / 2)
        };
        let (first, last) = (0..first, last..workers);
        Self { first, last }
    }

    pub fn workers(&self) -> impl Iterator<Item = usize> + use<> {
        self.first.clone().chain(self.last.clone())
    }

    /// The text between the first and the last ones.
    pub fn gap(&self) -> Option<String> {
        let left_out = self.last.start - self.first.end;
        let workers = count(left_out, "worker").replacen(' ', " more ", 1);
        (left_out > 0).then(|| format!("⋯ {workers} ⋯"))
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
