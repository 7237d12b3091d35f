//! The lane of a worker as characters.

use std::time::Duration;

use crate::{
    Span, SpanKind,
    summary::{chunk, stages},
};

/// Where a worker waits.
pub(super) const IDLE: char = '·';

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

    fn of_span(span: &Span, stages: &[usize]) -> Self {
        let other = chunk(span, stages).is_some_and(|chunk| chunk % 2 == 1);
        let kind = span.kind;
        Self { kind, other }
    }

    /// A letter, the micro-batch if it fits, and a line to the end.
    fn draw(self, span: &Span, columns: usize, colour: bool) -> String {
        let number = span.action.map(|a| a.micro_batch.to_string());
        let number = number.filter(|number| number.len() < columns);
        let number = number.unwrap_or_default();
        let line = if colour { " " } else { "─" }.repeat(columns - 1 - number.len());
        let letter = self.plain_letter();
        self.colour(&format!("{letter}{number}{line}"), colour)
    }

    fn plain_letter(self) -> char {
        match self.kind.look() {
            (letter, ..) if self.other => letter.to_ascii_lowercase(),
            (letter, ..) => letter,
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
        let (.., background, _) = self.kind.look();
        let background = background + if self.other { 60 } else { 0 };
        format!("\u{1b}[30;{background}m{text}\u{1b}[0m")
    }
}

/// Something for each kind, in the order in which kinds were first seen. Without a kind the worker waits.
type PerKind<T> = Vec<(Option<Paint>, T)>;

fn entry<T: Default>(all: &mut PerKind<T>, paint: Option<Paint>) -> &mut T {
    let known = all.iter().position(|(other, _)| *other == paint);
    let index = known.unwrap_or_else(|| {
        all.push((paint, T::default()));
        all.len() - 1
    });
    &mut all[index].1
}

/// A part of a cell: the time of a kind there, and its longest span with its time. Times are in cells.
#[derive(Clone, Default)]
struct Part<'a> {
    time: f64,
    longest: Option<(&'a Span, f64)>,
}

/// A smaller part never gets the cell. There are 15 kinds of parts, so some part is larger.
const LEAST: f64 = 0.05;

/// The span for the next cell: of the kinds that have a part in it, the one that is owed most by the cells
/// so far, since each shows only one. So the number of cells of a kind is its share of time in the end.
fn settle<'a>(debts: &mut PerKind<f64>, mut cell: PerKind<Part<'a>>) -> Option<&'a Span> {
    let busy: f64 = cell.iter().map(|(_, part)| part.time).sum();
    if busy < 1.0 {
        entry(&mut cell, None).time = 1.0 - busy;
    }
    let mut winner: Option<(f64, &(_, Part))> = None;
    for part in &cell {
        let debt = entry(debts, part.0);
        *debt += part.1.time;
        let is_seen = part.1.time >= LEAST;
        if is_seen && winner.is_none_or(|(most, _)| *debt > most + 1e-9) {
            winner = Some((*debt, part));
        }
    }
    let (_, (paint, part)) = winner?;
    *entry(debts, *paint) -= 1.0;
    part.longest.map(|(span, _)| span)
}

/// The lane of a worker: of each cell one of its spans, and boxes of equal cells. All-reduces are shown
/// where the worker would wait.
pub(super) fn lane(spans: &[Span], length: Duration, columns: usize, colour: bool) -> String {
    let stages = stages(spans);
    let seconds = length.as_secs_f64();
    let per_second = if seconds > 0.0 {
        columns as f64 / seconds
    } else {
        0.0
    };
    let mut cells: Vec<PerKind<Part>> = vec![Vec::new(); columns];
    let beside = |span: &&Span| span.kind == SpanKind::AllReduce;
    let others = spans.iter().filter(|span| !beside(span));
    for span in others.chain(spans.iter().filter(beside)) {
        let start = span.start.as_secs_f64() * per_second;
        let end = start + span.length().as_secs_f64() * per_second;
        let touched = start as usize..(end.ceil() as usize).min(columns);
        for column in touched {
            let mut time = end.min(column as f64 + 1.0) - start.max(column as f64);
            if beside(&span) {
                let busy: f64 = cells[column].iter().map(|(_, part)| part.time).sum();
                time = time.min(1.0 - busy).max(0.0);
            }
            let part = entry(&mut cells[column], Some(Paint::of_span(span, &stages)));
            part.time += time;
            if part.longest.is_none_or(|(_, longest)| longest < time) {
                part.longest = Some((span, time));
            }
        }
    }
    let mut debts = PerKind::new();
    let cells = cells.into_iter().map(|cell| settle(&mut debts, cell));
    let cells: Vec<_> = cells.collect();
    let place = |cell: &Option<&Span>| cell.map(std::ptr::from_ref);
    let boxes = cells.chunk_by(|a, b| place(a) == place(b));
    let boxes = boxes.map(|cells| match cells[0] {
        Some(span) => Paint::of_span(span, &stages).draw(span, cells.len(), colour),
        None => IDLE.to_string().repeat(cells.len()),
    });
    boxes.collect()
}
