//! What the partitioner returns.

use std::ops::Range;

use stovepipe_schedule::{count, format_bytes};
use thiserror::Error;

/// A model split into stages, each on one or more workers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Partition {
    /// The stages, in order. Together they have all states and all workers.
    pub stages: Vec<ReplicatedStage>,
    /// Seconds a mini-batch: those of the slowest stage, or of the slowest transfer between two.
    pub time: f64,
}

/// A stage of a [`Partition`] and its replicas.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReplicatedStage {
    /// The stage's states. [`States::layers`](crate::States::layers) returns its layers.
    pub states: Range<usize>,
    /// How many workers (machines, in the outer levels) have a copy of the stage and take
    /// mini-batches in turn.
    pub replicas: usize,
    /// Seconds a mini-batch of this stage alone, including the all-reduce of its gradients, divided
    /// among the replicas.
    pub time: f64,
    /// How each machine splits the stage among its own workers. None at the innermost level.
    pub inside: Option<Box<Partition>>,
}

/// Why a model cannot be partitioned.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum PartitionError {
    /// There is nothing to split.
    #[error("the model has no layer")]
    NoLayers,
    /// A layer's time is out of range.
    #[error("layer {layer} has a time that is negative, infinite, NaN or absurdly long")]
    Time { layer: usize },
    /// The graph can be cut in too many ways.
    #[error(
        "the graph is so wide that it can be cut in more than {most} ways; \
         merge the layers of parallel branches into one"
    )]
    TooManyStates { most: usize },
    /// There is no worker.
    #[error("the machine has no device")]
    NoDevices,
    /// A level (0 is the innermost) joins no workers, or its bandwidth is not above 0.
    #[error("level {level} of the machine needs workers and a bandwidth above 0")]
    Level { level: usize },
    /// The levels join more or fewer workers than there are.
    #[error("the machine's levels join {}, but it has {devices}", count(*joined, "device"))]
    Joined { joined: usize, devices: usize },
    /// Devices differ in speed.
    #[error(
        "device {device} has the speed {speed} and device 0 has {first}, but replicas are for \
         devices of one speed; place the layers one stage a device instead"
    )]
    UnequalSpeeds {
        device: usize,
        speed: f64,
        first: f64,
    },
    /// The speed is not above 0.
    #[error("the devices' speed is {speed}, which is not a finite number above 0")]
    Speed { speed: f64 },
    /// No partition fits.
    #[error(
        "no partition fits into {} a worker; take more workers or fewer samples a mini-batch",
        format_bytes(*memory)
    )]
    DoesNotFit { memory: u64 },
    /// The table of partial solutions would be too large.
    #[error(
        "{states} states are too many for this machine (more than {most} partial solutions); \
         merge neighbouring layers"
    )]
    TooLarge { states: usize, most: usize },
}
