//! The training curves, and a table of their numbers.

use maud::{Markup, html};

use super::{epochs, metric::metrics, parts::section};
use crate::{
    chart::{Chart, CurvePoint, CurveStyle, Series, ValueScale},
    run::{Epoch, TestScores},
};

pub(super) fn render(epochs: &[Epoch]) -> Markup {
    if epochs.is_empty() {
        return html! {};
    }
    let score = score(epochs);
    let charts = [loss(epochs)].into_iter().chain(score);
    let charts = charts.chain([rate(epochs), speed(epochs)]);
    let content = html! {
        div .charts { @for chart in charts { (chart.draw()) } }
        p .note {
            "Training values are means over the epoch, while the model was changing. The training loss \
            includes label smoothing and auxiliary heads if the run uses them; the test loss does not. \
            Test values are measured after each epoch."
        }
        (epochs::render(epochs))
    };
    section("curves", "Training curves", content)
}

fn loss(epochs: &[Epoch]) -> Chart {
    let train = series("training", CurveStyle::Train, epochs, |epoch| {
        Some(epoch.train_loss)
    });
    let test = tested(epochs, |scores| Some(scores.loss));
    chart(
        "Loss",
        None,
        ValueScale::Wide,
        [train].into_iter().chain(test),
    )
}

/// The first metric: perplexity of a language model, accuracy of a classifier.
fn score(epochs: &[Epoch]) -> Option<Chart> {
    let metric = metrics(epochs.iter().map(|epoch| &epoch.test))
        .into_iter()
        .next()?;
    let of_training = |epoch: &Epoch| epoch.train.get(&metric.name).copied();
    let train = series("training", CurveStyle::Train, epochs, of_training);
    let train = Some(train).filter(|series| !series.points.is_empty());
    let test = tested(epochs, |scores| scores.get(&metric.name));
    let series = train.into_iter().chain(test);
    Some(chart(metric.title(), metric.unit, metric.scale, series))
}

fn rate(epochs: &[Epoch]) -> Chart {
    let of_epoch = |epoch: &Epoch| Some(epoch.learning_rate);
    let rate = series("learning rate", CurveStyle::Test, epochs, of_epoch);
    chart(
        "Learning rate",
        Some("at the end of each epoch"),
        ValueScale::FromZero,
        [rate],
    )
}

fn speed(epochs: &[Epoch]) -> Chart {
    let of_epoch = |epoch: &Epoch| Some(epoch.samples_per_second);
    let speed = series("samples/s", CurveStyle::Test, epochs, of_epoch);
    chart(
        "Speed",
        Some("training samples/s"),
        ValueScale::FromZero,
        [speed],
    )
}

fn chart(
    title: impl Into<String>,
    unit: Option<&'static str>,
    scale: ValueScale,
    series: impl IntoIterator<Item = Series>,
) -> Chart {
    let series = series.into_iter().collect();
    Chart {
        title: title.into(),
        unit,
        scale,
        series,
    }
}

/// A test score of the weights, and of the averaged weights if there are any.
fn tested(
    epochs: &[Epoch],
    of: impl Fn(&TestScores) -> Option<f64>,
) -> impl Iterator<Item = Series> {
    let test = series("test", CurveStyle::Test, epochs, |epoch| of(&epoch.test));
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
        let (value, epoch) = (of(epoch)?, epoch.epoch);
        Some(CurvePoint { epoch, value })
    };
    let points = epochs.iter().filter_map(point).collect();
    Series {
        name,
        style,
        points,
    }
}
