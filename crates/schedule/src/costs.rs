//! What the passes of a pipeline take and keep.

use thiserror::Error;

use crate::Recompute;

/// What the passes of a pipeline take and keep: all that a [simulation](crate::Schedule::simulate) has
/// to know.
#[derive(Clone, PartialEq, Debug)]
pub struct Costs {
    /// Of each stage.
    pub stages: Vec<StageCosts>,
    /// Between each stage and the next: one less than there are stages, or a single one for all.
    pub links: Vec<Link>,
    /// Which forward passes are run a second time.
    pub recompute: Recompute,
}

/// What a stage takes and keeps for a micro-batch.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageCosts {
    /// Seconds of a forward pass that keeps its activations.
    pub forward: f64,
    /// Seconds of a forward pass that keeps its input alone, to be run again.
    pub quiet: f64,
    /// Seconds of the half of a backward pass that finds the gradient of the input.
    pub input: f64,
    /// Seconds of the half that finds the gradients of the weights.
    pub weight: f64,
    /// Seconds of an update of the weights: after each micro-batch if the schedule is asynchronous,
    /// else once at the end, with whatever replicas have to tell each other.
    pub update: f64,
    /// Bytes sent to the next stage; as many come back as gradients.
    pub output: f64,
    /// What it keeps in memory.
    pub memory: StageMemory,
}

/// Bytes that a stage keeps.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageMemory {
    /// All the time: parameters, gradients, the optimizer's state. A further version of the weights is
    /// not in it; see [`version`](Self::version).
    pub fixed: f64,
    /// One more version of the weights, under asynchronous schedules.
    pub version: f64,
    /// The input of a micro-batch that is to be run again.
    pub input: f64,
    /// The activations of a micro-batch, from its forward pass to the gradient of its input.
    pub activations: f64,
    /// What the gradients of weights need, from the gradient of the input on.
    pub context: f64,
}

/// A connection between two workers, one each way.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Seconds until the first byte has arrived.
    pub latency: f64,
    /// Bytes a second, one message at a time.
    pub bandwidth: f64,
}

impl Default for Link {
    /// Takes no time at all.
    fn default() -> Self {
        Self {
            latency: 0.0,
            bandwidth: f64::INFINITY,
        }
    }
}

impl Link {
    /// What a message passes that has to pass the slower of two: the longer latency, the lower bandwidth.
    ///
    /// ```
    /// use stovepipe_schedule::Link;
    ///
    /// let (far, narrow) = (Link { latency: 1e-3, bandwidth: 1e9 }, Link { latency: 1e-6, bandwidth: 1e6 });
    /// assert_eq!(far.or_slower(narrow), Link { latency: 1e-3, bandwidth: 1e6 });
    /// ```
    #[must_use]
    pub fn or_slower(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            bandwidth: self.bandwidth.min(other.bandwidth),
        }
    }
}

impl Costs {
    /// All stages alike, in seconds: forward, and both halves of backward. Sending takes no time, and
    /// nothing is computed again.
    ///
    /// ```
    /// use stovepipe_schedule::{Costs, GPipe, Scheduler};
    ///
    /// let costs = Costs::uniform(2, 1.0, 1.5, 0.5);
    /// let step_time = GPipe.schedule(2, 3)?.simulate(&costs)?.step_time();
    /// assert_eq!(step_time, 12.0); // (m + p − 1)(F + I + W)
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn uniform(stages: usize, forward: f64, input: f64, weight: f64) -> Self {
        let stage = StageCosts {
            forward,
            quiet: forward,
            input,
            weight,
            ..StageCosts::default()
        };
        Self {
            stages: vec![stage; stages],
            links: vec![Link::default()],
            recompute: Recompute::Never,
        }
    }

    /// The same with links that take so many seconds, whatever is sent.
    ///
    /// ```
    /// # use stovepipe_schedule::{Costs, GPipe, Scheduler};
    /// let costs = Costs::uniform(2, 1.0, 1.0, 1.0).with_latency(0.5);
    /// assert_eq!(GPipe.schedule(2, 1)?.simulate(&costs)?.step_time(), 7.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn with_latency(mut self, latency: f64) -> Self {
        self.links = vec![Link {
            latency,
            ..Link::default()
        }];
        self
    }

    /// The link between a stage and the next.
    pub(crate) fn link(&self, stage: usize) -> Link {
        self.links[stage.min(self.links.len() - 1)]
    }

    /// Makes sure that there is a number for everything, and no absurd one.
    pub(crate) fn check(&self, stages: usize) -> Result<(), CostError> {
        if self.stages.len() != stages {
            return Err(CostError::Stages {
                costs: self.stages.len(),
                stages,
            });
        }
        let links = self.links.len();
        if links != 1 && links + 1 != stages {
            return Err(CostError::Links { links, stages });
        }
        for (stage, costs) in self.stages.iter().enumerate() {
            for (what, value) in costs.numbers() {
                number(what, stage, value, 0.0..=MOST)?;
            }
        }
        for (stage, link) in self.links.iter().enumerate() {
            number("latency", stage, link.latency, 0.0..=MOST)?;
            number(
                "bandwidth",
                stage,
                link.bandwidth,
                f64::MIN_POSITIVE..=f64::INFINITY,
            )?;
        }
        Ok(())
    }
}

/// Seconds or bytes beyond which sums would no longer be exact enough to mean anything.
const MOST: f64 = 1e30;

impl StageCosts {
    fn numbers(&self) -> [(&'static str, f64); 11] {
        let Self { memory, .. } = self;
        [
            ("forward", self.forward),
            ("quiet forward", self.quiet),
            ("input gradient", self.input),
            ("weight gradient", self.weight),
            ("update", self.update),
            ("output", self.output),
            ("fixed memory", memory.fixed),
            ("memory of a version", memory.version),
            ("memory of an input", memory.input),
            ("memory of activations", memory.activations),
            ("memory of a context", memory.context),
        ]
    }
}

fn number(
    what: &'static str,
    stage: usize,
    value: f64,
    range: std::ops::RangeInclusive<f64>,
) -> Result<(), CostError> {
    match range.contains(&value) {
        true => Ok(()),
        false => Err(CostError::Number { what, stage, value }),
    }
}

/// Costs that a schedule cannot be simulated with.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum CostError {
    /// There are not as many as stages.
    #[error("costs are given for {costs} stages, but the schedule has {stages}")]
    Stages {
        /// Costs given.
        costs: usize,
        /// Stages of the schedule.
        stages: usize,
    },
    /// There are not as many links as neighbours.
    #[error("{links} links are given: give one for all, or one less than the {stages} stages")]
    Links {
        /// Links given.
        links: usize,
        /// Stages of the schedule.
        stages: usize,
    },
    /// A number is negative, not finite, or absurdly large.
    #[error("{what} of stage {stage} is {value}, which is out of range")]
    Number {
        /// What is given.
        what: &'static str,
        /// The stage; of a link, the one before it.
        stage: usize,
        /// The number.
        value: f64,
    },
}
