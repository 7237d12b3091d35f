//! A timeline as a picture like Figure 2 of the GPipe paper, and memory over time.
//!
//! From top to bottom: a title with the bubble, a legend, a row for each worker, a time axis, notes.
//! Each part has a module; this one puts them on a page. `layout` computes places, `shares` merges
//! boxes too narrow to be seen.

mod axis;
mod layout;
mod legend;
mod memory;
mod row;
mod shade;
mod shares;

use ::svg::{
    Document, Node,
    node::element::{Definitions, Group, Line, Pattern, Rectangle, Style, Text},
};

use crate::{Timeline, summary, timeline::label};
use layout::Layout;
use row::Row;

/// The page is as wide as the text of a README.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const LEGEND_Y: f64 = 60.0;
/// From one line of the legend to the next.
const LEGEND_PITCH: f64 = 20.0;
const TITLE_Y: f64 = 34.0;
const NOTE_PITCH: f64 = 17.0;
const SHARES: &str =
    "Where boxes would be too narrow to be seen, each colour is as high as its share of time.";
const HOST_TIME: &str =
    "Host time: a box is the time in which a worker launched work. A GPU may do it later.";
/// Without CSS variables: some viewers do not support them.
const STYLE: &str = include_str!("svg/style.css");
/// Only where there are versions of weights.
const VERSION: &str = ".version { font-size: 8px; font-style: italic; }";

impl Timeline {
    /// An SVG picture: for each worker a row with its utilization, and in it a box for each span with
    /// the number of the micro-batch. Below it is the version of the weights, under asynchronous schedules
    /// with up to 16 workers. All-reduces are thin bars below. The bubble is hatched.
    ///
    /// Colours show the kinds of spans, shades the stages of a worker that has several. `labels` name
    /// the workers; missing ones are `worker 2` and so on. The file adapts to light and dark pages.
    ///
    /// It stays below 4 MB, however long the timeline is. Boxes too narrow to be seen are drawn as
    /// shares of time. Of very many workers, only the first and last ones are drawn.
    #[must_use]
    pub fn to_svg(&self, labels: &[String]) -> String {
        let legend = legend::Legend::of(self);
        let layout = Layout::new(self, labels, legend.lines());
        let title = summary::title(self);

        let mut body = Group::new();
        body.append(text("title", MARGIN, TITLE_Y, title.as_str()));
        legend.draw(&mut body, LEGEND_Y);
        layout.draw_heading(&mut body);
        let mut has_shares = false;
        for (worker, y) in layout.rows() {
            let row = Row::new(&layout, self, worker, y);
            has_shares |= row.draw(&mut body, &label(labels, worker));
        }
        layout.draw_gap(&mut body);
        let (left, width) = (layout.lane_x, layout.lane_width);
        axis::draw(&mut body, (left, layout.rows_end), width, layout.length);
        let mut height = layout.rows_end + axis::HEIGHT;
        let notes = [(has_shares, SHARES), (self.host_time, HOST_TIME)];
        for (_, note) in notes.into_iter().filter(|(applies, _)| *applies) {
            body.append(text("note", MARGIN, height + 4.0, note));
            height += NOTE_PITCH;
        }
        let mut page = empty_page(height).set("aria-label", title);
        if layout.shows_versions {
            page = page.add(Style::new(VERSION));
        }
        page.add(body).to_string()
    }
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

/// Stripes: waiting differs from working by more than colour.
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
