//! Shows how far a run is: bars on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal,
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

/// Shows a run.
pub struct Progress {
    look: Look,
    epochs: usize,
    batches: usize,
    began: Instant,
}

enum Look {
    Silent,
    Lines {
        last: Instant,
    },
    Bars {
        epochs: ProgressBar,
        batches: ProgressBar,
    },
}

impl Progress {
    /// Shows a run on standard error: bars if that is a terminal, else lines.
    #[must_use]
    pub fn new(epochs: usize, batches: usize) -> Self {
        let look = match std::io::stderr().is_terminal() {
            true => bars(epochs, batches),
            false => Look::Lines {
                last: Instant::now(),
            },
        };
        let began = Instant::now();
        Self {
            look,
            epochs,
            batches,
            began,
        }
    }

    /// Shows nothing.
    #[must_use]
    pub fn silent() -> Self {
        Self {
            look: Look::Silent,
            epochs: 0,
            batches: 0,
            began: Instant::now(),
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
        match &mut self.look {
            Look::Silent => {}
            Look::Lines { last } => {
                if last.elapsed() >= LINE_INTERVAL {
                    *last = Instant::now();
                    let left = self.left(epoch, batch);
                    eprintln!(
                        "epoch {epoch}, batch {batch}/{}: {text} · {left} left",
                        self.batches
                    );
                }
            }
            Look::Bars { batches, .. } => {
                batches.set_position(batch as u64);
                batches.set_message(text);
            }
        }
    }

    /// An epoch ended; `text` says how.
    pub fn epoch(&mut self, epoch: usize, text: &str) {
        let line = format!("epoch {epoch}/{}: {text}", self.epochs);
        match &mut self.look {
            Look::Silent => {}
            Look::Lines { last } => {
                *last = Instant::now();
                let left = self.left(epoch, self.batches);
                eprintln!("{line} · {left} left");
            }
            Look::Bars { epochs, batches } => {
                epochs.println(line);
                epochs.set_position(epoch as u64);
                batches.reset();
            }
        }
    }

    /// Something went wrong that does not end the run.
    pub fn warn(&self, text: &str) {
        match &self.look {
            Look::Silent => {}
            Look::Lines { .. } => eprintln!("warning: {text}"),
            Look::Bars { epochs, .. } => epochs.println(format!("warning: {text}")),
        }
    }

    /// The run ended.
    pub fn finish(self) {
        if let Look::Bars { epochs, batches } = self.look {
            batches.finish_and_clear();
            epochs.finish_and_clear();
        }
    }

    /// How long the rest will take, if it goes on like this.
    fn left(&self, epoch: usize, batch: usize) -> String {
        let done = ((epoch - 1) * self.batches + batch) as f64;
        let all = (self.epochs * self.batches) as f64;
        let seconds = self.began.elapsed().as_secs_f64() * (all - done) / done.max(1.0);
        format!("{:.0} s", seconds.max(0.0))
    }
}

fn bars(epochs: usize, batches: usize) -> Look {
    let both = MultiProgress::with_draw_target(ProgressDrawTarget::stderr());
    let bar = |length: usize, template: &str| {
        let bar = both.add(ProgressBar::new(length as u64));
        // A template that does not parse would be a mistake of ours: indicatif's own will do then.
        bar.set_style(
            ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
        );
        bar
    };
    let epochs = bar(
        epochs,
        "epochs  {bar:30.cyan/dim} {pos}/{len} · {elapsed} · {eta} left",
    );
    epochs.enable_steady_tick(Duration::from_millis(500));
    Look::Bars {
        epochs,
        batches: bar(
            batches,
            "batches {bar:30.green/dim} {pos}/{len} · {wide_msg}",
        ),
    }
}
