//! A timeline as a picture, in the manner of Figure 2 of the GPipe paper.
//!
//! From top to bottom: a title with the bubble and a legend, a row for each worker, a time axis.
//! Each part is drawn by a module of its own; this one puts them on a page.

mod axis;
mod legend;
mod row;
mod scale;

use std::time::Duration;

use ::svg::{
    Document, Node,
    node::element::{Definitions, Line, Pattern, Rectangle, Style, Text},
};

use crate::{Timeline, timeline::label};
use scale::Scale;

/// The page is as wide as the text of a README.
const WIDTH: f64 = 960.0;
/// Left and right of the rows; half a label of the time axis fits in.
const MARGIN: f64 = 28.0;
/// The baseline of title and legend.
const TITLE_Y: f64 = 32.0;
const FIRST_ROW_Y: f64 = 52.0;
/// Rules without CSS variables, which some viewers do not know.
const STYLE: &str = include_str!("svg/style.css");

pub(crate) fn draw(timeline: &Timeline, labels: &[String]) -> String {
    let scale = Scale::new(timeline.length());
    let rows_end = FIRST_ROW_Y + row::PITCH * timeline.workers.len() as f64;
    let height = rows_end + axis::HEIGHT;
    let title = title(timeline);

    let mut page = empty_page(height).set("aria-label", title.as_str());
    page.append(text("title", MARGIN, TITLE_Y, title));
    legend::draw(&mut page, timeline);
    for worker in 0..timeline.workers.len() {
        let y = FIRST_ROW_Y + row::PITCH * worker as f64;
        let label = label(labels, worker);
        row::draw(&mut page, &scale, y, timeline, worker, &label);
    }
    axis::draw(&mut page, &scale, rows_end);
    page.to_string()
}

fn empty_page(height: f64) -> Document {
    Document::new()
        .set("viewBox", (0, 0, WIDTH, height))
        .set("width", WIDTH)
        .set("height", height)
        .set("role", "img")
        .add(Style::new(STYLE))
        .add(Definitions::new().add(hatching()))
        .add(rectangle("page", 0.0, 0.0, WIDTH, height).set("rx", 8))
}

/// Stripes, so that waiting differs from working by more than colour.
fn hatching() -> Pattern {
    Pattern::new()
        .set("id", "bubble")
        .set("width", 6)
        .set("height", 6)
        .set("patternUnits", "userSpaceOnUse")
        .set("patternTransform", "rotate(45)")
        .add(rectangle("ground", 0.0, 0.0, 6.0, 6.0))
        .add(line("stripe", (0.0, 0.0), (0.0, 6.0)))
}

fn title(timeline: &Timeline) -> String {
    let workers = count(timeline.workers.len(), "worker", "workers");
    let length = timeline.length();
    if length.is_zero() {
        return format!("{workers} · nothing happened");
    }
    format!(
        "{workers} · {} · {} · bubble {}",
        count(micro_batches(timeline), "micro-batch", "micro-batches"),
        milliseconds(length),
        percent(timeline.bubble()),
    )
}

fn micro_batches(timeline: &Timeline) -> usize {
    let actions = timeline
        .workers
        .iter()
        .flatten()
        .filter_map(|span| span.action);
    let last = actions.map(|action| action.micro_batch).max();
    last.map_or(0, |last| last.saturating_add(1))
}

fn count(number: usize, one: &str, many: &str) -> String {
    let noun = if number == 1 { one } else { many };
    format!("{number} {noun}")
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// Three digits or so, whatever the size.
fn milliseconds(duration: Duration) -> String {
    let value = duration.as_secs_f64() * 1e3;
    match value {
        100.0.. => format!("{value:.0} ms"),
        10.0.. => format!("{value:.1} ms"),
        1.0.. => format!("{value:.2} ms"),
        _ => format!("{value:.3} ms"),
    }
}

fn text(class: &str, x: f64, y: f64, content: impl Into<String>) -> Text {
    Text::new(content)
        .set("class", class)
        .set("x", round(x))
        .set("y", round(y))
}

fn rectangle(class: &str, x: f64, y: f64, width: f64, height: f64) -> Rectangle {
    Rectangle::new()
        .set("class", class)
        .set("x", round(x))
        .set("y", round(y))
        .set("width", round(width))
        .set("height", round(height))
}

fn line(class: &str, from: (f64, f64), to: (f64, f64)) -> Line {
    Line::new()
        .set("class", class)
        .set("x1", round(from.0))
        .set("y1", round(from.1))
        .set("x2", round(to.0))
        .set("y2", round(to.1))
}

/// Hundredths of a pixel are enough, and keep the file small.
fn round(pixels: f64) -> f64 {
    (pixels * 100.0).round() / 100.0
}
