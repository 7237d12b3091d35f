//! The accuracy of each class, and what is taken for what.

use maud::{Markup, html};

use super::{name, section, wide};
use crate::{
    confusion::Confusion,
    number::{self, percent},
};

/// Of more classes, the matrix would not fit on a page.
const MOST_COLUMNS: usize = 20;
const MOST_ROWS: usize = 50;

pub(super) fn render(confusion: Option<&Confusion>) -> Markup {
    let Some(confusion) = confusion.filter(|confusion| !confusion.counts.is_empty()) else {
        return html! {};
    };
    let classes = confusion.classes.iter().enumerate();
    let rows = classes.filter_map(|(class, name)| Some((class, name, confusion.accuracy(class)?)));
    let mut rows: Vec<_> = rows.collect();
    let is_matrix = confusion.classes.len() <= MOST_COLUMNS;
    if !is_matrix {
        rows.sort_by(|a, b| a.2.1.total_cmp(&b.2.1));
        rows.truncate(MOST_ROWS);
    }
    let columns = if is_matrix {
        &confusion.classes[..]
    } else {
        &[]
    };
    let table = html! {
        table .figures .confusion {
            thead {
                tr {
                    th scope="col" { "label" }
                    th scope="col" { "samples" }
                    th scope="col" { "accuracy" }
                    @for class in columns { th scope="col" { (name(class)) } }
                }
            }
            tbody {
                @for (class, own, (samples, accuracy)) in rows {
                    tr {
                        th scope="row" { (name(own)) }
                        td { (number::count(samples)) }
                        td { (percent(accuracy)) }
                        @for said in 0..columns.len() { (cell(confusion, class, said, samples)) }
                    }
                }
            }
        }
    };
    let content = html! {
        (wide("Classes", table))
        @if is_matrix {
            p .note { "A row for each label, a column for each prediction." }
        } @else {
            p .note { "The classes with the lowest accuracy. " (frequent(confusion)) }
        }
    };
    section("classes", "Classes", content)
}

/// A cell is as dark as its share of the row; a single mistake among many can still be seen.
fn cell(confusion: &Confusion, label: usize, said: usize, all: u64) -> Markup {
    let samples = confusion.samples(label, said);
    let share = (100 * samples).checked_div(all).unwrap_or(0);
    let color = if label == said { "good" } else { "warn" };
    let shade = format!(
        "background: color-mix(in srgb, var(--{color}) {}%, transparent)",
        8 + share * 42 / 100
    );
    html! {
        @if samples == 0 { td .none { "·" } }
        @else { td style=(shade) { (number::count(samples)) } }
    }
}

/// The most frequent wrong predictions, in a sentence.
fn frequent(confusion: &Confusion) -> String {
    let class = |class: usize| name(confusion.classes.get(class).map_or("?", String::as_str));
    let said = |count: &crate::PredictionCount| {
        let (label, said) = (class(count.label), class(count.said));
        format!("{label} as {said} ({})", number::count(count.samples))
    };
    let said: Vec<_> = confusion.mistakes().iter().take(10).map(said).collect();
    match said.is_empty() {
        true => String::new(),
        false => format!("Most often wrong: {}.", said.join(", ")),
    }
}
