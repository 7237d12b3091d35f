//! The stages of the pipeline.

use std::ops::Range;

use maud::{Markup, html};

use super::{name, section, wide};
use crate::{
    number::{self, percent, things},
    run::{RunSummary, StageSummary},
};

/// Further names of layers are left out.
const MOST_NAMES: usize = 24;

pub(super) fn render(summary: Option<&RunSummary>) -> Markup {
    let Some(summary) = summary.filter(|summary| !summary.stages.is_empty()) else {
        return html! {};
    };
    let table = html! {
        table .stages {
            caption { (caption(summary)) }
            thead {
                tr {
                    th scope="col" { "stage" }
                    th scope="col" { "worker" }
                    th scope="col" { "device" }
                    th scope="col" .figure { "parameters" }
                    th scope="col" { "layers" }
                }
            }
            tbody { @for (index, layers, stage) in placed(&summary.stages) { (row(index, layers, stage, summary)) } }
        }
    };
    section("stages", "Stages", wide("Stages", table))
}

fn caption(summary: &RunSummary) -> String {
    let layers: usize = summary.stages.iter().map(|stage| stage.layers.len()).sum();
    format!(
        "{} in {}, {}",
        things(layers as u64, "layer", "layers"),
        things(summary.stages.len() as u64, "stage", "stages"),
        things(summary.parameters, "parameter", "parameters"),
    )
}

/// Each stage with its index and those of its layers.
fn placed(stages: &[StageSummary]) -> impl Iterator<Item = (usize, Range<usize>, &StageSummary)> {
    let stages = stages.iter().enumerate();
    stages.scan(0, |begin, (index, stage)| {
        let layers = *begin..*begin + stage.layers.len();
        *begin = layers.end;
        Some((index, layers, stage))
    })
}

fn row(index: usize, layers: Range<usize>, stage: &StageSummary, summary: &RunSummary) -> Markup {
    let share = stage.parameters as f64 / summary.parameters as f64;
    html! {
        tr {
            th scope="row" { (index) }
            td { (stage.worker) }
            td { (name(&stage.device)) }
            td .figure {
                (number::count(stage.parameters))
                @if share.is_finite() { " " span .share { (percent(share)) } }
            }
            td {
                span .range { (range(&layers)) }
                " " (names(&stage.layers))
            }
        }
    }
}

/// The first and the last index.
fn range(layers: &Range<usize>) -> String {
    match layers.len() {
        0 => "none".to_owned(),
        1 => layers.start.to_string(),
        _ => format!("{}–{}", layers.start, layers.end - 1),
    }
}

/// Names in order; consecutive equal names are counted.
fn names(layers: &[String]) -> String {
    let groups: Vec<_> = layers.chunk_by(|a, b| a == b).collect();
    let shown = groups.iter().take(MOST_NAMES).map(|same| match same.len() {
        1 => name(&same[0]),
        count => format!("{count} × {}", name(&same[0])),
    });
    let more = (groups.len() > MOST_NAMES).then(|| "…".to_owned());
    shown.chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_layers_are_counted() {
        let check = |layers: &[&str], expected: &str| {
            let layers: Vec<_> = layers.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(names(&layers), expected);
        };
        check(&[], "");
        check(&["Stem", "Cell"], "Stem, Cell");
        check(&["Embed", "Cell", "Cell", "Head"], "Embed, 2 × Cell, Head");
        check(&["A", "B"].repeat(13), &("A, B, ".repeat(12) + "…"));
    }
}
