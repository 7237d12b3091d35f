//! Places of all parts.

use std::time::Duration;

use ::svg::{Node, node::element::Group};

use crate::{Timeline, summary::Shown, timeline::label};

use super::{LEGEND_PITCH, LEGEND_Y, MARGIN, WIDTH, text};

/// More rows are hard to tell apart, and make the file large.
const MOST_ROWS: usize = 48;
/// A lower lane has room for one number.
const LEAST_HEIGHT: f64 = 22.0;
const LONGEST_LABEL: usize = 44;
/// The width of a letter in a label, roughly.
const LETTER: f64 = 6.7;
/// Right of the lanes: a bar for the worker's utilization, and a number.
pub(super) const BAR: f64 = 56.0;
const PERCENT: f64 = 42.0;
const SPACE: f64 = 12.0;

/// The places of lanes, and the scale of time.
pub(super) struct Layout {
    /// The left end of all lanes, and their width.
    pub lane_x: f64,
    pub lane_width: f64,
    pub lane_height: f64,
    pub shows_versions: bool,
    pub rows_end: f64,
    /// The latest end of anything.
    pub length: Duration,
    first_row_y: f64,
    pitch: f64,
    shown: Shown,
    pixels_per_second: f64,
}

impl Layout {
    pub fn new(timeline: &Timeline, labels: &[String], legend_lines: usize) -> Self {
        let shown = Shown::of(timeline.workers.len(), MOST_ROWS);
        let letters = |worker| short(&label(labels, worker)).chars().count();
        let longest = shown.workers().map(letters).max().unwrap_or(0);
        let lane_x = MARGIN + LETTER * longest as f64 + SPACE;
        let lane_width = WIDTH - MARGIN - PERCENT - BAR - SPACE - lane_x;
        let (lane_height, pitch) = row_size(shown.workers().count());
        let first_row_y = LEGEND_Y + LEGEND_PITCH * (legend_lines - 1) as f64 + 32.0;
        let rows = shown.workers().count() + usize::from(shown.gap().is_some());
        let length = timeline.length();
        let seconds = length.as_secs_f64();
        Self {
            lane_x,
            lane_width,
            lane_height,
            shows_versions: shows_versions(timeline),
            rows_end: first_row_y + pitch * rows as f64,
            length,
            first_row_y,
            pitch,
            shown,
            pixels_per_second: if seconds > 0.0 {
                lane_width / seconds
            } else {
                0.0
            },
        }
    }

    /// The workers that are drawn, and the top of each row.
    pub fn rows(&self) -> impl Iterator<Item = (usize, f64)> {
        let gap = |worker| usize::from(worker >= self.shown.first.end);
        let rows = self.shown.workers().enumerate();
        rows.map(move |(row, worker)| (worker, self.y(row + gap(worker))))
    }

    fn y(&self, row: usize) -> f64 {
        self.first_row_y + self.pitch * row as f64
    }

    /// Draws the number of workers that are left out, in their place.
    pub fn draw_gap(&self, page: &mut Group) {
        if let Some(gap) = self.shown.gap() {
            let y = self.y(self.shown.first.end) + self.lane_height / 2.0 + 4.0;
            let middle = self.lane_x + self.lane_width / 2.0;
            page.append(text("gap", middle, y, gap));
        }
    }

    /// Draws the heading of the bars at the right.
    pub fn draw_heading(&self, page: &mut Group) {
        if self.shown.workers().next().is_some() {
            let y = self.first_row_y - 8.0;
            page.append(text("heading", WIDTH - MARGIN, y, "busy"));
        }
    }

    /// The place of a time.
    pub fn x(&self, time: Duration) -> f64 {
        self.lane_x + self.width(time)
    }

    /// The width of a duration.
    pub fn width(&self, length: Duration) -> f64 {
        length.as_secs_f64() * self.pixels_per_second
    }
}

/// Whether there is room for the versions of weights below the numbers of micro-batches, and there are any.
pub(super) fn shows_versions(timeline: &Timeline) -> bool {
    let rows = Shown::of(timeline.workers.len(), MOST_ROWS)
        .workers()
        .count();
    let mut spans = timeline.workers.iter().flatten();
    row_size(rows).0 >= LEAST_HEIGHT && spans.any(|span| span.version.is_some())
}

/// The height of a lane, and the distance between rows: less if there are many.
fn row_size(rows: usize) -> (f64, f64) {
    match rows {
        0..=8 => (28.0, 36.0),
        9..=16 => (22.0, 28.0),
        17..=32 => (16.0, 20.0),
        _ => (13.0, 16.0),
    }
}

/// A label as drawn. XML does not allow control characters, not even escaped.
pub(super) fn short(label: &str) -> String {
    let is_printable = |c: &char| !c.is_control() && !matches!(c, '\u{fffe}' | '\u{ffff}');
    let label: String = label.chars().filter(is_printable).collect();
    if label.chars().count() <= LONGEST_LABEL {
        return label;
    }
    let start = label.chars().take(LONGEST_LABEL - 1);
    start.chain(['…']).collect()
}
