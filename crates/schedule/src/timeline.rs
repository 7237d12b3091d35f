//! What happened when.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Action, Pass, chrome_trace, svg};

/// What a worker was busy with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SpanKind {
    /// A forward pass.
    Forward,
    /// The forward pass once more, for activations that were dropped to save memory.
    Recompute,
    /// A backward pass, without the recomputation before it.
    Backward,
    /// The half of a backward pass that finds the gradient of the input.
    InputGradient,
    /// The half of a backward pass that finds the gradients of the weights.
    WeightGradient,
    /// The optimizer's step: after the last backward pass, or after each.
    Update,
}

impl From<Pass> for SpanKind {
    fn from(pass: Pass) -> Self {
        match pass {
            Pass::Forward => Self::Forward,
            Pass::Backward => Self::Backward,
            Pass::InputGradient => Self::InputGradient,
            Pass::WeightGradient => Self::WeightGradient,
            Pass::Update => Self::Update,
        }
    }
}

impl SpanKind {
    /// All kinds, in the order in which a step meets them.
    pub const ALL: [Self; 6] = [
        Self::Forward,
        Self::Recompute,
        Self::Backward,
        Self::InputGradient,
        Self::WeightGradient,
        Self::Update,
    ];
}

impl fmt::Display for SpanKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
            Self::InputGradient => "input",
            Self::WeightGradient => "weight",
            Self::Update => "update",
        })
    }
}

/// A stretch of time in which a worker was busy with one thing.
///
/// A backward action that recomputes its activations is two spans with the same action: a
/// [`SpanKind::Recompute`] followed by a [`SpanKind::Backward`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The action it belongs to; an update belongs to none.
    pub action: Option<Action>,
    /// What the worker was busy with.
    pub kind: SpanKind,
    /// When it began, counted from the beginning of the step.
    pub start: Duration,
    /// When it ended, counted from the beginning of the step.
    pub end: Duration,
}

impl Span {
    /// How long it took; zero if it ends before it starts.
    ///
    /// ```
    /// use std::time::Duration;
    /// use stovepipe_schedule::{Action, Span, SpanKind};
    ///
    /// let span = Span {
    ///     action: Some(Action::forward(0, 0)),
    ///     kind: SpanKind::Forward,
    ///     start: Duration::from_millis(2),
    ///     end: Duration::from_millis(5),
    /// };
    /// assert_eq!(span.length(), Duration::from_millis(3));
    /// ```
    #[must_use]
    pub fn length(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// What each worker did when, measured in a real step or simulated.
///
/// The bubble is a property of the forward and backward passes, so updates count neither as work
/// nor as time in [`busy`](Self::busy), [`bubble`](Self::bubble) and
/// [`slowest_worker`](Self::slowest_worker).
///
/// ```
/// use std::time::Duration;
/// use stovepipe_schedule::{Costs, Schedule};
///
/// let schedule: Schedule = "0F0 0B0\n1F0 1B0".parse()?;
/// let timeline = schedule.simulate(&Costs::uniform(2, 1.0, 1.0, 1.0))?.timeline();
/// assert_eq!(timeline.workers[1][0].start, Duration::from_secs(1));
/// assert_eq!(timeline.bubble(), 0.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The spans of each worker, which do not overlap.
    pub workers: Vec<Vec<Span>>,
}

impl Timeline {
    /// The latest end of all spans, updates among them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::{Schedule, Timeline};
    /// let second = Duration::from_secs(1);
    /// assert_eq!(Schedule::inference(2, 3)?.simulate(&Costs::uniform(2, 1.0, 1.0, 1.0))?.timeline().length(), 4 * second);
    /// assert_eq!(Timeline::default().length(), Duration::ZERO);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn length(&self) -> Duration {
        let ends = self.workers.iter().flatten().map(|span| span.end);
        ends.max().unwrap_or_default()
    }

    /// How long a worker was busy with passes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::Schedule;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(Schedule::inference(2, 3)?.simulate(&Costs::uniform(2, 1.0, 1.0, 1.0))?.timeline().busy(1), 3 * second);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such worker.
    #[must_use]
    pub fn busy(&self, worker: usize) -> Duration {
        passes(&self.workers[worker]).map(Span::length).sum()
    }

