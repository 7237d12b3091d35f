//! The table of all epochs.

use maud::{Markup, html};

use super::{
    metric::{Metric, metrics},
    wide,
};
use crate::{
    chart::spread,
    number::{count, decimal, duration, percent, short, things},
    run::Epoch,
};

const MOST_ROWS: usize = 60;

/// The header of a column, and its text for an epoch.
type EpochColumn = (String, Box<dyn Fn(&Epoch) -> String>);

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
    let mut columns = vec![
        column("epoch", |epoch| count(epoch.epoch as u64)),
        column("learning rate", |epoch| short(epoch.learning_rate)),
        column("training loss", |epoch| decimal(epoch.train_loss, 4)),
    ];
    let has_averages = epochs.iter().any(|epoch| epoch.averaged.is_some());
    let metrics = metrics(epochs.iter().filter_map(|epoch| epoch.test.as_ref()));
    for metric in [Metric::named("loss")].into_iter().chain(metrics) {
        let (name, label, format) = (metric.name, metric.label, metric.format);
        let shown = move |value: Option<f64>| format(value.unwrap_or(f64::NAN));
        if epochs.iter().any(|epoch| epoch.train.contains_key(&name)) {
            let name = name.clone();
            let of = move |epoch: &Epoch| shown(epoch.train.get(&name).copied());
            columns.push(column(format!("training {label}"), of));
        }
        let own = name.clone();
        let of = move |epoch: &Epoch| shown(epoch.test.as_ref().and_then(|test| test.get(&own)));
        columns.push(column(format!("test {label}"), of));
        if has_averages {
            let of = move |epoch: &Epoch| {
                let averaged = epoch.averaged.as_ref();
                shown(averaged.and_then(|scores| scores.get(&name)))
            };
            columns.push(column(format!("averaged {label}"), of));
        }
    }
    if epochs.iter().any(|epoch| epoch.loss_scale.is_some()) {
        columns.push(column("loss scale", |epoch| {
            short(epoch.loss_scale.map_or(f64::NAN, |scaling| scaling.scale))
        }));
        columns.push(column("skipped updates", |epoch| {
            count(epoch.loss_scale.map_or(0, |scaling| scaling.skipped))
        }));
    }
    columns.push(column("samples/s", |epoch| short(epoch.samples_per_second)));
    columns.push(column("bubble", |epoch| percent(epoch.bubble)));
    columns.push(column("time", |epoch| duration(epoch.seconds)));
    columns
}

fn column(name: impl Into<String>, of: impl Fn(&Epoch) -> String + 'static) -> EpochColumn {
    (name.into(), Box::new(of))
}
