//! A timeline in the Trace Event Format.
//!
//! The format is described in Google's document *Trace Event Format*; Perfetto and
//! `chrome://tracing` read it. Used here are complete events (`"ph": "X"`), which have a start
//! and a duration in microseconds, and metadata events (`"ph": "M"`), which name the rows.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{Span, SpanKind, Timeline, timeline::label};

pub(crate) fn trace(timeline: &Timeline, labels: &[String]) -> Value {
    let rows = timeline.workers.iter().enumerate();
    let names = (0..timeline.workers.len()).flat_map(|worker| row_name(worker, labels));
    let spans = rows.flat_map(|(worker, spans)| spans.iter().map(move |s| complete(worker, s)));
    json!({
        "displayTimeUnit": "ms",
        "traceEvents": names.chain(spans).collect::<Vec<_>>(),
    })
}

/// The row's name, and its place: viewers would otherwise sort rows as they please.
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

/// Perfetto colours by name without its numbers, so each kind gets a colour of its own.
fn name(span: &Span) -> String {
    match span.action {
        Some(action) => format!("{} {}", span.kind, action.micro_batch),
        None => span.kind.to_string(),
    }
}

/// `chrome://tracing` knows these colours by name: those nearest to the ones of our pictures.
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
