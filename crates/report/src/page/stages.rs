//! What each stage held.

use std::ops::Range;

use maud::{Markup, html};

use super::{name, section, wide};
use crate::{
    number::{self, percent, things},
    run::{Stage, Summary},
};

/// More names of layers are not told.
const MOST_NAMES: usize = 24;

pub(super) fn of(summary: Option<&Summary>) -> Markup {
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

fn caption(summary: &Summary) -> String {
    let layers: usize = summary.stages.iter().map(|stage| stage.layers.len()).sum();
    format!(
        "{} in {}, {}",
        things(layers as u64, "layer", "layers"),
        things(summary.stages.len() as u64, "stage", "stages"),
        things(summary.parameters, "parameter", "parameters"),
    )
}

/// Each stage with its number and those of its layers.
fn placed(stages: &[Stage]) -> impl Iterator<Item = (usize, Range<usize>, &Stage)> {
    let stages = stages.iter().enumerate();
    stages.scan(0, |begin, (index, stage)| {
        let layers = *begin..*begin + stage.layers.len();
        *begin = layers.end;
        Some((index, layers, stage))
    })
}

fn row(index: usize, layers: Range<usize>, stage: &Stage, summary: &Summary) -> Markup {
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

/// The first and the last number.
fn range(layers: &Range<usize>) -> String {
    match layers.len() {
        0 => "none".to_owned(),
        1 => layers.start.to_string(),
        _ => format!("{}–{}", layers.start, layers.end - 1),
    }
}

/// Names in order; those that follow each other and are the same are counted.
fn names(layers: &[String]) -> String {
    let alike: Vec<_> = layers.chunk_by(|a, b| a == b).collect();
    let told = alike.iter().take(MOST_NAMES).map(|same| match same.len() {
        1 => name(&same[0]),
        count => format!("{count} × {}", name(&same[0])),
    });
    let more = (alike.len() > MOST_NAMES).then(|| "…".to_owned());
    told.chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_that_are_the_same_are_counted() {
        let check = |layers: &[&str], expected: &str| {
            let layers: Vec<_> = layers.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(names(&layers), expected);
        };
        check(&[], "");
        check(&["Stem", "Cell"], "Stem, Cell");
        check(
            &["Embed", "Block", "Block", "Head"],
            "Embed, 2 × Block, Head",
        );
        check(&["A", "B"].repeat(13), &("A, B, ".repeat(12) + "…"));
    }
}
