//! The title and the results of a run.

use maud::{Markup, html};

use super::{
    metric::{Better, Metric, metrics},
    name, section,
};
use crate::{
    number::{self, duration, percent, things},
    read::Report,
    run::{Epoch, RunSummary, TestScores},
};

pub(super) fn render(report: &Report) -> Markup {
    let results = Results::of(report);
    html! {
        header {
            p .kicker { "Stovepipe training run" }
            h1 { (name(&report.title)) }
            @if let Some(about) = about(report) { p .about { (about) } }
            p .state { (state(report)) }
        }
        @if let Some(results) = results { (section("results", "Results", results.render())) }
    }
}

/// Model, data and size in one line.
fn about(report: &Report) -> Option<String> {
    let mut parts = Vec::new();
    let setting = |key| report.settings.get(key, key).map(name);
    match (setting("model"), setting("data")) {
        (Some(model), Some(data)) => parts.push(format!("{model} on {data}")),
        (model, data) => parts.extend(model.or(data)),
    }
    if let Some(summary) = &report.summary {
        parts.push(things(summary.parameters, "parameter", "parameters"));
        parts.push(things(summary.stages.len() as u64, "stage", "stages"));
    }
    (!parts.is_empty()).then(|| parts.join(" · "))
}

/// Whether the run finished, and after how many epochs.
fn state(report: &Report) -> Markup {
    let summary = report.summary.as_ref();
    let epochs = summary.map_or(report.epochs.len(), |summary| summary.epochs);
    let asked = report.settings.get("training", "epochs");
    let asked = asked.and_then(|epochs| epochs.parse::<usize>().ok());
    let epochs = match asked {
        Some(asked) if asked != epochs => format!("{epochs} of {asked} epochs"),
        _ => things(epochs as u64, "epoch", "epochs"),
    };
    let (class, word, rest) = match summary {
        Some(summary) if summary.stopped => ("stopped", "Stopped early", ""),
        Some(_) => ("finished", "Finished", ""),
        None => ("open", "Not finished", ": interrupted, or still running"),
    };
    html! { strong class={ "badge " (class) } { (word) } " after " (epochs) (rest) }
}

/// The results of a run; until it has finished, those of its epochs so far.
struct Results<'a> {
    summary: RunSummary,
    epochs: &'a [Epoch],
}

impl<'a> Results<'a> {
    fn of(report: &'a Report) -> Option<Self> {
        let epochs = report.epochs.as_slice();
        if let Some(summary) = report.summary.clone() {
            return Some(Self { summary, epochs });
        }
        let last = epochs.iter().rev().find(|epoch| epoch.test.is_some())?;
        let mean = |value: fn(&Epoch) -> f64, weight: fn(&Epoch) -> f64| {
            let weighted = epochs.iter().map(|epoch| value(epoch) * weight(epoch));
            weighted.sum::<f64>() / epochs.iter().map(weight).sum::<f64>()
        };
        let summary = RunSummary {
            test: last.test.clone().unwrap_or_default(),
            averaged: last.averaged.clone(),
            samples_per_second: mean(|epoch| epoch.samples_per_second, |epoch| epoch.seconds),
            bubble: mean(|epoch| epoch.bubble, |epoch| epoch.steps as f64),
            host_time: epochs.iter().any(|epoch| epoch.host_time),
            seconds: epochs.iter().map(|epoch| epoch.seconds).sum(),
            ..RunSummary::default()
        };
        Some(Self { summary, epochs })
    }

    fn render(&self) -> Markup {
        let summary = &self.summary;
        let scores = self.epochs.iter().filter_map(|epoch| epoch.test.as_ref());
        let metrics = metrics(scores.chain([&summary.test]));
        let (first, others) = metrics.split_at(metrics.len().min(1));
        let idle = match summary.host_time {
            true => "idle share of a step, in host time: a GPU may do work after it was launched",
            false => "idle share of a step",
        };
        html! {
            dl .numbers {
                @for metric in first { (self.score(metric)) }
                (self.score(&Metric::named("loss")))
                @for metric in others { (self.score(metric)) }
                (number("Samples per second", &speed(summary.samples_per_second), &["in training".to_owned()]))
                (number("Bubble", &percent(summary.bubble), &[idle.to_owned()]))
                (number("Duration", &duration(summary.seconds), &[]))
            }
        }
    }

    /// A test score, with those of the averaged weights and of the best epoch.
    fn score(&self, metric: &Metric) -> Markup {
        let of = |scores: &TestScores| scores.get(&metric.name).unwrap_or(f64::NAN);
        let (value, format) = (of(&self.summary.test), metric.format);
        let best = metric.better.and_then(|better| {
            let (epoch, best) = best(self.epochs, of, better)?;
            let epoch = number::count(epoch as u64);
            let note = format!("best {} (epoch\u{a0}{epoch})", format(best));
            better.than(best, value).then_some(note)
        });
        let averaged = self.summary.averaged.as_ref();
        let averaged = averaged.map(|scores| format!("averaged weights {}", format(of(scores))));
        let notes: Vec<_> = averaged.into_iter().chain(best).collect();
        number(&format!("Test {}", metric.label), &format(value), &notes)
    }
}

/// The first epoch with the best finite score.
fn best(epochs: &[Epoch], of: impl Fn(&TestScores) -> f64, better: Better) -> Option<(usize, f64)> {
    let scores = (epochs.iter()).filter_map(|epoch| Some((epoch.epoch, of(epoch.test.as_ref()?))));
    let finite = scores.filter(|(_, score)| score.is_finite());
    finite.reduce(|best, next| {
        if better.than(next.1, best.1) {
            next
        } else {
            best
        }
    })
}

/// A whole number, unless it is small.
fn speed(samples_per_second: f64) -> String {
    if samples_per_second >= 10.0 {
        number::decimal(samples_per_second, 0)
    } else {
        number::short(samples_per_second)
    }
}

fn number(name: &str, value: &str, notes: &[String]) -> Markup {
    html! {
        div {
            dt { (name) }
            dd .value { (value) }
            @for note in notes { dd .more { (note) } }
        }
    }
}
