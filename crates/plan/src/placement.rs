//! The best cut of a chain over devices of different speed, and their best order.

use crate::{
    CutError,
    chain::{Chain, Sums, join_stage},
    cut_chain_by,
    planner::ranges,
};

/// Cells of the largest table of orders: about a second of work.
const MOST_CELLS: usize = 1 << 24;

/// Which device has which layers.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Placement {
    /// The device of each stage, by its index in the speeds.
    pub devices: Vec<usize>,
    /// The number of layers of each stage.
    pub counts: Vec<usize>,
    /// The time of the slowest stage.
    pub time: f64,
    /// Whether all orders of the devices were considered. If not, they have the order given.
    pub any_order: bool,
}

/// Places a chain of layers on all devices, at least one layer each, so that the slowest stage is as
/// fast as possible. It chooses the order of the devices and the cut. A layer takes its cost divided by
/// the speed of its device.
///
/// Devices of the same speed are interchangeable: what counts is how many of each speed are used. The
/// choice is exact up to rounding if the product of these numbers, of layers and of speeds is at most
/// 2²⁴ (16 devices of two speeds and 10,000 layers, or 10 different devices and 1,000 layers). Beyond
/// that, the devices keep the order given, and [`Placement::any_order`] is false. The cut is the one
/// that [`cut_chain_by`] finds for the order.
///
/// ```
/// use stovepipe_plan::place_chain;
///
/// // The expensive layer goes to the fast device, which is given first and comes last.
/// let placement = place_chain(&[1.0, 1.0, 6.0], &[3.0, 1.0])?;
/// assert_eq!(placement.devices, [1, 0]);
/// assert_eq!(placement.counts, [2, 1]);
/// assert_eq!(placement.time, 2.0);
/// # Ok::<(), stovepipe_plan::CutError>(())
/// ```
///
/// # Errors
///
/// If there are no devices or more than layers, a speed is not above 0 or not finite, or a layer's time
/// is negative, infinite or NaN.
pub fn place_chain(costs: &[f64], speeds: &[f64]) -> Result<Placement, CutError> {
    for (device, &speed) in speeds.iter().enumerate() {
        if !(speed > 0.0 && speed.is_finite()) {
            return Err(CutError::Speed { device, speed });
        }
    }
    let time_of = |device: usize, layer: usize| costs[layer] / speeds[device];
    Chain::new(costs.len(), speeds.len(), time_of)?;
    let (devices, any_order) = match best_order(costs, speeds) {
        Some(devices) => (devices, true),
        None => ((0..speeds.len()).collect(), false),
    };
    let time_of = |stage: usize, layer| time_of(devices[stage], layer);
    let counts = cut_chain_by(costs.len(), devices.len(), time_of)?;
    let stages = ranges(&counts).into_iter().enumerate();
    let stages =
        stages.map(|(stage, layers)| layers.rev().map(|layer| time_of(stage, layer)).sum());
    let time = stages.fold(0.0, f64::max);
    Ok(Placement {
        devices,
        counts,
        time,
        any_order,
    })
}

/// Devices of one speed.
struct Class {
    speed: f64,
    devices: Vec<usize>,
    /// A single number stands for the devices in use of all classes. A device of this class adds this.
    stride: usize,
}

/// The last device of the best placement of some layers, and its first layer.
#[derive(Clone, Copy)]
struct LastDevice {
    class: usize,
    begin: usize,
}

/// The best order of the devices. None if there are too many orders.
fn best_order(costs: &[f64], speeds: &[f64]) -> Option<Vec<usize>> {
    let mut classes = classes(speeds)?;
    let uses = (classes.last()).map(|last| last.stride * (last.devices.len() + 1))?;
    let cells = uses.checked_mul(costs.len() + 1)?;
    if cells.checked_mul(classes.len())? > MOST_CELLS {
        return None;
    }
    let lasts = last_devices(costs, &classes, uses);
    let (mut of_use, mut end) = (uses - 1, costs.len());
    let mut order = Vec::with_capacity(speeds.len());
    while of_use > 0 {
        let last = lasts[of_use][end];
        order.extend(classes[last.class].devices.pop());
        (of_use, end) = (of_use - classes[last.class].stride, last.begin);
    }
    order.reverse();
    Some(order)
}

/// Groups devices by speed. None if their numbers in use do not fit into one number.
fn classes(speeds: &[f64]) -> Option<Vec<Class>> {
    let mut classes: Vec<Class> = Vec::new();
    for (device, &speed) in speeds.iter().enumerate() {
        match classes.iter_mut().find(|class| class.speed == speed) {
            Some(class) => class.devices.push(device),
            None => classes.push(Class {
                speed,
                devices: vec![device],
                stride: 1,
            }),
        }
    }
    let mut stride = 1_usize;
    for class in &mut classes {
        class.stride = stride;
        stride = stride.checked_mul(class.devices.len() + 1)?;
    }
    Some(classes)
}

/// For each number of devices in use of each class, and each number of first layers: the last device of
/// the best placement.
fn last_devices(costs: &[f64], classes: &[Class], uses: usize) -> Vec<Vec<LastDevice>> {
    let sums = |class: &Class| Sums::new(costs.iter().map(|cost| cost / class.speed));
    let sums: Vec<_> = classes.iter().map(sums).collect();
    let devices: usize = classes.iter().map(|class| class.devices.len()).sum();
    let mut times = vec![vec![f64::INFINITY; costs.len() + 1]; uses];
    let nothing = LastDevice { class: 0, begin: 0 };
    let mut lasts = vec![vec![nothing; costs.len() + 1]; uses];
    times[0][0] = 0.0;
    for of_use in 1..uses {
        let used = |class: &Class| of_use / class.stride % (class.devices.len() + 1);
        let stages: usize = classes.iter().map(used).sum();
        let (before, from) = times.split_at_mut(of_use);
        for (class, own) in classes.iter().enumerate() {
            if used(own) == 0 {
                continue;
            }
            let ends = stages..=costs.len() - (devices - stages);
            let cost = |begin, end| sums[class].between(begin, end);
            let before = &before[of_use - own.stride];
            join_stage(before, ends, cost, |end, time, begin| {
                if time < from[0][end] {
                    from[0][end] = time;
                    lasts[of_use][end] = LastDevice { class, begin };
                }
            });
        }
    }
    lasts
}
