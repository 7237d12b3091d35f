//! Time and memory of the passes of a pipeline.

use thiserror::Error;

use crate::{Recompute, ScheduleError, WeightPolicy, count};

/// Time and memory of the passes of a pipeline: the input of a
/// [simulation](crate::Schedule::simulate).
///
/// ```
/// use stovepipe_schedule::{Costs, GPipe, Link, Scheduler};
///
/// let costs = Costs::uniform(2, 1.0, 1.5, 0.5);
/// let step_time = GPipe.schedule(2, 3)?.simulate(&costs)?.step_time();
/// assert_eq!(step_time, 12.0); // (m + p − 1)(F + I + W)
///
/// let mut costs = Costs::uniform(2, 1.0, 1.0, 1.0);
/// costs.links[0].latency = 0.5;
/// assert_eq!(GPipe.schedule(2, 1)?.simulate(&costs)?.step_time(), 7.0);
/// let narrow = Link { latency: 0.1, bandwidth: 1e6 };
/// assert_eq!(costs.links[0].or_slower(narrow), Link { latency: 0.5, bandwidth: 1e6 });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Debug)]
pub struct Costs {
    /// Of each stage.
    pub stages: Vec<StageCosts>,
    /// Between each stage and the next, or a single one for all.
    pub links: Vec<Link>,
    /// What stages send to later ones besides their outputs. It takes time; its memory is that of
    /// [stages](StageMemory).
    pub skips: Vec<SkipCosts>,
    /// Which micro-batches are recomputed. Which of their layers are, costs say.
    pub recompute: Recompute,
    /// The speed of each worker, for replicas on unequal devices: the times of its passes and updates are
    /// divided by it. If empty, all are 1.
    pub speeds: Vec<f64>,
    /// Which versions of the weights passes use, under asynchronous schedules.
    pub weights: WeightPolicy,
}

/// Time and memory of a stage for a micro-batch.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StageCosts {
    /// Seconds of a forward pass that keeps its activations.
    pub forward: f64,
    /// Seconds of the forward pass of a micro-batch that is recomputed later.
    pub quiet: f64,
    /// Seconds that are run again before the gradient arrives: of the last layers that are recomputed.
    pub again: f64,
    /// Seconds that are run again after the gradient has arrived: of other layers.
    pub late: f64,
    /// Seconds of the input gradient.
    pub input: f64,
    /// Seconds of the weight gradients.
    pub weight: f64,
    /// Seconds of an update of the weights: each one of an asynchronous schedule, else that at the end.
    pub update: f64,
    /// The gradients that replicas add up before an update, in the order of their all-reduces. Only for
    /// stages with replicas.
    pub buckets: Vec<Bucket>,
    /// Bytes sent to the next stage. The gradients that come back have as many.
    pub output: f64,
    /// What it keeps in memory.
    pub memory: StageMemory,
}

/// What a stage sends to a later one besides its output: values that skip layers, in one message.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SkipCosts {
    /// The stage that sends them.
    pub from: usize,
    /// The stage that takes them.
    pub to: usize,
    /// Bytes for a micro-batch. The gradients that come back have as many.
    pub bytes: f64,
    /// The link between these stages.
    pub link: Link,
}

/// Gradients of some layers that replicas add up in one all-reduce.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Bucket {
    /// When they are complete: the part of the stage's last backward pass, or of its last
    /// [`WeightGradient`](crate::Pass::WeightGradient), from 0 to 1.
    pub ready: f64,
    /// Seconds of the all-reduce.
    pub seconds: f64,
}

/// Bytes that a stage keeps.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct StageMemory {
    /// Always: parameters, optimizer state. Without further [versions](Self::version) of the weights.
    pub fixed: f64,
    /// The sums of gradients, from the end of the first backward pass on.
    pub gradients: f64,
    /// One more version of the weights, under asynchronous schedules.
    pub version: f64,
    /// The activations of a micro-batch, from its forward pass to its input gradient.
    pub activations: f64,
    /// What a micro-batch keeps instead that will be recomputed: the inputs of the layers that are,
    pub input: f64,
    /// and the activations of those that are not.
    pub kept: f64,
    /// The most activations that such a micro-batch has during its backward pass, with what that needs besides.
    pub rerun: f64,
    /// What the weight gradients of a micro-batch need, after its input gradient.
    pub context: f64,
    /// What another running pass needs besides.
    pub workspace: f64,
}

/// A connection between two workers, in one direction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Link {
    /// Seconds until the first byte arrives.
    pub latency: f64,
    /// Bytes a second, one message at a time.
    pub bandwidth: f64,
}

impl Default for Link {
    /// Takes no time.
    fn default() -> Self {
        Self {
            latency: 0.0,
            bandwidth: f64::INFINITY,
        }
    }
}

impl Link {
    /// The longer latency and the lower bandwidth of two links.
    #[must_use]
    pub fn or_slower(self, other: Self) -> Self {
        Self {
            latency: self.latency.max(other.latency),
            bandwidth: self.bandwidth.min(other.bandwidth),
        }
    }
}

