//! Shows how far a run is: bars on a terminal, plain lines elsewhere.

use std::{
    fmt,
    io::{IsTerminal, Write},
    time::{Duration, Instant},
};

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::scores::Metrics;

/// Between two plain lines within an epoch.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// What is known after a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport {
    /// Of the epoch so far, with label smoothing.
    pub metrics: Metrics,
    /// Samples a second, of the epoch so far.
    pub samples_per_second: f64,
    /// The worker that was busy the longest in this step.
    pub slowest_worker: usize,
    /// The share of this step in which workers were idle.
    pub bubble: f64,
}

/// Shows how many layers have been measured, on standard error: a bar if that is a terminal, else one
/// line. To be given to [`Profiler::on_progress`](stovepipe_pipeline::Profiler::on_progress).
pub fn show_layers(what: &str, layers: usize) -> impl Fn(usize) + Send + Sync + 'static {
    show_count(&format!("{what}: measuring"), "layers", layers)
}

/// Shows how many things have been done, on standard error: a bar with an estimate if that is a terminal,
/// else one line at the beginning.
pub fn show_count(doing: &str, things: &str, count: usize) -> impl Fn(usize) + Send + Sync + use<> {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(count as u64),
        false => {
            eprintln!("{doing} {count} {things}");
            ProgressBar::hidden()
        }
    };
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {pos}/{len}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    bar.set_message(format!("{doing} {things}"));
    move |done| {
        bar.set_position(done as u64);
        if done == count {
            bar.finish_and_clear();
        }
    }
}

/// Shows a run: epochs, and the part of an epoch that is under way.
#[derive(Debug)]
pub struct Progress {
    look: Look,
    /// What there are several of, and how many.
    epochs: (String, usize),
    /// What counts in the part that is under way, and how much of it there is.
    part: (String, usize),
    estimate: Estimate,
}

enum Look {
    Silent,
    Lines {
        last: Instant,
        out: Box<dyn Write + Send + Sync>,
    },
    Bars {
        both: MultiProgress,
        epochs: ProgressBar,
        part: ProgressBar,
    },
}

impl Progress {
    /// Shows a run of `epochs` with so many mini-batches each on standard error: bars if that is a terminal, else
    /// lines.
    #[must_use]
    pub fn new(epochs: usize, batches: usize) -> Self {
        let mut progress = Self::stderr();
        progress.begin("epoch", epochs);
        progress.part("batch", batches);
        progress
    }

    /// Bars on standard error if that is a terminal, else lines, for a run that has yet to [begin](Self::begin).
    #[must_use]
    pub fn stderr() -> Self {
        match std::io::stderr().is_terminal() {
            true => Self::drawn(ProgressDrawTarget::stderr()),
            false => Self::written(std::io::stderr()),
        }
    }

