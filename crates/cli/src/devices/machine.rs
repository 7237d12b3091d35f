//! The planner's machine, from what was measured.

use stovepipe::{
    pipeline::{NamedDevice, device::Link},
    plan::{DeviceSpec, LinkLevel, Machine},
    train::PipelineSettings,
};

use super::survey::{Found, MeasuredLink, Survey};

impl Survey {
    /// The usable devices as the planner knows them. A GPU emulated on the CPU is left out unless it was named.
    pub(super) fn machine(&self) -> Option<Machine> {
        let is_taken = |found: &&Found| match &found.facts {
            Ok((facts, _)) => self.is_chosen || !facts.software,
            Err(_) => false,
        };
        let taken: Vec<_> = self.found.iter().filter(is_taken).collect();
        let devices: Vec<_> = taken.iter().map(|found| found.device.clone()).collect();
        let rate =
            |found: &Found| found.rate().unwrap_or(1.0) * found.device.share_of_time(&devices);
        let first = rate(taken.first()?);
        let spec = |(found, memory): (&&Found, Option<u64>)| DeviceSpec {
            name: found.device.name.clone(),
            speed: rate(found) / first,
            memory,
        };
        let link = self.slowest_link(&devices);
        let level = link.map(|link| LinkLevel::joining(devices.len(), link));
        Some(Machine {
            devices: taken
                .iter()
                .zip(memory_shares(&devices))
                .map(spec)
                .collect(),
            levels: level.into_iter().collect(),
        })
    }

    fn slowest_link(&self, devices: &[NamedDevice]) -> Option<Link> {
        let is_taken = |end: usize| {
            let end = &self.found[end].device.device;
            devices.iter().any(|taken| taken.device == *end)
        };
        let links = self.links.iter();
        links
            .filter(|link: &&MeasuredLink| is_taken(link.from) && is_taken(link.to))
            .map(|link| link.link)
            .reduce(Link::or_slower)
    }
}

fn memory_shares(devices: &[NamedDevice]) -> Vec<Option<u64>> {
    let pipeline = PipelineSettings {
        stages: devices.len(),
        devices: devices.iter().map(|device| device.name.clone()).collect(),
        ..PipelineSettings::default()
    };
    pipeline.memory_shares()
}

impl Found {
    /// Operations a second of single floats.
    fn rate(&self) -> Option<f64> {
        let (_, rates) = self.facts.as_ref().ok()?;
        Some(rates.products.first()?.rate)
    }
}
