//! A timeline as a picture, in the manner of Figure 2 of the GPipe paper.
//!
//! From top to bottom: a title with the bubble, a legend, a row for each worker, a time axis, notes.
//! Each part is drawn by a module of its own; this one puts them on a page. `layout` knows where
//! everything goes, `shares` makes one coloured area of boxes too narrow to be seen.

mod axis;
mod layout;
mod legend;
mod row;
mod shade;
mod shares;

use ::svg::{
    Document, Node,
    node::element::{Definitions, Line, Pattern, Rectangle, Style, Text},
};

use crate::{Timeline, summary, timeline::label};
use layout::Layout;
use row::Row;

/// The page is as wide as the text of a README.
const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const TITLE_Y: f64 = 34.0;
const LEGEND_Y: f64 = 60.0;
const NOTE_PITCH: f64 = 17.0;
/// Rules without CSS variables, which some viewers do not know.
const STYLE: &str = include_str!("svg/style.css");

impl Timeline {
    /// An SVG picture: for each worker a row with its utilization, and in it a box for each span with
    /// the number of the micro-batch. The bubble is hatched.
    ///
    /// Colours show the kinds of spans, shades the stages of a worker that has several. `labels` name
    /// the workers; missing ones are `worker 2` and so on. The file adapts to light and dark pages.
    ///
    /// It stays below 4 MB, however long the timeline is. Boxes too narrow to be seen are drawn as
    /// shares of time. Of very many workers, only the first and last ones are drawn.
    ///
    /// ```
    /// # use stovepipe_schedule::{Costs, Schedule};
    /// let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    /// let timeline = Schedule::inference(2, 3)?.simulate(&costs)?.timeline();
    /// let svg = timeline.to_svg(&["stage 0 · cpu".into(), "stage 1 · gpu".into()]);
    /// assert!(svg.contains("stage 1 · gpu"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_svg(&self, labels: &[String]) -> String {
        let legend = legend::Legend::of(self);
        let layout = Layout::new(self, labels, legend.lines());
        let title = summary::title(self);

        let mut body = ::svg::node::element::Group::new();
        body.append(text("title", MARGIN, TITLE_Y, title.as_str()));
        legend.draw(&mut body, LEGEND_Y);
        layout.draw_heading(&mut body);
        let mut has_shares = false;
        for (worker, y) in layout.rows() {
            let row = Row::new(&layout, self, worker, y);
            has_shares |= row.draw(&mut body, &label(labels, worker));
        }
        layout.draw_gap(&mut body);
        axis::draw(&mut body, &layout);
        let notes = notes(has_shares);
        let notes_y = layout.rows_end + axis::HEIGHT + 4.0;
        for (line, note) in notes.iter().enumerate() {
            let y = notes_y + NOTE_PITCH * line as f64;
            body.append(text("note", MARGIN, y, *note));
        }
        let height = notes_y + NOTE_PITCH * notes.len() as f64 - 4.0;
        empty_page(height)
            .set("aria-label", title)
            .add(body)
            .to_string()
    }
}

fn notes(has_shares: bool) -> Vec<&'static str> {
    let shares =
        "Where boxes would be too narrow to be seen, each colour is as high as its share of time.";
    has_shares.then_some(shares).into_iter().collect()
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
