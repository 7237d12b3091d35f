//! The meaning of letters and colours.

use crate::{Timeline, summary::stages};

use super::cells::{IDLE, Paint};

/// The kinds of spans in the timeline, in lines of at most `width` characters.
pub(super) fn lines(timeline: &Timeline, width: usize, colour: bool) -> Vec<String> {
    let kinds = timeline
        .kinds()
        .map(|kind| (Paint::of(kind).letter(colour), format!(" {kind}")));
    let bubble = (IDLE.to_string(), " bubble".to_owned());
    let several = timeline.workers.iter().any(|spans| stages(spans).len() > 1);
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
