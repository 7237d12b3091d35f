//! A timeline for a terminal.

mod cells;
mod legend;

use crate::{
    Timeline,
    summary::{self, Shown},
};
use cells::Cells;

/// In a narrower terminal lines are broken; there is no room for a timeline in one.
const NARROWEST: usize = 40;
/// Enough for a look, and a terminal has no more lines.
const MOST_ROWS: usize = 64;
/// From which width on rows say what is numbered.
const WIDE: usize = 64;

pub(crate) fn draw(timeline: &Timeline, width: usize, colour: bool) -> String {
    let width = width.max(NARROWEST);
    let shown = Shown::of(timeline.workers.len(), MOST_ROWS);
    let mut lines = vec![shortened(summary::title(timeline), width)];
    let row = |worker| row(timeline, worker, width, colour);
    lines.extend(shown.first.clone().map(row));
    lines.extend(shown.gap());
    lines.extend(shown.last.clone().map(row));
    if !timeline.length().is_zero() {
        lines.extend(legend::lines(timeline, width, colour));
    }
    lines.push(String::new());
    lines.join("\n")
}

fn shortened(mut line: String, width: usize) -> String {
    if let Some((end, _)) = line
        .char_indices()
        .nth(width - 1)
        .filter(|_| line.chars().count() > width)
    {
        line.truncate(end);
        line.push('…');
    }
    line
}

fn row(timeline: &Timeline, worker: usize, width: usize, colour: bool) -> String {
    let digits = (timeline.workers.len() - 1).to_string().len();
    let name = if width >= WIDE { "worker " } else { "" };
    let name = format!("{name}{worker:>digits$}");
    let percent = summary::percent(summary::utilisation(timeline, worker));
    // Two spaces, and `100 %`.
    let columns = width - name.len() - 2 - 5;
    let cells = Cells::of(timeline, worker, columns);
    format!("{name} {} {percent:>5}", cells.to_text(colour))
}
