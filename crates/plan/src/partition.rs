//! PipeDream's split of a model into stages, some of them on several workers.

mod group;
mod ratio;
mod table;

use std::ops::Range;

use thiserror::Error;

use crate::{Machine, States, machine::LinkLevel};
use group::Group;
use table::Planner;

/// A model split into stages, each on one or more workers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Partition {
    /// The stages, in order; together they have all states and all workers.
    pub stages: Vec<ReplicatedStage>,
    /// Seconds a mini-batch: those of the slowest stage, or of the slowest transfer between two.
    pub time: f64,
}

/// A stage of a [`Partition`], and how many workers take turns at it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ReplicatedStage {
    /// The stage's states; [`States::layers`] tells its layers.
    pub states: Range<usize>,
    /// How many workers (machines, in the outer levels) have a copy of the stage and take
    /// mini-batches in turn.
    pub replicas: usize,
    /// Seconds a mini-batch of this stage alone, with the exchange of its weight gradients,
    /// shared among the replicas.
    pub time: f64,
    /// How each of the machines splits the stage among its own workers; none at the innermost
    /// level.
    pub inside: Option<Box<Partition>>,
}

/// Why a model cannot be partitioned.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// There is nothing to split.
    #[error("the model has no layer")]
    NoLayers,
    /// A layer's time cannot be reckoned with.
    #[error("layer {layer} has a time that is negative, infinite, no number or beyond all reason")]
    Time {
        /// The layer's place in the profile.
        layer: usize,
    },
    /// The graph can be cut in too many ways.
    #[error(
        "the graph is so wide that it can be cut in more than {most} ways; \
         merge the layers of parallel branches into one"
    )]
    TooManyStates {
        /// The most states there may be.
        most: usize,
    },
    /// There is no worker.
    #[error("the machine has no device")]
    NoDevices,
    /// A level of links has no workers, or links without a speed.
    #[error("level {level} of the machine needs workers and a bandwidth above 0")]
    Level {
        /// The level; the innermost is 0.
        level: usize,
    },
    /// The levels join more or fewer workers than there are.
    #[error("the machine's levels join {joined} devices, but it has {devices}")]
    Joined {
        /// The product of the levels' workers.
        joined: usize,
        /// The number of devices.
        devices: usize,
    },
    /// Devices differ in speed.
    #[error(
        "device {device} has the speed {speed} and device 0 has {first}, but replicas are for \
         devices of one speed; place the layers one stage a device instead"
    )]
    UnequalSpeeds {
        /// The device.
        device: usize,
        /// Its speed.
        speed: f64,
        /// The first device's speed.
        first: f64,
    },
    /// The speed is not above 0.
    #[error("the devices' speed is {speed}, which is no finite number above 0")]
    Speed {
        /// The speed.
        speed: f64,
    },
    /// No partition fits.
    #[error(
        "no partition fits into {memory} bytes a worker; take more workers or fewer samples a \
         mini-batch"
    )]
    DoesNotFit {
        /// Bytes of a worker.
        memory: u64,
    },
    /// The table of partial solutions would be too large.
    #[error(
        "{states} states are too many for this machine (more than {most} partial solutions); \
         merge neighbouring layers"
    )]
    TooLarge {
        /// The number of states.
        states: usize,
        /// The most partial solutions there may be.
        most: usize,
    },
}

