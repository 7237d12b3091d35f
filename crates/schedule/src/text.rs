//! A timeline for a terminal.

mod cells;

use std::time::Duration;

use crate::{
    Timeline,
    summary::{self, Shown},
};
use cells::{IDLE, Paint, lane};

/// A narrower terminal breaks the lines: a timeline does not fit.
const NARROWEST: usize = 40;
/// A terminal has no more lines.
const MOST_ROWS: usize = 64;
/// From this width on, rows begin with `worker`.
const WIDE: usize = 64;

impl Timeline {
    /// A picture for a terminal: a row for each worker, with its utilization. Lines have at most `width`
    /// characters, but a `width` below 40 counts as 40.
    ///
    /// A span is the letter of its [`Pass`](crate::Pass), or `R` for a recomputation, and the number of
    /// the micro-batch if it fits. An all-reduce is an `A` where no pass runs. If a worker has several
    /// stages, every other one is in lower case.
    /// With `colour`, ANSI escape sequences show the kinds of spans, too.
    ///
    /// ```
    /// use stovepipe_schedule::{Costs, OneForwardOneBackward, Scheduler};
    ///
    /// let schedule = OneForwardOneBackward.schedule(2, 3)?;
    /// let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    /// assert_eq!(
    ///     schedule.simulate(&costs)?.timeline().to_text(44, false),
    ///     "2 workers · 3 micro-batches · 12.0 s · bubb…\n\
    ///      0 F0─F1─······B0────F2─B1────···B2────  75 %\n\
    ///      1 ···F0─B0────F1─B1────F2─B2────······  75 %\n\
    ///      F forward  B backward  · bubble\n"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_text(&self, width: usize, colour: bool) -> String {
        let width = width.max(NARROWEST);
        let shown = Shown::of(self.workers.len(), MOST_ROWS);
        let mut lines = vec![shortened(summary::title(self), width)];
        let length = self.length();
        let row = |worker| row(self, length, worker, width, colour);
        lines.extend(shown.first.clone().map(row));
        lines.extend(shown.gap());
        lines.extend(shown.last.clone().map(row));
        if !length.is_zero() {
            lines.extend(legend(self, width, colour));
        }
        lines.push(String::new());
        lines.join("\n")
    }
}

fn shortened(mut line: String, width: usize) -> String {
    if line.chars().count() > width {
        line = line.chars().take(width - 1).collect();
        line.push('…');
    }
    line
}

fn row(timeline: &Timeline, length: Duration, worker: usize, width: usize, colour: bool) -> String {
    let digits = (timeline.workers.len() - 1).to_string().len();
    let name = if width >= WIDE { "worker " } else { "" };
    let name = format!("{name}{worker:>digits$}");
    let percent = summary::percent(summary::utilisation(timeline, worker));
    // Two spaces, and `100 %`.
    let columns = width - name.len() - 2 - 5;
    let lane = lane(&timeline.workers[worker], length, columns, colour);
    format!("{name} {lane} {percent:>5}")
}

/// The kinds of spans in the timeline, in lines of at most `width` characters.
fn legend(timeline: &Timeline, width: usize, colour: bool) -> Vec<String> {
    let entry = |kind| (Paint::of(kind).letter(colour), format!(" {kind}"));
    let kinds = timeline.kinds().map(entry);
    let bubble = (IDLE.to_string(), " bubble".to_owned());
    let several = timeline
        .workers
        .iter()
        .any(|spans| summary::stages(spans).len() > 1);
    let lower = (String::new(), "lower case: every other stage".to_owned());
    let entries = kinds.chain([bubble]).chain(several.then_some(lower));
    in_lines(entries, width)
}

/// Puts entries side by side. Each is a letter, which may be coloured, and words.
fn in_lines(entries: impl Iterator<Item = (String, String)>, width: usize) -> Vec<String> {
    const SPACE: usize = 2;
    let mut lines: Vec<String> = Vec::new();
    let mut used = 0;
    for (letter, words) in entries {
        let length = usize::from(!letter.is_empty()) + words.chars().count();
        match lines.last_mut().filter(|_| used + SPACE + length <= width) {
            Some(line) => {
                used += SPACE + length;
                *line += &format!("{:SPACE$}{letter}{words}", "");
            }
            None => {
                used = length;
                lines.push(letter + &words);
            }
        }
    }
    lines
}
