//! Numbers that say how good a model is, by name.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

use super::totals::Totals;

/// The name of the loss among metrics.
const LOSS: &str = "loss";

/// A number that says how good a model is: its name, how it is computed, and how it is shown.
///
/// ```
/// use stovepipe_train::{Metric, Totals};
///
/// let accuracy = Metric::percent("accuracy", |totals: &Totals| totals.mean("right")).primary();
/// let error = Metric::number("error", |totals| totals.score("error")).lower_is_better();
/// ```
#[derive(Clone)]
#[must_use]
pub struct Metric {
    pub(super) about: About,
    value: Arc<dyn Fn(&Totals) -> f64 + Send + Sync>,
}

/// What a metric's name means: all but its computation.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct About {
    pub(super) name: String,
    label: String,
    decimals: usize,
    is_percent: bool,
    is_lower_better: bool,
    pub(super) is_primary: bool,
    is_test_only: bool,
    is_hidden: bool,
}

impl Metric {
    /// A share from 0 to 1, which is shown in percent.
    pub fn percent(
        name: impl Into<String>,
        value: impl Fn(&Totals) -> f64 + Send + Sync + 'static,
    ) -> Self {
        let mut metric = Self::number(name, value).with_decimals(1);
        metric.about.is_percent = true;
        metric
    }

    /// A number, which is shown with four decimals.
    pub fn number(
        name: impl Into<String>,
        value: impl Fn(&Totals) -> f64 + Send + Sync + 'static,
    ) -> Self {
        let (about, value) = (About::named(name.into()), Arc::new(value));
        Self { about, value }
    }

    /// Shows the metric as `label`; by default as its name, with spaces for `_`.
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.about.label = label.into();
        self
    }

    /// Shows this many decimals.
    pub fn with_decimals(mut self, decimals: usize) -> Self {
        self.about.decimals = decimals;
        self
    }

    /// Says that a lower value is better. By default a higher one is.
    pub fn lower_is_better(mut self) -> Self {
        self.about.is_lower_better = true;
        self
    }

    /// Makes this the metric that decides which checkpoints are best. It is shown first. Without a
    /// primary metric, the loss decides.
    pub fn primary(mut self) -> Self {
        self.about.is_primary = true;
        self
    }

    /// Reports the metric of the test set only, at the end of an epoch.
    pub fn test_only(mut self) -> Self {
        self.about.is_test_only = true;
        self
    }

    /// Writes the metric to files only.
    pub fn hidden(mut self) -> Self {
        self.about.is_hidden = true;
        self
    }
}

impl fmt::Debug for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.about.fmt(f)
    }
}

impl About {
    fn named(name: String) -> Self {
        Self {
            label: name.replace('_', " "),
            name,
            decimals: 4,
            ..Self::default()
        }
    }

    /// Sorts metrics: the better the model, the higher. `None` if they lack this one.
    fn quality(&self, metrics: &Metrics) -> Option<f64> {
        let value = metrics.get(&self.name)?;
        Some(if self.is_lower_better { -value } else { value })
    }
}

/// The values of a task's metrics. They serialize as `{"loss": …, NAME: …}`.
#[derive(Clone, Debug, PartialEq)]
pub struct Metrics {
    /// Mean loss.
    pub loss: f64,
    values: Vec<(About, f64)>,
}

impl Metrics {
    pub(super) fn of(totals: &Totals, metrics: &[Metric]) -> Self {
        let value = |metric: &Metric| (metric.about.clone(), (metric.value)(totals));
        let (loss, values) = (totals.mean_loss(), metrics.iter().map(value).collect());
        Self { loss, values }
    }

    /// A value by the metric's name, or `loss`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        let mut values = self.iter();
        values.find(|(own, _)| *own == name).map(|(_, value)| value)
    }

    /// All names and values, the loss first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        let others = self.values.iter();
        let others = others.map(|(about, value)| (about.name.as_str(), *value));
        std::iter::once((LOSS, self.loss)).chain(others)
    }

    /// What is higher for a better model: the primary metric, then less loss. `None` if the primary
    /// metric is missing, or the loss NaN or infinite.
    pub(crate) fn quality(&self, primary: Option<&About>) -> Option<(f64, f64)> {
        if !self.loss.is_finite() {
            return None;
        }
        let less_loss = -self.loss;
        let quality = primary.map_or(Some(less_loss), |primary| primary.quality(self))?;
        Some((quality, less_loss))
    }
}

impl fmt::Display for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{LOSS} {:.4}", self.loss)?;
        let (primary, others): (Vec<_>, Vec<_>) =
            (self.values.iter()).partition(|(about, _)| about.is_primary);
        let all = primary.into_iter().chain(others);
        for (about, value) in all.filter(|(about, _)| !about.is_hidden) {
            let (label, decimals) = (&about.label, about.decimals);
            let (scale, unit) = if about.is_percent {
                (100.0, " %")
            } else {
                (1.0, "")
            };
            write!(f, ", {label} {:.decimals$}{unit}", scale * value)?;
        }
        Ok(())
    }
}

impl Serialize for Metrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

/// Reads names and values. How they are shown is not in files.
impl<'de> Deserialize<'de> for Metrics {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // JSON has no NaN: it is written as null.
        let values = BTreeMap::<String, Option<f64>>::deserialize(deserializer)?;
        let values = values.into_iter();
        let values = values.map(|(name, value)| (name, value.unwrap_or(f64::NAN)));
        let mut values: BTreeMap<_, _> = values.collect();
        let loss = values
            .remove(LOSS)
            .ok_or_else(|| D::Error::missing_field(LOSS))?;
        let values = values.into_iter();
        let values = values
            .map(|(name, value)| (About::named(name), value))
            .collect();
        Ok(Self { loss, values })
    }
}

/// The metrics of an epoch's training samples, without those of the test set only. They serialize as
/// `{"train_loss": …, "train_NAME": …}`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TrainingMetrics(Metrics);

impl TrainingMetrics {
    pub(crate) fn of(mut metrics: Metrics) -> Self {
        metrics.values.retain(|(about, _)| !about.is_test_only);
        Self(metrics)
    }
}

impl fmt::Display for TrainingMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "train {}", self.0)
    }
}

impl Serialize for TrainingMetrics {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.0.iter();
        serializer.collect_map(values.map(|(name, value)| (format!("train_{name}"), value)))
    }
}
