//! The planner's machine, from what was measured.

use stovepipe::{
    pipeline::{NamedDevice, device::Link},
    plan::{DeviceSpec, Machine},
    train::{PipelineSettings, Processes},
};

use super::survey::{Found, MeasuredLink, Survey};
use crate::error::CliError;

impl Survey {
    /// The usable devices as the planner knows them; `None` if there are none. A GPU emulated on the CPU is
    /// left out unless it was named. Each process calls this.
    pub(super) fn machine(&self, processes: &Processes) -> Result<Option<Machine>, CliError> {
        let is_taken = |found: &&Found| match &found.known.facts {
            Ok((facts, _)) => self.is_chosen || !facts.software,
            Err(_) => false,
        };
        let taken: Vec<_> = self.found.iter().filter(is_taken).collect();
        let devices: Vec<_> = taken.iter().map(|found| found.device.clone()).collect();
        let pipeline = PipelineSettings {
            stages: devices.len(),
            devices: devices.iter().map(|device| device.name.clone()).collect(),
            ..PipelineSettings::default()
        };
        let memory = pipeline.available_memory(processes)?.shares();
        let share = |found: &Found| found.device.share_of_time(&devices);
        let rate = |found: &Found| found.rate().unwrap_or(1.0) * share(found);
        let Some(first) = taken.first().map(|first| rate(first)) else {
            return Ok(None);
        };
        let spec = |(found, memory): (&&Found, Option<u64>)| DeviceSpec {
            name: found.device.name.clone(),
            speed: rate(found) / first,
            memory,
            store: None,
        };
        let within = self.slowest_link(&devices);
        let ranks: Vec<_> = devices.iter().map(|device| device.process).collect();
        let is_free = processes.size() == 1 && within.is_none();
        let levels = || processes.levels(&ranks, within, &self.process_links);
        Ok(Some(Machine {
            devices: taken.iter().zip(memory).map(spec).collect(),
            levels: if is_free { Vec::new() } else { levels() },
        }))
    }

    /// The slowest link within a process.
    fn slowest_link(&self, devices: &[NamedDevice]) -> Option<Link> {
        let is_taken = |name: &str| devices.iter().any(|taken| taken.name == name);
        let between = |link: &&MeasuredLink| is_taken(&link.from) && is_taken(&link.to);
        let links = self.links.iter().filter(between);
        links.map(MeasuredLink::link).reduce(Link::or_slower)
    }
}

impl MeasuredLink {
    fn link(&self) -> Link {
        Link {
            latency: self.latency,
            bandwidth: self.bandwidth,
        }
    }
}

impl Found {
    /// Operations a second of single floats.
    fn rate(&self) -> Option<f64> {
        let (_, rates) = self.known.facts.as_ref().ok()?;
        Some(rates.products.first()?.rate)
    }
}
