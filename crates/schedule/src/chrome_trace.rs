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

use crate::{Action, Span, SpanKind, Timeline, timeline::label};

impl Timeline {
    /// The timeline in the Trace Event Format, a JSON file for Perfetto and `chrome://tracing`.
    ///
    /// `labels` name the workers as in [`to_svg`](Self::to_svg). All-reduces, which overlap other spans,
    /// have a row of their own below their worker's.
    #[must_use]
    pub fn to_chrome_trace(&self, labels: &[String]) -> Value {
        // Strings and numbers: nothing can fail.
        serde_json::to_value(self.trace(labels)).unwrap_or_default()
    }

    /// Writes what [`to_chrome_trace`](Self::to_chrome_trace) returns, event by event.
    ///
    /// # Errors
    ///
    /// Those of the writer.
    pub fn write_chrome_trace(&self, labels: &[String], writer: impl Write) -> io::Result<()> {
        Ok(serde_json::to_writer(writer, &self.trace(labels))?)
    }

    fn trace<'a>(&'a self, labels: &'a [String]) -> Trace<'a> {
        Trace {
            display_time_unit: "ms",
            trace_events: Events(self, labels),
        }
    }
}

/// Written event by event: large timelines have millions.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Trace<'a> {
    display_time_unit: &'static str,
    trace_events: Events<'a>,
}

/// Of a timeline, with the names of workers.
struct Events<'a>(&'a Timeline, &'a [String]);

impl Serialize for Events<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self(Timeline { workers, host_time }, labels) = self;
        let beside = |span: &Span| span.kind == SpanKind::AllReduce;
        let count = workers.len();
        let names = workers.iter().enumerate().flat_map(|(worker, spans)| {
            let label = label(labels, worker);
            let second = format!("{label} · all-reduce");
            let second = row_name((count + worker, 2 * worker + 1), &second);
            let second = second.into_iter().filter(|_| spans.iter().any(beside));
            let first = row_name((worker, 2 * worker), &label);
            first.into_iter().chain(second)
        });
        let rows = workers.iter().enumerate();
        let spans = rows.flat_map(|(worker, spans)| {
            let row = move |span| worker + if beside(span) { count } else { 0 };
            spans.iter().map(move |span| complete(row(span), span))
        });
        let clock = host_time.then(|| {
            let args =
                json!({ "name": "host time: when work was launched, not when a GPU did it" });
            json!({ "ph": "M", "pid": 0, "name": "process_name", "args": args })
        });
        serializer.collect_seq(clock.into_iter().chain(names).chain(spans))
    }
}

/// The row's name and place: viewers would otherwise sort rows themselves.
fn row_name((row, place): (usize, usize), label: &str) -> [Value; 2] {
    let metadata =
        |name, args: Value| json!({ "ph": "M", "pid": 0, "tid": row, "name": name, "args": args });
    [
        metadata("thread_name", json!({ "name": label })),
        metadata("thread_sort_index", json!({ "sort_index": place })),
    ]
}

fn complete(row: usize, span: &Span) -> Value {
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    let (_, kind, .., colour) = span.kind.look();
    // Perfetto colours by name without its numbers, so each kind gets its own colour.
    let (name, args) = match span.action {
        Some(action) => {
            let Action {
                stage, micro_batch, ..
            } = action;
            let mut args =
                json!({ "action": action.to_string(), "stage": stage, "micro_batch": micro_batch });
            if let Some(version) = span.version {
                args["version"] = json!(version);
            }
            (format!("{kind} {micro_batch}"), args)
        }
        None => (kind.to_owned(), json!({})),
    };
    json!({
        "ph": "X", "pid": 0, "tid": row, "name": name, "cat": kind, "cname": colour,
        "ts": microseconds(span.start), "dur": microseconds(span.length()), "args": args,
    })
}
