//! The training curves, and a table of their numbers.

use maud::{Markup, html};

use super::{epochs, metric::metrics, section};
use crate::{
    chart::{Chart, CurvePoint, CurveStyle, Series, ValueScale},
    number::capital,
    run::{Epoch, Step, TestScores},
};

/// Bytes in a mebibyte.
pub(super) const MIB: f64 = (1 << 20) as f64;

pub(super) fn render(epochs: &[Epoch], steps: &[Step]) -> Markup {
    html! {
        @if !epochs.is_empty() { (by_epoch(epochs, steps.is_empty())) }
        @if !steps.is_empty() { (by_step(steps)) }
    }
}

fn by_epoch(epochs: &[Epoch], has_no_steps: bool) -> Markup {
    let charts = [loss(epochs)].into_iter().chain(score(epochs));
    // The steps show these in more detail.
    let others = has_no_steps.then(|| [rate(epochs), speed(epochs)]);
    let charts = charts.chain(others.into_iter().flatten());
    let content = html! {
        div .charts { @for chart in charts { (chart.draw()) } }
        p .note {
            "Training values are means over the epoch, while the model was changing. The training loss \
            includes label smoothing and auxiliary heads if the run uses them; the test loss does not. \
            Test values are measured after an epoch."
        }
        (epochs::render(epochs))
    };
    section("curves", "Training curves", content)
}

fn by_step(steps: &[Step]) -> Markup {
    use ValueScale::{FromZero, Shares, Wide};
    type Value = fn(&Step) -> Option<f64>;
    let is_language = steps.iter().any(|step| step.tokens_per_second.is_some());
    let speed: (_, Value) = if is_language {
        ("tokens/s", |step| step.tokens_per_second)
    } else {
        ("samples/s", |step| Some(step.samples_per_second))
    };
    let curves: [(_, _, _, Value); 6] = [
        ("Loss", None, Wide, |step| Some(step.loss)),
        ("Learning rate", None, FromZero, |step| {
            Some(step.learning_rate)
        }),
        ("Gradient norm", Some("before clipping"), Wide, |step| {
            step.gradient_norm
        }),
        ("Speed", Some(speed.0), FromZero, speed.1),
        ("Memory", Some("of the process, MiB"), FromZero, |step| {
            Some(step.memory? / MIB)
        }),
        ("Bubble", Some("idle share of a step"), Shares, |step| {
            Some(step.bubble)
        }),
    ];
    let draw = |(title, unit, scale, of): (&str, _, _, Value)| {
        let point = |step: &Step| {
            let (at, value) = (step.step, of(step)?);
            Some(CurvePoint { at, value })
        };
        let points: Vec<_> = steps.iter().filter_map(point).collect();
        let is_empty = points.is_empty();
        let (name, style) = ("training", CurveStyle::Train);
        let series = [Series {
            name: name.into(),
            style,
            points,
        }];
        let chart = Chart {
            along: "step",
            ..chart(title, unit, scale, series)
        };
        (!is_empty).then(|| chart.draw())
    };
    let content = html! {
        div .charts { @for chart in curves.into_iter().filter_map(draw) { (chart) } }
        p .note { "A step is a mini-batch. steps.jsonl has all numbers." }
    };
    section("steps", "Step by step", content)
}

fn loss(epochs: &[Epoch]) -> Chart {
    let of_training = |epoch: &Epoch| Some(epoch.train_loss);
    let train = [series("training", CurveStyle::Train, epochs, of_training)];
    let test = tested(epochs, |scores| Some(scores.loss));
    let series = train.into_iter().chain(test);
    chart("Loss", None, ValueScale::Wide, series)
}

/// The first metric: perplexity of a language model, accuracy of a classifier.
fn score(epochs: &[Epoch]) -> Option<Chart> {
    let metrics = metrics(epochs.iter().filter_map(|epoch| epoch.test.as_ref()));
    let metric = metrics.first()?;
    let of_training = |epoch: &Epoch| epoch.train.get(&metric.name).copied();
    let train = series("training", CurveStyle::Train, epochs, of_training);
    let train = Some(train).filter(|series| !series.points.is_empty());
    let test = tested(epochs, |scores| scores.get(&metric.name));
    let series = train.into_iter().chain(test);
    let title = capital(&metric.label);
    Some(chart(&title, metric.unit, metric.scale, series))
}

fn rate(epochs: &[Epoch]) -> Chart {
    let of_epoch = |epoch: &Epoch| Some(epoch.learning_rate);
    let rate = series("learning rate", CurveStyle::Test, epochs, of_epoch);
    let unit = Some("at the end of each epoch");
    chart("Learning rate", unit, ValueScale::FromZero, [rate])
}

fn speed(epochs: &[Epoch]) -> Chart {
    let of_epoch = |epoch: &Epoch| Some(epoch.samples_per_second);
    let speed = series("samples/s", CurveStyle::Test, epochs, of_epoch);
    let unit = Some("training samples/s");
    chart("Speed", unit, ValueScale::FromZero, [speed])
}

pub(super) fn chart(
    title: &str,
    unit: Option<&'static str>,
    scale: ValueScale,
    series: impl IntoIterator<Item = Series>,
) -> Chart {
    Chart {
        title: title.to_owned(),
        unit,
        scale,
        along: "epoch",
        series: series.into_iter().collect(),
    }
}

/// A test score of the weights, and of the averaged weights if there are any.
fn tested(
    epochs: &[Epoch],
    of: impl Fn(&TestScores) -> Option<f64>,
) -> impl Iterator<Item = Series> {
    let test = series("test", CurveStyle::Test, epochs, |epoch| {
        epoch.test.as_ref().and_then(&of)
    });
    let averaged = series("averaged", CurveStyle::Averaged, epochs, |epoch| {
        epoch.averaged.as_ref().and_then(&of)
    });
    let averaged = Some(averaged).filter(|series| !series.points.is_empty());
    [test].into_iter().chain(averaged)
}

fn series(
    name: &'static str,
    style: CurveStyle,
    epochs: &[Epoch],
    of: impl Fn(&Epoch) -> Option<f64>,
) -> Series {
    let point = |epoch: &Epoch| {
        let (at, value) = (epoch.epoch, of(epoch)?);
        Some(CurvePoint { at, value })
    };
    Series {
        name: name.into(),
        style,
        points: epochs.iter().filter_map(point).collect(),
    }
}
