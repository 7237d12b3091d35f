//! What happened when.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Action, Pass};

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

    /// As in the text of an [`Action`]; a recomputation, which is part of one, is an `R`.
    pub(crate) const fn letter(self) -> char {
        match self {
            Self::Forward => Pass::Forward.letter(),
            Self::Recompute => 'R',
            Self::Backward => Pass::Backward.letter(),
            Self::InputGradient => Pass::InputGradient.letter(),
            Self::WeightGradient => Pass::WeightGradient.letter(),
            Self::Update => Pass::Update.letter(),
        }
    }
}

impl fmt::Display for SpanKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
            Self::InputGradient => "input gradient",
            Self::WeightGradient => "weight gradient",
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
    /// The action it belongs to. An update at the end of a step belongs to none.
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
/// The bubble is a property of the passes, so updates at the end of a step, which belong to no action,
/// count neither as work nor as time in [`busy`](Self::busy), [`bubble`](Self::bubble) and
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
    /// The spans of each worker, in the order of time; they do not overlap.
    pub workers: Vec<Vec<Span>>,
}

impl Timeline {
    /// The latest end of all spans, updates among them.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::{Costs, Schedule, Timeline};
    /// let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    /// let timeline = Schedule::inference(2, 3)?.simulate(&costs)?.timeline();
    /// assert_eq!(timeline.length(), Duration::from_secs(4));
    /// assert_eq!(Timeline::default().length(), Duration::ZERO);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn length(&self) -> Duration {
        let last = self.workers.iter().filter_map(|spans| spans.last());
        last.map(|span| span.end).max().unwrap_or_default()
    }

    /// How long a worker was busy with passes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use stovepipe_schedule::{Costs, Schedule};
    /// let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    /// let timeline = Schedule::inference(2, 3)?.simulate(&costs)?.timeline();
    /// assert_eq!(timeline.busy(1), Duration::from_secs(3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such worker.
    #[must_use]
    pub fn busy(&self, worker: usize) -> Duration {
        let lengths = passes(&self.workers[worker]).map(Span::length);
        lengths.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The share of time in which workers waited, from 0 to 1.
    ///
    /// The time is that from the first start to the last end of a pass, for each worker. With no
    /// time there is no bubble. For `p` equal stages and `m` micro-batches both
    /// [`GPipe`](crate::GPipe) and [`OneForwardOneBackward`](crate::OneForwardOneBackward) have a
    /// bubble of `(p − 1) / (m + p − 1)`.
    ///
    /// ```
    /// # use stovepipe_schedule::{Costs, Schedule, Timeline};
    /// let costs = Costs::uniform(2, 1.0, 1.0, 1.0);
    /// assert_eq!(Schedule::inference(2, 3)?.simulate(&costs)?.timeline().bubble(), 0.25);
    /// assert_eq!(Timeline::default().bubble(), 0.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let busy: f64 = (0..self.workers.len())
            .map(|worker| self.busy(worker).as_secs_f64())
            .sum();
        let (start, end) = self.extent();
        let available = self.workers.len() as f64 * (end - start).as_secs_f64();
        if available == 0.0 {
            return 0.0;
        }
        // Spans that overlap, against the rule, must not make it negative.
        (1.0 - busy / available).max(0.0)
    }

    /// The worker that was busy longest, the first one if several were; none if nobody was busy.
    ///
    /// The others wait for it, so this is the one to relieve of a layer.
    ///
    /// ```
    /// # use stovepipe_schedule::{Costs, Schedule};
    /// let schedule: Schedule = "0F0\n1F0 2F0".parse()?;
    /// let timeline = schedule.simulate(&Costs::uniform(3, 1.0, 1.0, 1.0))?.timeline();
    /// assert_eq!(timeline.slowest_worker(), Some(1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn slowest_worker(&self) -> Option<usize> {
        (0..self.workers.len())
            .filter(|&worker| !self.busy(worker).is_zero())
            .rev() // of equals, `max_by_key` takes the last
            .max_by_key(|&worker| self.busy(worker))
    }

    /// The first start and the last end of a pass.
    pub(crate) fn extent(&self) -> (Duration, Duration) {
        // In the order of time, so that pictures need not look at millions of spans for each row.
        let workers = || self.workers.iter();
        let starts = workers().filter_map(|spans| passes(spans).next());
        let start = starts.map(|span| span.start).min().unwrap_or_default();
        let ends = workers().filter_map(|spans| passes(spans).next_back());
        let end = ends.map(|span| span.end).max().unwrap_or_default();
        (start, end.max(start))
    }
}

/// All but updates at the end of a step.
fn passes(spans: &[Span]) -> impl DoubleEndedIterator<Item = &Span> {
    let at_end = |span: &Span| span.kind == SpanKind::Update && span.action.is_none();
    spans.iter().filter(move |span| !at_end(span))
}

/// The name of a worker's row in a picture or trace.
pub(crate) fn label(labels: &[String], worker: usize) -> String {
    let given = labels.get(worker).cloned();
    given.unwrap_or_else(|| format!("worker {worker}"))
}