impl Costs {
    /// Equal stages, with the seconds of forward and of both halves of backward. Sending takes no time,
    /// nothing is recomputed.
    #[must_use]
    pub fn uniform(stages: usize, forward: f64, input: f64, weight: f64) -> Self {
        let stage = StageCosts {
            forward,
            quiet: forward,
            again: forward,
            input,
            weight,
            ..StageCosts::default()
        };
        Self {
            stages: vec![stage; stages],
            links: vec![Link::default()],
            skips: Vec::new(),
            recompute: Recompute::Never,
            speeds: Vec::new(),
            weights: WeightPolicy::default(),
        }
    }

    pub(crate) fn speed(&self, worker: usize) -> f64 {
        self.speeds.get(worker).copied().unwrap_or(1.0)
    }

    /// The link between a stage and the next.
    pub(crate) fn link(&self, stage: usize) -> Link {
        self.links[stage.min(self.links.len() - 1)]
    }

    /// Checks that no number is missing or absurd.
    pub(crate) fn check(&self, stages: usize, workers: usize) -> Result<(), CostError> {
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
        let speeds = self.speeds.len();
        if speeds != 0 && speeds != workers {
            return Err(CostError::Speeds { speeds, workers });
        }
        let number = |what, stage, value: f64, least: f64, most: f64| {
            let is_sound = (least..=most).contains(&value);
            let error = CostError::Number { what, stage, value };
            is_sound.then_some(()).ok_or(error)
        };
        for (stage, costs) in self.stages.iter().enumerate() {
            for (what, value) in costs.numbers() {
                number(what, stage, value, 0.0, MOST)?;
            }
            for bucket in &costs.buckets {
                number("ready share of a bucket", stage, bucket.ready, 0.0, 1.0)?;
                number("all-reduce of a bucket", stage, bucket.seconds, 0.0, MOST)?;
            }
        }
        for &speed in &self.speeds {
            if !(LEAST_SPEED..=MOST).contains(&speed) {
                return Err(CostError::Speed(speed));
            }
        }
        let link = |stage, link: &Link| {
            number("latency", stage, link.latency, 0.0, MOST)?;
            let (least, most) = (f64::MIN_POSITIVE, f64::INFINITY);
            number("bandwidth", stage, link.bandwidth, least, most)
        };
        for (stage, own) in self.links.iter().enumerate() {
            link(stage, own)?;
        }
        for skip in &self.skips {
            let SkipCosts { from, to, .. } = *skip;
            if from >= to || to >= stages {
                return Err(CostError::Skip { from, to, stages });
            }
            number("skips", from, skip.bytes, 0.0, MOST)?;
            link(from, &skip.link)?;
        }
        Ok(())
    }
}

/// Sums of more seconds or bytes would not be exact enough.
const MOST: f64 = 1e30;
/// Times divided by less would not be finite.
const LEAST_SPEED: f64 = 1e-30;

impl StageCosts {
    fn numbers(&self) -> [(&'static str, f64); 17] {
        let Self { memory, .. } = self;
        [
            ("forward", self.forward),
            ("quiet forward", self.quiet),
            ("recomputation", self.again),
            ("late recomputation", self.late),
            ("input gradient", self.input),
            ("weight gradient", self.weight),
            ("update", self.update),
            ("output", self.output),
            ("fixed memory", memory.fixed),
            ("memory of gradients", memory.gradients),
            ("memory of a version", memory.version),
            ("memory of activations", memory.activations),
            ("memory of an input", memory.input),
            ("memory of kept activations", memory.kept),
            ("memory of a recomputation", memory.rerun),
            ("memory of a context", memory.context),
            ("workspace of a pass", memory.workspace),
        ]
    }
}

/// Costs that do not fit a schedule.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum CostError {
    /// There are more or fewer than stages.
    #[error("costs are given for {}, but the schedule has {stages}", count(*costs, "stage"))]
    Stages { costs: usize, stages: usize },
    /// There are more or fewer links than neighbours.
    #[error("{} given: give one for all, or one less than the {stages} stages", count(*links, "link"))]
    Links { links: usize, stages: usize },
    /// There are more or fewer speeds than workers.
    #[error("{} given, but the schedule has {}", count(*speeds, "speed"), count(*workers, "worker"))]
    Speeds { speeds: usize, workers: usize },
    /// Skips go to a stage that is not a later one.
    #[error("skips go from a stage to a later one: not from {from} to {to} of {}", count(*stages, "stage"))]
    Skip {
        from: usize,
        to: usize,
        stages: usize,
    },
    /// A worker's speed is not above 0, NaN, or absurdly large.
    #[error("the speed of a worker is {0:?}, which is out of range")]
    Speed(f64),
    /// A stage would need weights that it does not have yet.
    #[error(transparent)]
    Weights(#[from] ScheduleError),
    /// A number is negative, NaN, infinite or absurdly large. For a link or a skip, `stage` is the one that sends.
    #[error("{what} of stage {stage} is {value:?}, which is out of range")]
    Number {
        what: &'static str,
        stage: usize,
        value: f64,
    },
}
