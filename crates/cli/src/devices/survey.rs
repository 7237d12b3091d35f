//! What this machine offers, asked and measured.

use stovepipe::{
    pipeline::{
        BuildError, NamedDevice,
        device::{
            DeviceError, DeviceFacts, DeviceRates, Link, device_facts, measure_link, measure_rates,
        },
    },
    train::{run::show_count, settings::free_memory},
};

use crate::hardware;

/// Kinds of devices that a build may lack, or a machine.
const KINDS: [&str; 2] = ["wgpu", "cuda"];

/// A device, and what was measured.
#[derive(Clone)]
pub struct Found {
    pub device: NamedDevice,
    /// Or why it cannot be used.
    pub facts: Result<(DeviceFacts, DeviceRates), String>,
}

/// The link between two devices, by their places.
pub struct MeasuredLink {
    pub from: usize,
    pub to: usize,
    pub link: Link,
}

/// All devices, and the links between them.
pub struct Survey {
    pub found: Vec<Found>,
    pub links: Vec<MeasuredLink>,
    /// Kinds of which there is no device, and why.
    pub absent: Vec<(&'static str, String)>,
    /// Whether the user named the devices.
    pub is_chosen: bool,
}

impl Survey {
    pub fn of(devices: &[NamedDevice], is_chosen: bool, list_only: bool) -> Self {
        let mut found: Vec<Found> = Vec::new();
        let doing = if list_only { "listing" } else { "measuring" };
        let what = if devices.len() == 1 {
            "device"
        } else {
            "devices"
        };
        let shown = show_count(doing, what, devices.len());
        let free = free_memory();
        for device in devices {
            let known = found.iter().find(|known| known.device == *device);
            let known = known.cloned();
            found.push(known.unwrap_or_else(|| examine(device, list_only, free)));
            shown(found.len());
        }
        let mut survey = Self {
            found,
            links: Vec::new(),
            absent: absent(devices),
            is_chosen,
        };
        if !list_only {
            survey.measure_links();
        }
        survey
    }

    /// Measures both directions between each two devices.
    fn measure_links(&mut self) {
        let usable = |index: &usize| self.found[*index].facts.is_ok();
        let all: Vec<_> = (0..self.found.len()).filter(usable).collect();
        let device = |index: usize| &self.found[index].device.device;
        let is_first = |&index: &usize| (0..index).all(|other| device(other) != device(index));
        let unlike: Vec<_> = all.into_iter().filter(is_first).collect();
        let pairs: Vec<_> = (unlike.iter())
            .flat_map(|&from| unlike.iter().map(move |&to| (from, to)))
            .filter(|(from, to)| from != to)
            .collect();
        if pairs.is_empty() {
            return;
        }
        let shown = show_count("measuring", "links between them", pairs.len());
        let mut links = Vec::new();
        for (index, &(from, to)) in pairs.iter().enumerate() {
            match measure_link(device(from), device(to)) {
                Ok(link) => links.push(MeasuredLink { from, to, link }),
                Err(error) => eprintln!("{error}"),
            }
            shown(index + 1);
        }
        self.links = links;
    }
}

impl Found {
    pub fn memory(&self) -> Option<u64> {
        self.facts.as_ref().ok()?.0.memory
    }

    pub fn is_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    pub fn is_in_main_memory(&self) -> bool {
        self.is_cpu() || matches!(&self.facts, Ok((facts, _)) if facts.software)
    }
}

/// Asks a device for facts, and measures it. `free` bytes of main memory are free.
fn examine(device: &NamedDevice, list_only: bool, free: Option<u64>) -> Found {
    let examine = || {
        let mut facts = device_facts(device)?;
        if facts.software || device.is_cpu() {
            facts.memory = free;
        }
        let rates = if list_only {
            DeviceRates::default()
        } else {
            measure_rates(device)?
        };
        Ok((facts, rates))
    };
    Found {
        device: device.clone(),
        facts: examine().map_err(|error: BuildError| error.to_string()),
    }
}

/// The kinds of which there is no device, and why.
fn absent(devices: &[NamedDevice]) -> Vec<(&'static str, String)> {
    let unused = hardware::unused();
    let is_there = |kind: &str| devices.iter().any(|device| device.name.starts_with(kind));
    let why = |kind: &&'static str| {
        let why = match kind.parse::<NamedDevice>() {
            Err(DeviceError::NotCompiled { feature, .. }) => {
                let unused = unused.iter().find(|unused| unused.feature == feature);
                let found =
                    unused.map_or(String::new(), |unused| format!(", but {}", unused.found));
                format!("not in this build{found}; build with --features {feature}")
            }
            Err(DeviceError::NoDriver { install, .. }) => format!("none was found. {install}"),
            Err(other) => other.to_string(),
            Ok(_) => return None, // other devices were named
        };
        Some((*kind, why))
    };
    KINDS
        .iter()
        .filter(|kind| !is_there(kind))
        .filter_map(why)
        .collect()
}