    /// The share of time in which workers waited, from 0 to 1.
    ///
    /// The time is that from the first start to the last end of a pass, for each worker. With no
    /// time there is no bubble. For `p` equal stages and `m` micro-batches both
    /// [`GPipe`](crate::GPipe) and [`OneForwardOneBackward`](crate::OneForwardOneBackward) have a
    /// bubble of `(p − 1) / (m + p − 1)`.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::{Schedule, Timeline};
    /// let second = Duration::from_secs(1);
    /// assert_eq!(Schedule::inference(2, 3)?.simulate(&Costs::uniform(2, 1.0, 1.0, 1.0))?.timeline().bubble(), 0.25);
    /// assert_eq!(Timeline::default().bubble(), 0.0);
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let busy: Duration = (0..self.workers.len())
            .map(|worker| self.busy(worker))
            .sum();
        let (start, end) = self.extent();
        let available = self.workers.len() as f64 * (end - start).as_secs_f64();
        if available == 0.0 {
            return 0.0;
        }
        // Spans that overlap, against the rule, must not make it negative.
        (1.0 - busy.as_secs_f64() / available).max(0.0)
    }

    /// The worker that was busy longest, the first one if several were; none if nobody was busy.
    ///
    /// The others wait for it, so this is the one to relieve of a layer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::Schedule;
    /// let schedule: Schedule = "0F0\n1F0 2F0".parse()?;
    /// let second = Duration::from_secs(1);
    /// assert_eq!(schedule.simulate(&Costs::uniform(3, 1.0, 1.0, 1.0))?.timeline().slowest_worker(), Some(1));
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn slowest_worker(&self) -> Option<usize> {
        (0..self.workers.len())
            .filter(|&worker| !self.busy(worker).is_zero())
            .rev() // of equals, `max_by_key` takes the last
            .max_by_key(|&worker| self.busy(worker))
    }

    /// A picture: a row for each worker, a box for each span, and the bubble hatched.
    ///
    /// `labels` name the workers; where one is missing, the row is called `worker 2` and so on.
    /// The picture is a whole SVG file that adapts to a light or dark surrounding.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::Schedule;
    /// let second = Duration::from_secs(1);
    /// let timeline = Schedule::inference(2, 3)?.simulate(&Costs::uniform(2, 1.0, 1.0, 1.0))?.timeline();
    /// let svg = timeline.to_svg(&["stage 0 · cpu".into(), "stage 1 · gpu".into()]);
    /// assert!(svg.contains("stage 1 · gpu"));
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn to_svg(&self, labels: &[String]) -> String {
        svg::draw(self, labels)
    }

    /// The timeline in the Trace Event Format, a JSON file that Perfetto and `chrome://tracing`
    /// open.
    ///
    /// `labels` name the workers as in [`to_svg`](Self::to_svg).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::Schedule;
    /// let second = Duration::from_secs(1);
    /// let timeline = Schedule::inference(1, 1)?.simulate(&Costs::uniform(1, 1.0, 1.0, 1.0))?.timeline();
    /// let trace = timeline.to_chrome_trace(&[]);
    /// let events = trace["traceEvents"].as_array().unwrap();
    /// assert_eq!(events.last().unwrap()["dur"], 1_000_000.0); // microseconds
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    #[must_use]
    pub fn to_chrome_trace(&self, labels: &[String]) -> serde_json::Value {
        chrome_trace::trace(self, labels)
    }

    /// The first start and the last end of a pass.
    pub(crate) fn extent(&self) -> (Duration, Duration) {
        let spans = || self.workers.iter().flat_map(|spans| passes(spans));
        let start = spans().map(|span| span.start).min().unwrap_or_default();
        let end = spans().map(|span| span.end).max().unwrap_or_default();
        (start, end.max(start))
    }
}

fn passes(spans: &[Span]) -> impl Iterator<Item = &Span> {
    spans.iter().filter(|span| span.kind != SpanKind::Update)
}

/// The name of a worker's row in a picture or trace.
pub(crate) fn label(labels: &[String], worker: usize) -> String {
    let given = labels.get(worker).cloned();
    given.unwrap_or_else(|| format!("worker {worker}"))
}
