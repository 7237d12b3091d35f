//! The colour of a span: its kind, and a shade for its stage if the worker has several.

use crate::{Span, SpanKind, summary::chunk};

/// Lighter and darker variants of each colour.
pub(super) const SHADES: usize = 4;

/// A colour, by the rules of the style sheet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Colour {
    kind: SpanKind,
    /// None for the only stage of a worker.
    shade: Option<usize>,
}

impl Colour {
    pub fn of(kind: SpanKind) -> Self {
        Self { kind, shade: None }
    }

    /// The colour of a span, given all stages of its worker.
    pub fn of_span(span: &Span, stages: &[usize]) -> Self {
        Self {
            kind: span.kind,
            shade: chunk(span, stages).and_then(|chunk| shade(chunk, stages.len())),
        }
    }

    pub fn shaded(kind: SpanKind, shade: usize) -> Self {
        let shade = Some(shade);
        Self { kind, shade }
    }

    pub fn class(self) -> String {
        let (_, _, kind, ..) = self.kind.look();
        match self.shade {
            Some(shade) => format!("{kind} s{shade}"),
            None => kind.to_owned(),
        }
    }
}

/// The first stage is lightest, the last one darkest.
fn shade(chunk: usize, chunks: usize) -> Option<usize> {
    let last = chunks.checked_sub(1).filter(|&last| last > 0)?;
    Some((2 * chunk * (SHADES - 1) + last) / (2 * last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shades_go_from_the_lightest_to_the_darkest() {
        let check = |chunks, expected: &[usize]| {
            let shades = (0..chunks).map(|chunk| shade(chunk, chunks));
            assert!(shades.eq(expected.iter().map(|&shade| Some(shade))));
        };
        assert_eq!(shade(0, 1), None);
        check(2, &[0, 3]);
        check(3, &[0, 2, 3]);
        check(4, &[0, 1, 2, 3]);
        check(7, &[0, 1, 1, 2, 2, 3, 3]);
    }
}
