//! The memory of a mini-batch over time: as it is predicted, and as it was counted.

use burn::tensor::Device;
use stovepipe::{
    pipeline::NamedDevice,
    schedule::{Costs, Schedule},
};

use crate::{allocated, error::CliError};

/// Times what is needed: a limit that is not worth a line.
const FAR: f64 = 4.0;

/// What is predicted.
pub struct MemoryPicture {
    schedule: Schedule,
    costs: Costs,
    /// Bytes that each worker has, if known.
    limits: Vec<Option<u64>>,
}

impl MemoryPicture {
    /// `None` for windows: they have many mini-batches.
    pub fn new(schedule: Schedule, costs: Costs, limits: Vec<Option<u64>>) -> Option<Self> {
        let is_one = !schedule.is_asynchronous();
        is_one.then_some(Self {
            schedule,
            costs,
            limits,
        })
    }

    /// Draws it, with what was counted: seconds and bytes.
    pub fn draw(&self, measured: &[(f64, f64)]) -> Result<String, CliError> {
        let simulation = self.schedule.simulate(&self.costs)?;
        let needed = simulation.peak_memory().into_iter().zip(&self.limits);
        let near = needed.map(|(needs, limit)| {
            let limit = limit.map(|bytes| bytes as f64);
            limit.filter(|&bytes| bytes < FAR * needs)
        });
        Ok(simulation.memory_to_svg(&[], &near.collect::<Vec<_>>(), measured))
    }
}

/// Counts the bytes on these devices: those that the program has allocated for the CPU, and those in use in the pools of
/// others.
pub fn counter(names: &[String]) -> impl Fn() -> u64 + Send + Sync + use<> {
    let mut devices: Vec<Device> = Vec::new();
    for named in names.iter().flat_map(|name| name.parse::<NamedDevice>()) {
        if !devices.contains(&named.device) {
            devices.push(named.device);
        }
    }
    move || {
        let of_device = |device: &Device| match device.memory_pool_usage() {
            Some(usage) => usage.bytes_in_use,
            None => allocated() as u64,
        };
        devices.iter().map(of_device).sum()
    }
}
