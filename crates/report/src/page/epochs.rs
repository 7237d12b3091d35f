//! The table of all epochs.

use maud::{Markup, html};

use super::parts::wide;
use crate::{
    chart::spread,
    number::{self, duration, percent, short, things},
    run::Epoch,
};

const MOST_ROWS: usize = 60;

/// The header of a column, and its text for an epoch.
type EpochColumn = (&'static str, fn(&Epoch) -> String);

pub(super) fn render(epochs: &[Epoch]) -> Markup {
    let columns = columns(epochs);
    let rows = spread(epochs.len(), MOST_ROWS).map(|row| &epochs[row]);
    html! {
        details {
            summary { "All numbers as a table" }
            (wide("Table of all epochs", html! {
                table .figures {
                    caption { (caption(epochs.len())) }
                    thead { tr { @for (name, _) in &columns { th scope="col" { (name) } } } }
                    tbody { @for epoch in rows { (row(epoch, &columns)) } }
                }
            }))
        }
    }
}

fn caption(epochs: usize) -> String {
    let all = things(epochs as u64, "epoch", "epochs");
    if epochs > MOST_ROWS {
        format!("{MOST_ROWS} of {all}, evenly spread; metrics.jsonl has all")
    } else {
        all
    }
}

fn row(epoch: &Epoch, columns: &[EpochColumn]) -> Markup {
    html! {
        tr {
            @for (column, (_, of)) in columns.iter().enumerate() {
                @if column == 0 { th scope="row" { (of(epoch)) } } @else { td { (of(epoch)) } }
            }
        }
    }
}

fn columns(epochs: &[Epoch]) -> Vec<EpochColumn> {
    let mut columns: Vec<EpochColumn> = vec![
        ("epoch", |epoch| number::count(epoch.epoch as u64)),
        ("learning rate", |epoch| short(epoch.learning_rate)),
        ("training loss", |epoch| loss(epoch.train_loss)),
        ("test loss", |epoch| loss(epoch.test.loss)),
    ];
    if epochs.iter().any(|epoch| epoch.test.perplexity.is_some()) {
        columns.push(("test perplexity", |epoch| {
            number::decimal(epoch.test.perplexity.unwrap_or(f64::NAN), 2)
        }));
    }
    columns.push(("training accuracy", |epoch| percent(epoch.train_accuracy)));
    columns.push(("test accuracy", |epoch| percent(epoch.test.accuracy)));
    if epochs.iter().any(|epoch| epoch.averaged.is_some()) {
        columns.push(("averaged loss", |epoch| {
            loss(epoch.averaged.map_or(f64::NAN, |scores| scores.loss))
        }));
        columns.push(("averaged accuracy", |epoch| {
            percent(epoch.averaged.map_or(f64::NAN, |scores| scores.accuracy))
        }));
    }
    if epochs.iter().any(|epoch| epoch.loss_scale.is_some()) {
        columns.push(("loss scale", |epoch| {
            short(epoch.loss_scale.map_or(f64::NAN, |scaling| scaling.scale))
        }));
        columns.push(("skipped updates", |epoch| {
            number::count(epoch.loss_scale.map_or(0, |scaling| scaling.skipped))
        }));
    }
    columns.push(("samples/s", |epoch| short(epoch.samples_per_second)));
    columns.push(("bubble", |epoch| percent(epoch.bubble)));
    columns.push(("time", |epoch| duration(epoch.seconds)));
    columns
}

fn loss(value: f64) -> String {
    number::decimal(value, 4)
}
