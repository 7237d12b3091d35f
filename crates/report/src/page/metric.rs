//! How metrics are shown.

use std::collections::BTreeSet;

use crate::{
    chart::ValueScale,
    number::{decimal, percent},
    run::TestScores,
};

/// How a metric is shown. Metrics that are not known here have four decimals.
pub(super) struct Metric {
    /// Its name in files.
    pub name: String,
    pub label: String,
    pub unit: Option<&'static str>,
    pub format: fn(f64) -> String,
    pub scale: ValueScale,
    /// `None` if neither higher nor lower values are known to be better.
    pub better: Option<Better>,
}

#[derive(Clone, Copy)]
pub(super) enum Better {
    Lower,
    Higher,
}

impl Better {
    /// Whether a score is better than another, which may be NaN.
    pub fn than(self, score: f64, other: f64) -> bool {
        other.is_nan()
            || match self {
                Self::Lower => score < other,
                Self::Higher => score > other,
            }
    }
}

impl Metric {
    pub fn named(name: &str) -> Self {
        let mut metric = Self {
            name: name.to_owned(),
            label: name.replace('_', " "),
            unit: None,
            format: |value| decimal(value, 4),
            scale: ValueScale::Wide,
            better: None,
        };
        match name {
            "accuracy" | "top5" => {
                metric.format = percent;
                metric.scale = ValueScale::Shares;
                metric.better = Some(Better::Higher);
            }
            "perplexity" => {
                metric.unit = Some("per token");
                metric.format = |value| decimal(value, 2);
                metric.better = Some(Better::Lower);
            }
            "loss" => metric.better = Some(Better::Lower),
            _ => {}
        }
        if name == "top5" {
            metric.label = "top-5 accuracy".to_owned();
        }
        metric
    }
}

/// The metrics in test scores, without the loss: perplexity first, top-5 accuracy last, but only
/// without perplexity.
pub(super) fn metrics<'a>(scores: impl Iterator<Item = &'a TestScores>) -> Vec<Metric> {
    let names: BTreeSet<&String> = scores.flat_map(|scores| scores.metrics.keys()).collect();
    let mut names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    names.sort_by_key(|&name| (name == "top5", name != "perplexity"));
    let has_perplexity = names.contains(&"perplexity");
    names.retain(|&name| name != "top5" || !has_perplexity);
    names.into_iter().map(Metric::named).collect()
}
