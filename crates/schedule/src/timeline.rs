//! What each worker did when.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{Action, Pass};

/// What a worker was doing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SpanKind {
    /// A forward pass.
    Forward,
    /// The forward pass again, for activations that were dropped to save memory.
    Recompute,
    /// A backward pass, without the recomputation before it.
    Backward,
    /// The half of a backward pass that computes the gradient of the input.
    InputGradient,
    /// The half of a backward pass that computes the gradients of the weights.
    WeightGradient,
    /// Replicas add up gradients of a stage, while passes go on.
    AllReduce,
    /// The optimizer's step, after the last backward pass or after each.
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
    /// All kinds, in the order of a step.
    pub const ALL: [Self; 7] = [
        Self::Forward,
        Self::Recompute,
        Self::Backward,
        Self::InputGradient,
        Self::WeightGradient,
        Self::AllReduce,
        Self::Update,
    ];

    /// The letter of the [`Pass`], `R` for a recomputation, or `A` for an all-reduce; the name; the class in style sheets; the
    /// background in terminals; the closest colour of `chrome://tracing`.
    pub(crate) const fn look(self) -> (char, &'static str, &'static str, u8, &'static str) {
        match self {
            Self::Forward => ('F', "forward", "forward", 44, "thread_state_runnable"),
            Self::Recompute => (
                'R',
                "recompute",
                "recompute",
                45,
                "thread_state_uninterruptible",
            ),
            Self::Backward => ('B', "backward", "backward", 43, "thread_state_iowait"),
            Self::InputGradient => ('I', "input gradient", "input", 41, "cq_build_failed"),
            Self::WeightGradient => ('W', "weight gradient", "weight", 42, "thread_state_running"),
            Self::AllReduce => ('A', "all-reduce", "reduce", 47, "yellow"),
            Self::Update => ('U', "update", "update", 46, "generic_work"),
        }
    }
}

impl fmt::Display for SpanKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.look().1)
    }
}

/// A period in which a worker did one thing.
///
/// A backward action with recomputation is two spans: a [`SpanKind::Recompute`], then a
/// [`SpanKind::Backward`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Span {
    /// The action. None for an all-reduce, and for an update at the end of a step.
    pub action: Option<Action>,
    /// What the worker did.
    pub kind: SpanKind,
    /// When it began, from the start of the step.
    pub start: Duration,
    /// When it ended, from the start of the step.
    pub end: Duration,
    /// The version of the weights that a pass used, or that an update made, under asynchronous schedules.
    // The last field: processes send spans without names, and one that is skipped would move the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<usize>,
}

impl Span {
    /// How long it took. Zero if it ends before it starts.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.end.saturating_sub(self.start)
    }
}

/// What each worker did when, measured or simulated.
///
/// On a GPU, a worker only launches work, which runs later. Burn has no events or time stamps of a
/// device, so measured spans are then [in host time](Self::host_time): they show what keeps the worker
/// from launching, not what the GPU is busy with.
///
/// All-reduces, and updates at the end of a step, do not count in [`busy`](Self::busy),
/// [`bubble`](Self::bubble) and [`slowest_worker`](Self::slowest_worker): these are about passes.
///
/// ```
/// use std::time::Duration;
/// use stovepipe_schedule::{Costs, Schedule, Timeline};
///
/// let schedule: Schedule = "0F0\n1F0 2F0".parse()?;
/// let timeline = schedule.simulate(&Costs::uniform(3, 1.0, 1.0, 1.0))?.timeline();
/// let last = timeline.workers[1][1];
/// assert_eq!([last.start, last.length()], [Duration::from_secs(2), Duration::from_secs(1)]);
/// assert_eq!(timeline.length(), Duration::from_secs(3));
/// assert_eq!(timeline.busy(1), Duration::from_secs(2));
/// assert_eq!((timeline.bubble(), timeline.slowest_worker()), (0.5, Some(1)));
///
/// assert!(timeline.to_svg(&["stage 0 · gpu".into()]).contains("stage 0 · gpu"));
/// let trace = timeline.to_chrome_trace(&[]);
/// let events = trace["traceEvents"].as_array().unwrap();
/// assert_eq!(events.last().unwrap()["dur"], 1_000_000.0); // microseconds
///
/// let (nothing, mut file) = (Timeline::default(), Vec::new());
/// assert_eq!((nothing.length(), nothing.bubble()), (Duration::ZERO, 0.0));
/// nothing.write_chrome_trace(&[], &mut file)?;
/// assert_eq!(file, br#"{"displayTimeUnit":"ms","traceEvents":[]}"#);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Timeline {
    /// The spans of each worker, in order of their start. Only all-reduces overlap others.
    pub workers: Vec<Vec<Span>>,
    /// Whether a device is a GPU: spans are the time in which work was launched, not done.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_time: bool,
}

