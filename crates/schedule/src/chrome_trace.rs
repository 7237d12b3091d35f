//! A timeline in the Trace Event Format.
//!
//! Google's document *Trace Event Format* describes it. Used here are complete events
//! (`"ph": "X"`), which have a start and a duration in microseconds, and metadata events
//! (`"ph": "M"`), which name the rows.

use std::{
    io::{self, Write},
    time::Duration,
};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use crate::{Span, SpanKind, Timeline, timeline::label};

impl Timeline {
    /// The timeline in the Trace Event Format, a JSON file for Perfetto and `chrome://tracing`.
    ///
    /// `labels` name the workers as in [`to_svg`](Self::to_svg).
    ///
    /// ```
    /// # use stovepipe_schedule::{Costs, Schedule, Timeline};
    /// let costs = Costs::uniform(1, 1.0, 1.0, 1.0);
    /// let timeline = Schedule::inference(1, 1)?.simulate(&costs)?.timeline();
    /// let trace = timeline.to_chrome_trace(&[]);
    /// let events = trace["traceEvents"].as_array().unwrap();
    /// assert_eq!(events.last().unwrap()["dur"], 1_000_000.0); // microseconds
    ///
    /// let mut file = Vec::new();
    /// Timeline::default().write_chrome_trace(&[], &mut file)?;
    /// assert_eq!(file, br#"{"displayTimeUnit":"ms","traceEvents":[]}"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_chrome_trace(&self, labels: &[String]) -> Value {
        // Strings and numbers: nothing can fail.
        serde_json::to_value(Trace::new(self, labels)).unwrap_or_default()
    }

    /// Writes what [`to_chrome_trace`](Self::to_chrome_trace) returns, event by event.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write_chrome_trace(&self, labels: &[String], writer: impl Write) -> io::Result<()> {
        Ok(serde_json::to_writer(writer, &Trace::new(self, labels))?)
    }
}

/// Written event by event: large timelines have millions.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace<'a> {
    display_time_unit: &'static str,
    trace_events: Events<'a>,
}

struct Events<'a> {
    timeline: &'a Timeline,
    labels: &'a [String],
}

impl<'a> Trace<'a> {
    fn new(timeline: &'a Timeline, labels: &'a [String]) -> Self {
        Self {
            display_time_unit: "ms",
            trace_events: Events { timeline, labels },
        }
    }
}

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let workers = &self.timeline.workers;
        let names = (0..workers.len()).flat_map(|worker| row_name(worker, self.labels));
        let rows = workers.iter().enumerate();
        let spans = rows.flat_map(|(worker, spans)| spans.iter().map(move |s| complete(worker, s)));
        serializer.collect_seq(names.chain(spans))
    }
}

/// The row's name and place: viewers would otherwise sort rows themselves.
fn row_name(worker: usize, labels: &[String]) -> [Value; 2] {
    let metadata = |name, args: Value| json!({ "ph": "M", "pid": 0, "tid": worker, "name": name, "args": args });
    [
        metadata("thread_name", json!({ "name": label(labels, worker) })),
        metadata("thread_sort_index", json!({ "sort_index": worker })),
    ]
}

fn complete(worker: usize, span: &Span) -> Value {
    json!({
        "ph": "X",
        "pid": 0,
        "tid": worker,
        "name": name(span),
        "cat": span.kind.to_string(),
        "cname": colour(span.kind),
        "ts": microseconds(span.start),
        "dur": microseconds(span.length()),
        "args": args(span),
    })
}

/// Perfetto colours by name without its numbers, so each kind gets its own colour.
fn name(span: &Span) -> String {
    match span.action {
        Some(action) => format!("{} {}", span.kind, action.micro_batch),
        None => span.kind.to_string(),
    }
}

/// The names in `chrome://tracing` of the colours closest to those of our pictures.
fn colour(kind: SpanKind) -> &'static str {
    match kind {
        SpanKind::Forward => "thread_state_runnable",
        SpanKind::Recompute => "thread_state_uninterruptible",
        SpanKind::Backward => "thread_state_iowait",
        SpanKind::InputGradient => "cq_build_failed",
        SpanKind::WeightGradient => "thread_state_running",
        SpanKind::Update => "generic_work",
    }
}

fn args(span: &Span) -> Value {
    match span.action {
        Some(action) => json!({
            "action": action.to_string(),
            "stage": action.stage,
            "micro_batch": action.micro_batch,
        }),
        None => json!({}),
    }
}

fn microseconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e3
}
