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

use crate::{Action, Span, Timeline, timeline::label};

impl Timeline {
    /// The timeline in the Trace Event Format, a JSON file for Perfetto and `chrome://tracing`.
    ///
    /// `labels` name the workers as in [`to_svg`](Self::to_svg).
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
        let Self(Timeline { workers }, labels) = self;
        let names = (0..workers.len()).flat_map(|worker| row_name(worker, labels));
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
    let microseconds = |time: Duration| time.as_nanos() as f64 / 1e3;
    let (_, kind, .., colour) = span.kind.look();
    // Perfetto colours by name without its numbers, so each kind gets its own colour.
    let (name, args) = match span.action {
        Some(action) => {
            let Action {
                stage, micro_batch, ..
            } = action;
            let args =
                json!({ "action": action.to_string(), "stage": stage, "micro_batch": micro_batch });
            (format!("{kind} {micro_batch}"), args)
        }
        None => (kind.to_owned(), json!({})),
    };
    json!({
        "ph": "X", "pid": 0, "tid": worker, "name": name, "cat": kind, "cname": colour,
        "ts": microseconds(span.start), "dur": microseconds(span.length()), "args": args,
    })
}
