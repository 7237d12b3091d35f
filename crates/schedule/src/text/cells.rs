//! The lane of a worker as characters.

use crate::{
    Span, SpanKind, Timeline,
    summary::{chunk, stages},
};

/// Where a worker waits.
pub(super) const IDLE: char = '·';

/// The letter and colour of a cell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Paint {
    kind: SpanKind,
    /// Whether the stage is every other one of its worker.
    other: bool,
}

impl Paint {
    pub fn of(kind: SpanKind) -> Self {
        Self { kind, other: false }
    }

    fn plain_letter(self) -> char {
        let letter = self.kind.letter();
        if self.other {
            letter.to_ascii_lowercase()
        } else {
            letter
        }
    }

    pub fn letter(self, colour: bool) -> String {
        self.colour(&self.plain_letter().to_string(), colour)
    }

    /// Black on the eight colours that every terminal has, or their bright variants.
    fn colour(self, text: &str, colour: bool) -> String {
        if !colour {
            return text.to_owned();
        }
        let background = match self.kind {
            SpanKind::Forward => 44,
            SpanKind::Recompute => 45,
            SpanKind::Backward => 43,
            SpanKind::InputGradient => 41,
            SpanKind::WeightGradient => 42,
            SpanKind::Update => 46,
        };
        let background = background + if self.other { 60 } else { 0 };
        format!("\u{1b}[30;{background}m{text}\u{1b}[0m")
    }
}

/// For each cell, one of its spans.
pub(super) struct Cells<'a> {
    cells: Vec<Option<&'a Span>>,
    stages: Vec<usize>,
}

/// A part of a cell: a kind of span, its time there, and the longest span with its time. Without a kind
/// the worker waits. Times are in cells.
struct Part<'a> {
    paint: Option<Paint>,
    time: f64,
    longest: Option<(&'a Span, f64)>,
}

/// The parts of a cell.
#[derive(Default)]
struct Cell<'a>(Vec<Part<'a>>);

impl<'a> Cell<'a> {
    /// A smaller part never gets the cell. There are 13 kinds of parts, so some part is larger.
    const LEAST: f64 = 0.05;

    fn add(&mut self, paint: Paint, span: &'a Span, time: f64) {
        let part = self.0.iter_mut().find(|part| part.paint == Some(paint));
        match part {
            Some(part) => {
                part.time += time;
                part.longest = part.longest.filter(|longest| longest.1 >= time);
                part.longest = part.longest.or(Some((span, time)));
            }
            None => self.0.push(Part {
                paint: Some(paint),
                time,
                longest: Some((span, time)),
            }),
        }
    }

    fn add_idle(&mut self) {
        let busy: f64 = self.0.iter().map(|part| part.time).sum();
        if busy < 1.0 {
            self.0.push(Part {
                paint: None,
                time: 1.0 - busy,
                longest: None,
            });
        }
    }
}

/// What each kind is owed by the cells so far, since each cell shows only one of its kinds.
#[derive(Default)]
struct Debts(Vec<(Option<Paint>, f64)>);

impl Debts {
    fn of(&mut self, paint: Option<Paint>) -> &mut f64 {
        let known = self.0.iter().position(|debt| debt.0 == paint);
        let index = known.unwrap_or_else(|| {
            self.0.push((paint, 0.0));
            self.0.len() - 1
        });
        &mut self.0[index].1
    }

    /// The span for the next cell: of the kinds that have a part in it, the one that is owed most. So
    /// the number of cells of a kind is its share of time in the end.
    fn settle<'a>(&mut self, mut cell: Cell<'a>) -> Option<&'a Span> {
        cell.add_idle();
        let mut winner: Option<(f64, &Part)> = None;
        for part in &cell.0 {
            let debt = self.of(part.paint);
            *debt += part.time;
            let is_seen = part.time >= Cell::LEAST;
            if is_seen && winner.is_none_or(|(most, _)| *debt > most + 1e-9) {
                winner = Some((*debt, part));
            }
        }
        let (_, part) = winner?;
        *self.of(part.paint) -= 1.0;
        part.longest.map(|(span, _)| span)
    }
}

impl<'a> Cells<'a> {
    pub fn of(timeline: &'a Timeline, worker: usize, columns: usize) -> Self {
        let spans = &timeline.workers[worker];
        let stages = stages(spans);
        let seconds = timeline.length().as_secs_f64();
        let per_second = if seconds > 0.0 {
            columns as f64 / seconds
        } else {
            0.0
        };
        let mut cells: Vec<_> = (0..columns).map(|_| Cell::default()).collect();
        for span in spans {
            let start = span.start.as_secs_f64() * per_second;
            let end = start + span.length().as_secs_f64() * per_second;
            let touched = start as usize..(end.ceil() as usize).min(columns);
            for column in touched {
                let time = end.min(column as f64 + 1.0) - start.max(column as f64);
                cells[column].add(paint(span, &stages), span, time);
            }
        }
        let mut debts = Debts::default();
        let cells = cells.into_iter().map(|cell| debts.settle(cell)).collect();
        Self { cells, stages }
    }

    pub fn to_text(&self, colour: bool) -> String {
        let same = |a: &Option<&Span>, b: &Option<&Span>| match (a, b) {
            (Some(a), Some(b)) => std::ptr::eq(*a, *b),
            (a, b) => a.is_none() && b.is_none(),
        };
        let boxes = self.cells.chunk_by(same);
        let text = boxes.map(|cells| match cells[0] {
            Some(span) => self.of_box(span, cells.len(), colour),
            None => IDLE.to_string().repeat(cells.len()),
        });
        text.collect()
    }

    /// A letter, the micro-batch if it fits, and a line to the end.
    fn of_box(&self, span: &Span, columns: usize, colour: bool) -> String {
        let paint = paint(span, &self.stages);
        let number = span.action.map(|a| a.micro_batch.to_string());
        let number = number.filter(|number| number.len() < columns);
        let number = number.unwrap_or_default();
        let line = if colour { " " } else { "─" }.repeat(columns - 1 - number.len());
        let letter = paint.plain_letter();
        paint.colour(&format!("{letter}{number}{line}"), colour)
    }
}

fn paint(span: &Span, stages: &[usize]) -> Paint {
    Paint {
        kind: span.kind,
        other: chunk(span, stages).is_some_and(|chunk| chunk % 2 == 1),
    }
}
