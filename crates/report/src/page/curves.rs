//! How the run went: a drawing for each kind of number, and the numbers themselves.

use maud::{Markup, html};

use super::{epochs, section};
use crate::{
    chart::{Chart, Look, Point, Series, Values},
    run::{Epoch, Scores},
};

pub(super) fn of(epochs: &[Epoch]) -> Markup {
    if epochs.is_empty() {
        return html! {};
    }
    let charts = [loss(epochs), score(epochs), rate(epochs), speed(epochs)];
    let content = html! {
        div .charts { @for chart in charts { (chart.draw()) } }
        p .note {
            "Training numbers are means over an epoch, while the model changed; the loss is with label smoothing \
            and auxiliary heads where the settings ask for them. Test numbers are those of the model after the epoch, \
            without."
        }
        (epochs::of(epochs))
    };
    section("curves", "How it went", content)
}

fn loss(epochs: &[Epoch]) -> Chart {
    let mut series = vec![
        series("training", Look::Train, epochs, |epoch| {
            Some(epoch.train_loss)
        }),
        series("test", Look::Test, epochs, |epoch| Some(epoch.test.loss)),
    ];
    series.extend(averaged(epochs, |scores| Some(scores.loss)));
    Chart {
        title: "Loss",
        unit: None,
        values: Values::Wide,
        series,
    }
}

/// Perplexity of a language model, accuracy of others.
fn score(epochs: &[Epoch]) -> Chart {
    if epochs.iter().any(|epoch| epoch.test.perplexity.is_some()) {
        let test = series("test", Look::Test, epochs, |epoch| epoch.test.perplexity);
        return Chart {
            title: "Perplexity",
            unit: Some("per token"),
            values: Values::Wide,
            series: [test]
                .into_iter()
                .chain(averaged(epochs, |scores| scores.perplexity))
                .collect(),
        };
    }
    let mut series = vec![
        series("training", Look::Train, epochs, |epoch| {
            Some(epoch.train_accuracy)
        }),
        series("test", Look::Test, epochs, |epoch| {
            Some(epoch.test.accuracy)
        }),
    ];
    series.extend(averaged(epochs, |scores| Some(scores.accuracy)));
    Chart {
        title: "Accuracy",
        unit: None,
        values: Values::Shares,
        series,
    }
}

fn rate(epochs: &[Epoch]) -> Chart {
    Chart {
        title: "Learning rate",
        unit: Some("at the end of each epoch"),
        values: Values::FromZero,
        series: vec![series("learning rate", Look::Test, epochs, |epoch| {
            Some(epoch.learning_rate)
        })],
    }
}

fn speed(epochs: &[Epoch]) -> Chart {
    Chart {
        title: "Speed",
        unit: Some("training samples/s"),
        values: Values::FromZero,
        series: vec![series("samples/s", Look::Test, epochs, |epoch| {
            Some(epoch.samples_per_second)
        })],
    }
}

/// The same of the averaged weights, if there are any.
fn averaged(epochs: &[Epoch], of: impl Fn(&Scores) -> Option<f64>) -> Option<Series> {
    let series = series("averaged", Look::Averaged, epochs, |epoch| {
        epoch.averaged.as_ref().and_then(&of)
    });
    (!series.points.is_empty()).then_some(series)
}

fn series(
    name: &'static str,
    look: Look,
    epochs: &[Epoch],
    of: impl Fn(&Epoch) -> Option<f64>,
) -> Series {
    let point = |epoch: &Epoch| {
        Some(Point {
            epoch: epoch.epoch,
            value: of(epoch)?,
        })
    };
    Series {
        name,
        look,
        points: epochs.iter().filter_map(point).collect(),
    }
}
