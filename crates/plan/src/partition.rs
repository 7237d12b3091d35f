//! PipeDream's split of a model into stages, some of them on several workers.

mod chain;
mod filler;
mod minima;
mod result;
mod solver;
mod table;

use stovepipe_schedule::Link;

use crate::{LinkLevel, Machine, States};
use solver::Solver;
use table::Group;

pub use result::{Partition, PartitionError, ReplicatedStage};

/// Splits a model into stages, each on as many workers as make the slowest stage fastest: PipeDream's
/// partitioner (Narayanan et al., *PipeDream: Generalized Pipeline Parallelism for DNN Training*, SOSP
/// 2019), with the cost model of its published optimizer. It uses all workers.
///
/// Seconds a mini-batch, where C is the seconds of a stage's layers forward and backward on one worker,
/// W the bytes of its parameters, a the bytes that cross a cut, B the bandwidth and m the workers of the
/// stage:
///
/// - the first or only stage: (C + 4(m − 1)·W / (B·m) / b) / m, where b is the number of workers that the
///   next lower level joins, 1 at the innermost;
/// - a later stage: (C + 4(m − 1)·W / (B·m)) / m;
/// - a transfer over a cut: 2a / (B·m), for the stage before it (unless it is the first) and for the
///   stage after it;
/// - the whole: the largest of these, since stages and transfers overlap.
///
/// A machine of several levels is solved from the inside. At an outer level, C is the time in which one
/// machine, as a pipeline, runs the stage. Without levels, links and all-reduce cost nothing. Latency is
/// not part of the model. C is divided by the speed of the devices, which must be equal.
///
/// If devices have limited memory, the smallest is the limit for each worker. A stage takes
/// v·(W + kept) bytes, where v = ⌈workers from this stage on / workers of the stage⌉ is the number of
/// mini-batches that 1F1B has in flight, and thus of weight versions.
///
/// Of equal solutions it prefers an uncut one, then the one whose last stage begins earlier, then the one
/// whose last stage has fewer workers. (PipeDream's optimizer chooses at random.) S states and levels of n
/// workers take S²·n² steps, and S³·n² for each level below the outermost, times the number of different
/// memory limits behind a stage. A chain on one level takes about S·n² steps, with the same result: ten
/// thousand layers on 64 workers take seconds, more if transfers dominate.
///
/// ```
/// use stovepipe_plan::{LayerProfile, Machine, Profile, States, partition};
///
/// let layer = |forward: f64, backward: f64| LayerProfile { forward, backward, ..LayerProfile::default() };
/// let layers = vec![layer(1.0, 1.0), layer(0.5, 1.5), layer(1.0, 1.0)];
/// let states = States::from_profile(&Profile { samples: 1, input: 4, layers, skips: vec![] })?;
/// let partition = partition(&states, &Machine::uniform(3))?;
/// assert_eq!(partition.time, 2.0); // three workers for 6 s
/// # Ok::<(), stovepipe_plan::PartitionError>(())
/// ```
///
/// # Errors
///
/// If the machine has no devices, devices of different speed, or levels that do not fit them; if no
/// partition fits into the memory; or if there are too many states.
pub fn partition(states: &States, machine: &Machine) -> Result<Partition, PartitionError> {
    let speed = common_speed(machine)?;
    let groups = groups(machine)?;
    let memories = machine.devices.iter().filter_map(|device| device.memory);
    let memory = memories.min();
    let whole = Solver::new(states, &groups, speed, memory).solve()?;
    let memory = memory.unwrap_or(u64::MAX);
    whole.ok_or(PartitionError::DoesNotFit { memory })
}

fn common_speed(machine: &Machine) -> Result<f64, PartitionError> {
    let mut speeds = machine.devices.iter().map(|device| device.speed);
    let first = speeds.next().ok_or(PartitionError::NoDevices)?;
    if !(first > 0.0 && first.is_finite()) {
        return Err(PartitionError::Speed { speed: first });
    }
    match (1..).zip(speeds).find(|&(_, speed)| speed != first) {
        Some((device, speed)) => Err(PartitionError::UnequalSpeeds {
            device,
            speed,
            first,
        }),
        None => Ok(first),
    }
}

/// The levels of the machine, innermost first.
fn groups(machine: &Machine) -> Result<Vec<Group>, PartitionError> {
    let devices = machine.devices.len();
    let free = [LinkLevel::joining(devices, Link::default())];
    let levels = match &machine.levels[..] {
        [] => &free,
        levels => levels,
    };
    let mut groups: Vec<Group> = Vec::with_capacity(levels.len());
    let mut joined = 1_usize;
    for (level, link) in levels.iter().enumerate() {
        if link.workers == 0 || link.bandwidth.is_nan() || link.bandwidth <= 0.0 {
            return Err(PartitionError::Level { level });
        }
        groups.push(Group {
            units: link.workers,
            bandwidth: link.bandwidth,
            below: groups.last().map_or(1, |below| below.units),
            workers: joined,
        });
        joined = joined.saturating_mul(link.workers);
    }
    if joined != devices {
        return Err(PartitionError::Joined { joined, devices });
    }
    Ok(groups)
}