/// Splits a model into stages and gives each as many workers as make the slowest stage fastest:
/// PipeDream's partitioner (Narayanan et al., *PipeDream: Generalized Pipeline Parallelism for DNN
/// Training*, SOSP 2019), with the cost model of its published optimizer. All workers are used.
///
/// Seconds a mini-batch, where C is the seconds of a stage's layers forward and backward on one
/// worker, W the bytes of its parameters, a the bytes that go over a cut, B the bandwidth and m the
/// workers that share the stage:
///
/// - a stage that is the only one or the first: (C + 4(m − 1)·W / (B·m) / b) / m, where b is the
///   number of workers that the level just below joins, 1 at the innermost;
/// - a later stage: (C + 4(m − 1)·W / (B·m)) / m;
/// - a transfer over a cut: 2a / (B·m), once for the stage before it, once for the one behind it,
///   where the stage is not the first;
/// - the whole: the largest of these. Stages that share nothing but the machine overlap.
///
/// A machine of several levels is solved from the inside: at an outer level, C is the time in
/// which one machine, as a pipeline of its own, does the stage. Without levels, links cost nothing
/// and neither does the exchange of gradients. Latency is no part of this model. C is
/// divided by the speed of the devices, which must be the same.
///
/// If devices have limited memory, the smallest of them is the limit for each worker: a stage is on
/// a worker with v versions of its weights, and with what its layers keep for v mini-batches,
/// v·(W + kept) bytes, where v = ⌈workers from this stage on / workers that share it⌉ is the
/// number of mini-batches that 1F1B has in flight.
///
/// Of equal solutions it takes an uncut one, then the one whose last stage begins earlier, then the
/// one whose last stage has fewer workers. (PipeDream's optimizer chooses at random.) With S states
/// and levels of n workers: S²·n² steps, and S³·n² for each level below the outermost, as many
/// times as the workers behind a stage make a difference to its memory.
///
/// A chain on one level takes about S·n² steps instead, with the same result: ten thousand layers
/// on 64 workers take seconds. It takes more where transfers outweigh everything else.
///
/// ```
/// use stovepipe_plan::{LayerProfile, Machine, Profile, States, partition};
///
/// let layer = |forward: f64, backward: f64| LayerProfile { forward, backward, ..LayerProfile::default() };
/// let layers = vec![layer(1.0, 1.0), layer(0.5, 1.5), layer(1.0, 1.0)];
/// let states = States::from_profile(&Profile { samples: 1, input: 4, layers })?;
/// let partition = partition(&states, &Machine::uniform(3))?;
/// assert_eq!(partition.time, 2.0); // three workers for 6 s
/// # Ok::<(), stovepipe_plan::PartitionError>(())
/// ```
///
/// # Errors
///
/// If the machine has no devices, ones of different speed, or levels that do not fit them; if no
/// partition fits into the memory; or if there are too many states to try them all.
pub fn partition(states: &States, machine: &Machine) -> Result<Partition, PartitionError> {
    let speed = common_speed(machine)?;
    let groups = groups(machine)?;
    let memory = machine
        .devices
        .iter()
        .filter_map(|device| device.memory)
        .min();
    let mut planner = Planner::new(states, &groups, speed, memory);
    let whole = planner.solve()?;
    whole.ok_or(PartitionError::DoesNotFit {
        memory: memory.unwrap_or(u64::MAX),
    })
}

/// The speed of all devices.
fn common_speed(machine: &Machine) -> Result<f64, PartitionError> {
    let first = machine
        .devices
        .first()
        .ok_or(PartitionError::NoDevices)?
        .speed;
    if !(first > 0.0 && first.is_finite()) {
        return Err(PartitionError::Speed { speed: first });
    }
    match machine
        .devices
        .iter()
        .position(|device| device.speed != first)
    {
        Some(device) => Err(PartitionError::UnequalSpeeds {
            device,
            speed: machine.devices[device].speed,
            first,
        }),
        None => Ok(first),
    }
}

/// The levels of the machine, innermost first.
fn groups(machine: &Machine) -> Result<Vec<Group>, PartitionError> {
    let devices = machine.devices.len();
    if machine.levels.is_empty() {
        return Ok(vec![Group::innermost(devices, f64::INFINITY)]);
    }
    let mut groups: Vec<Group> = Vec::new();
    let mut joined = 1_usize;
    for (
        level,
        &LinkLevel {
            workers, bandwidth, ..
        },
    ) in machine.levels.iter().enumerate()
    {
        if workers == 0 || bandwidth.is_nan() || bandwidth <= 0.0 {
            return Err(PartitionError::Level { level });
        }
        joined = joined.saturating_mul(workers);
        groups.push(match groups.last() {
            None => Group::innermost(workers, bandwidth),
            Some(below) => below.above(workers, bandwidth),
        });
    }
    if joined != devices {
        return Err(PartitionError::Joined { joined, devices });
    }
    Ok(groups)
}
