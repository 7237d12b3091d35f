//! Cuts long texts into pieces, which limits the memory of tokenizers.

use std::ops::Range;

const OWN: usize = 1 << 16;

/// Bytes read before and after a piece, since tokens depend on the text around them.
const AROUND: usize = 1 << 10;

/// A part of a text. Pieces are consecutive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// The bytes whose tokens are the piece's.
    pub own: Range<usize>,
    /// The bytes to encode, to find these tokens.
    pub read: Range<usize>,
}

pub(crate) fn pieces(text: &str) -> impl Iterator<Item = Piece> {
    let mut begin = 0;
    std::iter::from_fn(move || {
        let own = begin..end(text, begin);
        let before = own.start.saturating_sub(AROUND);
        let read = text.floor_char_boundary(before)..text.ceil_char_boundary(own.end + AROUND);
        begin = own.end;
        (!own.is_empty()).then_some(Piece { own, read })
    })
}

/// The end of a piece: at a line end if possible, else between words, else between characters.
fn end(text: &str, begin: usize) -> usize {
    if text.len() - begin <= OWN {
        return text.len();
    }
    let most = text.floor_char_boundary(begin + OWN);
    let half = text.floor_char_boundary(begin + OWN / 2);
    let late = &text[half..most];
    let line = late.rfind('\n').map(|place| place + 1);
    let place = line.or_else(|| late.rfind(char::is_whitespace));
    place.map_or(most, |place| half + place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(text: &str) -> Vec<usize> {
        let pieces: Vec<_> = pieces(text).collect();
        let mut end = 0;
        for Piece { own, read } in &pieces {
            assert_eq!(own.start, end);
            assert!(read.start <= own.start && own.end <= read.end);
            assert!(text.get(own.clone()).is_some() && text.get(read.clone()).is_some());
            end = own.end;
        }
        assert_eq!(end, text.len());
        pieces.iter().map(|piece| piece.own.len()).collect()
    }

    #[test]
    fn a_text_is_cut_at_lines_then_words_then_characters() {
        let words = "a".repeat(OWN - 9) + " " + &"b".repeat(OWN);
        for (text, expected) in [
            (String::new(), vec![]),
            ("a".repeat(OWN), vec![OWN]),
            ("a".repeat(OWN + 1), vec![OWN, 1]),
            // Characters of three bytes.
            ("€".repeat(OWN / 2), vec![OWN - 1, OWN / 2 + 1]),
            // After a line, before the space between words.
            ("a\n".repeat(OWN / 2) + "b c", vec![OWN, 3]),
            (words, vec![OWN - 9, OWN, 1]),
            // A line end in the first half is not used.
            ("a\n".to_owned() + &"b".repeat(OWN), vec![OWN, 2]),
        ] {
            assert_eq!(lengths(&text), expected);
        }
    }
}
