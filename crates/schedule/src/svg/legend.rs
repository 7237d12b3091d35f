//! The meaning of the colours.

use ::svg::{Node, node::element::Group};

use crate::{SpanKind, Timeline, summary::stages};

use super::{
    LEGEND_PITCH, MARGIN, WIDTH,
    layout::shows_versions,
    rectangle,
    shade::{Colour, SHADES},
    text,
};

const SWATCH: f64 = 12.0;
/// Between entries.
const SPACE: f64 = 18.0;
/// The width of a letter, roughly.
const LETTER: f64 = 6.3;

/// A few swatches side by side, and their meaning.
struct Entry {
    classes: Vec<String>,
    words: String,
}

impl Entry {
    fn width(&self) -> f64 {
        let swatches = SWATCH * self.classes.len() as f64;
        swatches + 5.0 + LETTER * self.words.chars().count() as f64
    }

    fn draw(&self, page: &mut Group, x: f64, y: f64) {
        let top = y - SWATCH + 1.5;
        for (index, class) in self.classes.iter().enumerate() {
            let x = x + SWATCH * index as f64;
            page.append(rectangle(class, x, top, SWATCH, SWATCH).set("rx", 2));
        }
        let x = x + SWATCH * self.classes.len() as f64 + 5.0;
        page.append(text("legend", x, y, self.words.as_str()));
    }
}

/// A line of swatches, each with its class and meaning.
pub(super) fn draw_items(page: &mut Group, items: &[(&str, &str)], y: f64) {
    let entry = |&(class, words): &(&str, &str)| Entry {
        classes: vec![class.to_owned()],
        words: words.to_owned(),
    };
    draw_in_line(page, &items.iter().map(entry).collect::<Vec<_>>(), y);
}

fn draw_in_line(page: &mut Group, entries: &[Entry], y: f64) {
    let mut x = MARGIN;
    for entry in entries {
        entry.draw(page, x, y);
        x += entry.width() + SPACE;
    }
}

/// Entries in lines.
pub(super) struct Legend {
    lines: Vec<Vec<Entry>>,
}

impl Legend {
    /// The kinds of spans in the timeline, the bubble, and the shades if any worker has several stages.
    pub fn of(timeline: &Timeline) -> Self {
        let kinds: Vec<_> = timeline.kinds().collect();
        let has_shades = timeline.workers.iter().any(|spans| stages(spans).len() > 1);
        let shades = has_shades.then(|| shades(kinds.first().copied()));
        let entry = |class, words| Entry {
            classes: vec![class],
            words,
        };
        let kinds = kinds
            .into_iter()
            .map(|kind| entry(Colour::of(kind).class(), kind.to_string()));
        let bubble = entry("bubble".to_owned(), "bubble".to_owned());
        let versions = shows_versions(timeline).then(|| Entry {
            classes: Vec::new(),
            words: "below a micro-batch: version of the weights".to_owned(),
        });
        let lines = in_lines(kinds.chain([bubble]).chain(shades).chain(versions));
        Self { lines }
    }

    pub fn lines(&self) -> usize {
        self.lines.len()
    }

    pub fn draw(&self, page: &mut Group, y: f64) {
        for (line, entries) in self.lines.iter().enumerate() {
            draw_in_line(page, entries, y + LEGEND_PITCH * line as f64);
        }
    }
}

fn shades(kind: Option<SpanKind>) -> Entry {
    let kind = kind.unwrap_or(SpanKind::Forward);
    let class = |shade| Colour::shaded(kind, shade).class();
    Entry {
        classes: (0..SHADES).map(class).collect(),
        words: "first to last stage of a worker".to_owned(),
    }
}

fn in_lines(entries: impl Iterator<Item = Entry>) -> Vec<Vec<Entry>> {
    let mut lines = vec![Vec::new()];
    let mut x = MARGIN;
    for entry in entries {
        if x + entry.width() > WIDTH - MARGIN {
            lines.push(Vec::new());
            x = MARGIN;
        }
        x += entry.width() + SPACE;
        let last = lines.len() - 1;
        lines[last].push(entry);
    }
    lines
}
