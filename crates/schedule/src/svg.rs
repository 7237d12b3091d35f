//! A timeline as a picture like Figure 2 of the GPipe paper.
//!
//! From top to bottom: a title with the bubble, a legend, a row for each worker, a time axis, notes.
//! Each part has a module; this one puts them on a page. `layout` computes places, `shares` merges
//! boxes too narrow to be seen.

mod axis;
mod layout;
mod legend;
mod row;
mod shade;
mod shapes;
mod shares;

use ::svg::{
    Document, Node,
    node::element::{Definitions, Group, Pattern, Style},
};

use crate::{Timeline, summary, timeline::label};
use layout::Layout;
use row::Row;
use shapes::{LEGEND_Y, MARGIN, WIDTH, line, rectangle, text};

const TITLE_Y: f64 = 34.0;
const NOTE_PITCH: f64 = 17.0;
const SHARES: &str =
    "Where boxes would be too narrow to be seen, each colour is as high as its share of time.";
/// Without CSS variables: some viewers do not support them.
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
        axis::draw(&mut body, &layout);
        let mut height = layout.rows_end + axis::HEIGHT;
        if has_shares {
            body.append(text("note", MARGIN, height + 4.0, SHARES));
            height += NOTE_PITCH;
        }
        empty_page(height)
            .set("aria-label", title)
            .add(body)
            .to_string()
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
