//! The planner's machine, from what was measured.

use stovepipe::plan::{DeviceSpec, LinkLevel, Machine};

use super::{Found, Survey, Way};

impl Survey {
    /// What a planner has to know of the devices that can be used. The CPU by another name is left out unless
    /// somebody asked for it.
    pub(super) fn machine(&self) -> Option<Machine> {
        let is_taken = |found: &&Found| match &found.facts {
            Ok((facts, _)) => self.is_chosen || !facts.software,
            Err(_) => false,
        };
        let taken: Vec<_> = self.found.iter().filter(is_taken).collect();
        // Workers on a GPU share its time and its memory; those on the CPU have threads of their own.
        let sharing = |found: &Found, is_with: fn(&Found, &Found) -> bool| {
            taken.iter().filter(|other| is_with(found, other)).count() as u64
        };
        let rate = |found: &Found| {
            found.rate().unwrap_or(1.0) / sharing(found, Found::shares_time_with) as f64
        };
        let first = rate(taken.first()?);
        let spec = |found: &&Found| DeviceSpec {
            name: found.device.name.clone(),
            speed: rate(found) / first,
            memory: (found.memory()).map(|bytes| bytes / sharing(found, Found::shares_memory_with)),
        };
        let is_way = |way: &&Way| {
            let ends = [way.from, way.to].map(|end| &self.found[end].device.device);
            ends.iter()
                .all(|end| taken.iter().any(|found| found.device.device == **end))
        };
        let slowest = |level: LinkLevel, way: &Way| LinkLevel {
            bandwidth: level.bandwidth.min(way.bandwidth),
            latency: level.latency.max(way.latency),
            ..level
        };
        let level = LinkLevel {
            workers: taken.len(),
            bandwidth: f64::MAX,
            latency: 0.0,
        };
        let ways: Vec<_> = self.ways.iter().filter(is_way).collect();
        Some(Machine {
            devices: taken.iter().map(spec).collect(),
            levels: match ways.is_empty() {
                true => Vec::new(),
                false => vec![ways.into_iter().fold(level, slowest)],
            },
        })
    }
}

impl Found {
    fn shares_memory_with(&self, other: &Self) -> bool {
        let in_main = self.is_in_main_memory() && other.is_in_main_memory();
        in_main || self.device.device == other.device.device
    }

    fn shares_time_with(&self, other: &Self) -> bool {
        match self.is_cpu() && other.is_cpu() {
            true => std::ptr::eq(self, other),
            false => self.device.device == other.device.device,
        }
    }

    /// Operations a second of single floats.
    fn rate(&self) -> Option<f64> {
        let (_, rates) = self.facts.as_ref().ok()?;
        Some(rates.products.first()?.rate)
    }
}
