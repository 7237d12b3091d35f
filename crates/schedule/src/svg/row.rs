//! One worker: its name, how busy it was, and a lane of boxes.

use std::time::Duration;

use ::svg::{Document, Node, node::element::Title};

use crate::{Action, Span, Timeline};

use super::{MARGIN, WIDTH, milliseconds, percent, rectangle, scale::Scale, text};

/// From the top of one row to the top of the next.
pub(super) const PITCH: f64 = 58.0;
const LABEL_Y: f64 = 12.0;
const LANE_Y: f64 = 19.0;
const LANE_HEIGHT: f64 = 28.0;
/// The width of a digit, roughly.
const DIGIT: f64 = 6.2;

pub(super) fn draw(
    page: &mut Document,
    scale: &Scale,
    y: f64,
    timeline: &Timeline,
    worker: usize,
    label: &str,
) {
    let (start, end) = timeline.extent();
    let busy = share(timeline.busy(worker), end - start);
    draw_words(page, y + LABEL_Y, label, busy);

    let y = y + LANE_Y;
    let waiting = scale.width(end - start);
    page.append(rectangle(
        "lane",
        MARGIN,
        y,
        scale.width(scale.length),
        LANE_HEIGHT,
    ));
    page.append(rectangle("bubble", scale.x(start), y, waiting, LANE_HEIGHT));

    let spans = &timeline.workers[worker];
    let several_stages = has_several_stages(spans);
    for span in spans {
        draw_box(page, scale, y, span);
        if let Some(action) = span.action {
            draw_number(page, scale, y, span, number(action, several_stages));
        }
    }
}

fn draw_words(page: &mut Document, y: f64, label: &str, busy: f64) {
    page.append(text("label", MARGIN, y, printable(label)));
    let busy = format!("{} busy", percent(busy));
    page.append(text("busy", WIDTH - MARGIN, y, busy));
}

/// XML has no place for control characters, not even escaped.
fn printable(label: &str) -> String {
    label.chars().filter(|c| !c.is_control()).collect()
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() {
        return 0.0;
    }
    part.as_secs_f64() / whole.as_secs_f64()
}

fn has_several_stages(spans: &[Span]) -> bool {
    let mut stages = spans
        .iter()
        .filter_map(|span| span.action)
        .map(|action| action.stage);
    let first = stages.next();
    stages.any(|stage| Some(stage) != first)
}

/// The micro-batch is enough, unless the stage is in doubt.
fn number(action: Action, several_stages: bool) -> String {
    if several_stages {
        action.to_string()
    } else {
        action.micro_batch.to_string()
    }
}

fn draw_box(page: &mut Document, scale: &Scale, y: f64, span: &Span) {
    let width = scale.width(span.length());
    // Neighbours are set apart by a little space, narrow ones by less.
    let drawn = (width - (width * 0.15).min(1.0)).max(0.4);
    let radius = if width < 8.0 { 0 } else { 2 };
    let class = span.kind.to_string();
    let shape = rectangle(&class, scale.x(span.start), y, drawn, LANE_HEIGHT);
    page.append(shape.set("rx", radius).add(Title::new(tooltip(span))));
}

fn tooltip(span: &Span) -> String {
    let what = match span.action {
        Some(action) => format!("{action} {}", span.kind),
        None => span.kind.to_string(),
    };
    let start = milliseconds(span.start);
    format!("{what} · at {start} · took {}", milliseconds(span.length()))
}

/// Writes the number into its box if it fits.
fn draw_number(page: &mut Document, scale: &Scale, y: f64, span: &Span, number: String) {
    let width = scale.width(span.length());
    if width >= DIGIT * number.len() as f64 + 2.0 {
        let middle = scale.x(span.start) + width / 2.0;
        page.append(text("number", middle, y + LANE_HEIGHT / 2.0 + 3.5, number));
    }
}
