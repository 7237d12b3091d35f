//! What letters and colours mean.

use crate::{SpanKind, Timeline, summary::stages};

use super::cells::{IDLE, Paint};

/// The kinds of spans that occur, in lines of no more than `width` characters.
pub(super) fn lines(timeline: &Timeline, width: usize, colour: bool) -> Vec<String> {
    let occurs = |kind: &SpanKind| timeline.workers.iter().flatten().any(|s| s.kind == *kind);
    let kinds = SpanKind::ALL.into_iter().filter(occurs);
    let kinds = kinds.map(|kind| (Paint::of(kind).letter(colour), format!(" {kind}")));
    let bubble = (IDLE.to_string(), " bubble".to_owned());
    let several = timeline.workers.iter().any(|spans| stages(spans).len() > 1);
    let lower = (String::new(), "lower case: every other stage".to_owned());
    let entries = kinds.chain([bubble]).chain(several.then_some(lower));
    in_lines(entries, width)
}

/// Puts entries side by side, each a letter that may be coloured and words after it.
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
