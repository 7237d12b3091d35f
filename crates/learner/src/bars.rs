//! Stovepipe's progress bars for burn-train.

use std::{collections::HashMap, io::Write};

use burn_train::{
    logger::{EvaluationProgressLogger, TrainingProgressLogger},
    metric::{MetricDefinition, MetricId, MetricName},
    renderer::{
        EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation,
        MetricsRendererTraining,
    },
};
use indicatif::ProgressDrawTarget;
use stovepipe_train::Progress;

/// A renderer for burn-train: a bar for epochs with the time left, a bar for the current split with its
/// metrics, and a line for each epoch. Without a terminal it only prints lines.
///
/// Metrics are those of the epoch so far, not of the last mini-batch.
///
/// ```
/// use burn_train::renderer::MetricsRenderer;
/// use stovepipe_learner::Bars;
///
/// // SupervisedTraining::new(…).renderer(Box::new(Bars::new()))
/// let renderer: Box<dyn MetricsRenderer> = Box::new(Bars::new());
/// # drop(renderer);
/// ```
#[derive(Debug)]
pub struct Bars {
    progress: Progress,
    names: HashMap<MetricId, MetricName>,
    state: LoopState,
}

/// The progress of training, or of evaluation, which has tests instead of epochs.
#[derive(Debug, Default)]
struct LoopState {
    name: String,
    unit: &'static str,
    is_over: bool,
    epochs: usize,
    /// The current one, from 1.
    epoch: usize,
    /// The current split, and the newest values of its metrics.
    split: String,
    newest: Vec<(MetricId, String)>,
    ended: Vec<String>,
}

impl Drop for Bars {
    fn drop(&mut self) {
        // burn-train calls `end`, unless it panics.
        if !self.state.is_over {
            self.progress.abandon();
        }
    }
}

impl Default for Bars {
    fn default() -> Self {
        Self::new()
    }
}

impl Bars {
    /// Writes to standard error: bars if it is a terminal, else lines.
    #[must_use]
    pub fn new() -> Self {
        Self::of(Progress::stderr())
    }

    /// Draws bars on a custom target.
    #[must_use]
    pub fn drawn(target: ProgressDrawTarget) -> Self {
        Self::of(Progress::drawn(target))
    }

    /// Writes lines: one for each epoch, and some in between. Errors are ignored.
    #[must_use]
    pub fn written(out: impl Write + Send + Sync + 'static) -> Self {
        Self::of(Progress::written(out))
    }

    fn of(progress: Progress) -> Self {
        Self {
            progress,
            names: HashMap::new(),
            state: LoopState::default(),
        }
    }

    fn begin(&mut self, name: &str, unit: &'static str, epochs: usize, epoch: usize) {
        self.state = LoopState {
            name: name.to_owned(),
            unit,
            epochs,
            epoch,
            ..LoopState::default()
        };
        self.progress.begin(unit, epochs);
    }

    fn begin_split(&mut self, name: &str, items: usize) {
        name.clone_into(&mut self.state.split);
        self.state.newest.clear();
        self.progress.part(name, items);
    }

    /// Keeps the newest value of each metric, in the order of their first values.
    fn update(&mut self, state: MetricState) {
        let (MetricState::Generic(entry) | MetricState::Numeric(entry, _)) = state;
        let name = self.names.get(&entry.metric_id);
        let name = name.map_or("metric", |name| name.as_str());
        let text = format!("{name} {}", of_epoch(&entry.serialized_entry.formatted));
        let newest = &mut self.state.newest;
        match newest.iter_mut().find(|(id, _)| *id == entry.metric_id) {
            Some((_, old)) => *old = text,
            None => newest.push((entry.metric_id, text)),
        }
    }

    fn at(&mut self, items: usize) {
        let text = self.state.metrics();
        self.progress.at(self.state.epoch, items, &text);
    }

    fn end_split(&mut self) {
        let text = format!("{} {}", self.state.split, self.state.metrics());
        self.state.ended.push(text);
    }

    fn end_epoch(&mut self) {
        let text = std::mem::take(&mut self.state.ended).join(" | ");
        self.progress.epoch(self.state.epoch, &text);
        self.state.epoch += 1;
    }

    /// Says after how many epochs the run ended, if not after all.
    fn end(&mut self) {
        self.progress.finish();
        self.state.is_over = true;
        let state = &self.state;
        if state.epoch <= state.epochs {
            let (over, ended) = (state.epoch - 1, state.ended.join(" | "));
            let then = if ended.is_empty() { "" } else { "; then: " };
            let (name, epochs, unit) = (&state.name, state.epochs, state.unit);
            let line = format!("{name} ended after {over} of {epochs} {unit}s{then}{ended}");
            self.progress.say(&line);
        }
    }
}

impl LoopState {
    fn metrics(&self) -> String {
        let texts = self.newest.iter().map(|(_, text)| text.as_str());
        texts.collect::<Vec<_>>().join(" · ")
    }
}

/// The value of the epoch in burn-train's `epoch 0.31 - batch 0.28`; any other text unchanged.
fn of_epoch(formatted: &str) -> &str {
    let epoch = formatted.strip_prefix("epoch ");
    let epoch = epoch.and_then(|text| text.split_once(" - batch "));
    epoch.map_or(formatted, |(epoch, _)| epoch.trim_end())
}

impl MetricsRenderer for Bars {
    /// Does nothing: the bars are gone when a run is over.
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}

impl MetricsRendererTraining for Bars {
    fn update_train(&mut self, state: MetricState) {
        self.update(state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update(state);
    }
}

impl MetricsRendererEvaluation for Bars {
    fn update_test(&mut self, _name: EvaluationName, state: MetricState) {
        self.update(state);
    }
}

impl TrainingProgressLogger for Bars {
    fn start(&mut self, epochs: usize, first: usize, _items: Option<usize>, label: Option<&str>) {
        self.begin(label.unwrap_or("training"), "epoch", epochs, first);
    }

    fn start_split(&mut self, split: &str, total_items: usize) {
        self.begin_split(split, total_items);
    }

    fn update_split(&mut self, items_processed: usize) {
        self.at(items_processed);
    }

    fn end_split(&mut self) {
        self.end_split();
    }

    fn update_epoch(&mut self, _epoch: usize) {
        self.end_epoch();
    }

    fn end(&mut self) {
        self.end();
    }

    fn log_event_training(&mut self, _event: String) {}
}

impl EvaluationProgressLogger for Bars {
    fn start_global_progress(&mut self, total_tests: usize) {
        self.begin("evaluation", "test", total_tests, 1);
    }

    fn start_test(&mut self, name: &str, total_items: usize) {
        self.begin_split(name, total_items);
    }

    fn update_test_progress(&mut self, items_processed: usize) {
        self.at(items_processed);
    }

    fn end_test(&mut self) {
        self.end_split();
        self.end_epoch();
    }

    fn end_global_progress(&mut self) {
        self.end();
    }

    fn log_event_evaluation(&mut self, _event: String) {}
}

#[cfg(test)]
mod tests {
    use super::of_epoch;

    #[test]
    fn the_value_of_the_epoch_is_shown() {
        let check = |formatted, expected| assert_eq!(of_epoch(formatted), expected);
        check("epoch 0.310 - batch 0.280", "0.310");
        check("epoch 83.20 % - batch 90.00 %", "83.20 %");
        check("12 / 64", "12 / 64");
        check("epoch", "epoch");
    }
}