impl From<Vec<Vec<Span>>> for Timeline {
    /// The spans of each worker.
    fn from(workers: Vec<Vec<Span>>) -> Self {
        let host_time = false;
        Self { workers, host_time }
    }
}

impl Timeline {
    /// The latest end of all spans, including all-reduces and updates.
    #[must_use]
    pub fn length(&self) -> Duration {
        let ends = self.workers.iter().flatten().map(|span| span.end);
        ends.max().unwrap_or_default()
    }

    /// How long the passes of a worker took.
    ///
    /// # Panics
    ///
    /// If there is no such worker.
    #[must_use]
    pub fn busy(&self, worker: usize) -> Duration {
        let lengths = passes(&self.workers[worker]).map(Span::length);
        lengths.fold(Duration::ZERO, Duration::saturating_add)
    }

    /// The idle share of the time from the first start of any pass to the last end of any, from 0 to 1.
    ///
    /// For `p` equal stages and `m` micro-batches, [`GPipe`](crate::GPipe) and
    /// [`OneForwardOneBackward`](crate::OneForwardOneBackward) have a bubble of
    /// `(p − 1) / (m + p − 1)`. An empty timeline has none.
    #[must_use]
    pub fn bubble(&self) -> f64 {
        let busy = (0..self.workers.len()).map(|worker| self.busy(worker).as_secs_f64());
        let busy: f64 = busy.sum();
        let (start, end) = self.extent();
        let available = self.workers.len() as f64 * (end - start).as_secs_f64();
        if available == 0.0 {
            return 0.0;
        }
        // Measured spans may overlap: the result must not be negative.
        (1.0 - busy / available).max(0.0)
    }

    /// The worker that was busy longest, the first one if several were. None if no worker was busy.
    ///
    /// The others wait for it: move a layer away from it.
    #[must_use]
    pub fn slowest_worker(&self) -> Option<usize> {
        (0..self.workers.len())
            .filter(|&worker| !self.busy(worker).is_zero())
            .rev() // of equals, `max_by_key` takes the last
            .max_by_key(|&worker| self.busy(worker))
    }

    pub(crate) fn kinds(&self) -> impl Iterator<Item = SpanKind> {
        let occurs = |kind: &SpanKind| self.workers.iter().flatten().any(|s| s.kind == *kind);
        SpanKind::ALL.into_iter().filter(occurs)
    }

    /// The first start and the last end of a pass.
    pub(crate) fn extent(&self) -> (Duration, Duration) {
        // Spans are in order of time: no need to look at millions of them for each row.
        let workers = || self.workers.iter();
        let starts = workers().filter_map(|spans| passes(spans).next());
        let start = starts.map(|span| span.start).min().unwrap_or_default();
        let ends = workers().filter_map(|spans| passes(spans).next_back());
        let end = ends.map(|span| span.end).max().unwrap_or_default();
        (start, end.max(start))
    }
}

/// All but all-reduces, and updates at the end of a step.
fn passes(spans: &[Span]) -> impl DoubleEndedIterator<Item = &Span> {
    let is_pass = |span: &&Span| match span.kind {
        SpanKind::AllReduce => false,
        SpanKind::Update => span.action.is_some(),
        _ => true,
    };
    spans.iter().filter(is_pass)
}

/// The name of a worker's row in a picture or trace.
pub(crate) fn label(labels: &[String], worker: usize) -> String {
    let given = labels.get(worker).cloned();
    given.unwrap_or_else(|| format!("worker {worker}"))
}
