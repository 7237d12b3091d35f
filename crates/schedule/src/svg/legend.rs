//! What the colours mean, at the right of the title.

use ::svg::{Document, Node};

use crate::{SpanKind, Timeline};

use super::{MARGIN, TITLE_Y, WIDTH, rectangle, text};

const SWATCH: f64 = 12.0;
/// From one entry to the next; the last one, `bubble`, is short and needs less.
const PITCH: f64 = 92.0;
const LAST: f64 = 62.0;

/// Names the kinds of spans that occur, and the bubble.
pub(super) fn draw(page: &mut Document, timeline: &Timeline) {
    let names = kinds(timeline).map(|kind| kind.to_string());
    let entries: Vec<String> = names.chain(["bubble".to_owned()]).collect();
    let last_x = WIDTH - MARGIN - LAST;
    for (from_right, name) in entries.iter().rev().enumerate() {
        let x = last_x - PITCH * from_right as f64;
        let y = TITLE_Y - SWATCH + 1.5;
        page.append(rectangle(name, x, y, SWATCH, SWATCH).set("rx", 2));
        page.append(text("legend", x + SWATCH + 5.0, TITLE_Y, name));
    }
}

fn kinds(timeline: &Timeline) -> impl Iterator<Item = SpanKind> {
    let occurs = |kind: &SpanKind| timeline.workers.iter().flatten().any(|s| s.kind == *kind);
    SpanKind::ALL.into_iter().filter(occurs)
}