    /// Shows nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self::of(Look::Silent)
    }

    /// Bars on a target of one's own, for a run that has yet to [begin](Self::begin).
    #[must_use]
    pub fn drawn(target: ProgressDrawTarget) -> Self {
        Self::of(bars(target))
    }

    /// Lines for a run that has yet to [begin](Self::begin). What cannot be written is lost.
    ///
    /// ```
    /// use stovepipe_train::Progress;
    ///
    /// let mut progress = Progress::written(std::io::stdout());
    /// progress.begin("epoch", 2);
    /// progress.part("batch", 30);
    /// progress.at(1, 10, "loss 2.3"); // a line, if the last one is long ago
    /// progress.epoch(1, "loss 1.9"); // epoch 1/2: loss 1.9 · 3 s left
    /// progress.finish();
    /// ```
    #[must_use]
    pub fn written(out: impl Write + Send + Sync + 'static) -> Self {
        Self::of(Look::Lines {
            last: Instant::now(),
            out: Box::new(out),
        })
    }

    fn of(look: Look) -> Self {
        Self {
            look,
            epochs: (String::new(), 0),
            part: (String::new(), 0),
            estimate: Estimate::default(),
        }
    }

    /// A run of so many epochs begins, or of what takes their place: `name` says what that is.
    pub fn begin(&mut self, name: &str, epochs: usize) {
        self.epochs = (name.to_owned(), epochs);
        self.estimate = Estimate::default();
        match &mut self.look {
            Look::Silent => {}
            Look::Lines { last, .. } => *last = Instant::now(),
            Look::Bars { epochs: bar, .. } => {
                bar.reset();
                bar.set_length(epochs as u64);
                bar.set_prefix(name.to_owned());
                bar.set_message(self.estimate.to_string());
                bar.enable_steady_tick(Duration::from_millis(500));
            }
        }
    }

    /// A part of an epoch begins, such as training, or a test: `length` of `name`. The time left is estimated from the
    /// first part of an epoch.
    pub fn part(&mut self, name: &str, length: usize) {
        self.part = (name.to_owned(), length);
        if let Look::Bars { part, .. } = &self.look {
            part.reset();
            part.set_length(length as u64);
            part.set_prefix(name.to_owned());
            part.set_message("");
        }
    }

    /// A step was taken: batch `batch` of epoch `epoch`, both counted from 1.
    pub fn step(&mut self, epoch: usize, batch: usize, report: &StepReport) {
        let text = format!(
            "{} · {:.0} samples/s · slowest worker {} · bubble {:.0} %",
            report.metrics,
            report.samples_per_second,
            report.slowest_worker,
            100.0 * report.bubble
        );
        self.at(epoch, batch, &text);
    }

    /// So much of the part of epoch `epoch`, counted from 1, is `done`; `text` says how it goes.
    pub fn at(&mut self, epoch: usize, done: usize, text: &str) {
        let ((unit, epochs), (name, length)) = (&self.epochs, &self.part);
        let of_epoch = done as f64 / (*length).max(1) as f64;
        let behind = epoch.saturating_sub(1) as f64 + of_epoch;
        self.estimate.reach(behind / (*epochs).max(1) as f64);
        match &mut self.look {
            Look::Silent => {}
            Look::Lines { last, out } => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    let left = &self.estimate;
                    let _ = writeln!(
                        out,
                        "{unit} {epoch}, {name} {done}/{length}: {text} · {left} left"
                    );
                }
            }
            Look::Bars { epochs, part, .. } => {
                epochs.set_message(self.estimate.to_string());
                part.set_position(done as u64);
                part.set_message(text.to_owned());
            }
        }
    }

    /// An epoch ended; `text` says how.
    pub fn epoch(&mut self, epoch: usize, text: &str) {
        let (unit, epochs) = &self.epochs;
        let line = format!("{unit} {epoch}/{epochs}: {text}");
        self.estimate.reach(epoch as f64 / (*epochs).max(1) as f64);
        match &mut self.look {
            Look::Silent => {}
            Look::Lines { last, out } => {
                *last = Instant::now();
                let _ = writeln!(out, "{line} · {} left", self.estimate);
            }
            Look::Bars { epochs, part, .. } => {
                epochs.println(line);
                epochs.set_position(epoch as u64);
                part.reset();
            }
        }
    }

    /// Something went wrong that does not end the run.
    pub fn warn(&mut self, text: &str) {
        self.say(&format!("warning: {text}"));
    }

    /// A line of its own, which stays.
    pub fn say(&mut self, line: &str) {
        match &mut self.look {
            Look::Silent => {}
            Look::Lines { out, .. } => {
                let _ = writeln!(out, "{line}");
            }
            Look::Bars { epochs, .. } => epochs.println(line),
        }
    }

    /// The run ended. Another one may [begin](Self::begin).
    pub fn finish(&mut self) {
        if let Look::Bars { epochs, part, .. } = &self.look {
            part.finish_and_clear();
            epochs.finish_and_clear();
        }
    }

    /// The run broke off. What is drawn stays, and nothing more is: to clear it away would take lines of the message
    /// along that stands below it by now.
    pub fn abandon(&mut self) {
        if let Look::Bars { both, .. } = &self.look {
            both.set_draw_target(ProgressDrawTarget::hidden());
        }
    }
}

impl fmt::Debug for Look {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Silent => "Silent",
            Self::Lines { .. } => "Lines",
            Self::Bars { .. } => "Bars",
        })
    }
}

/// How long the rest of a run will take, if it goes on like this.
#[derive(Debug, Default)]
struct Estimate {
    /// When the first step was over, and the share of the run that was behind then: one that goes on from a
    /// checkpoint has not taken the time of what was before.
    first: Option<(Instant, f64)>,
    /// The share that is behind now.
    reached: f64,
}

impl Estimate {
    fn reach(&mut self, share: f64) {
        self.first.get_or_insert((Instant::now(), share));
        self.reached = self.reached.max(share);
    }
}

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = (1.0 - self.reached).max(0.0);
        match self.first {
            _ if left == 0.0 => f.write_str("0 s"),
            Some((began, first)) if self.reached > first => {
                let seconds = began.elapsed().as_secs_f64() * left / (self.reached - first);
                write!(f, "{seconds:.0} s")
            }
            _ => f.write_str("some time"),
        }
    }
}

fn bars(target: ProgressDrawTarget) -> Look {
    let both = MultiProgress::with_draw_target(target);
    let bar = |template: &str| {
        let bar = both.add(ProgressBar::new(0));
        // A template that does not parse would be a mistake of ours: indicatif's own will do then.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar
    };
    let (epochs, part) = (
        bar("{prefix:6} {bar:30.cyan/dim} {pos}/{len} · {elapsed} · {msg} left"),
        bar("{prefix:6} {bar:30.green/dim} {pos}/{len} · {wide_msg}"),
    );
    Look::Bars { both, epochs, part }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_counts_from_where_a_run_went_on() {
        let ago = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds));
        let check = |first: f64, reached: f64, expected: &str| {
            let first = ago(100).map(|began| (began, first));
            let estimate = Estimate { first, reached };
            assert_eq!(estimate.to_string(), expected);
        };
        check(0.0, 0.25, "300 s");
        check(0.5, 0.75, "100 s");
        check(0.5, 0.5, "some time");
        check(0.5, 1.0, "0 s");
        let mut estimate = Estimate::default();
        estimate.reach(0.5);
        estimate.reach(0.25); // a test after training: nothing is undone
        assert_eq!(estimate.reached, 0.5);
    }
}
