//! What the machines of all processes offer, asked and measured.

use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{
        BuildError, NamedDevice,
        device::{
            DeviceError, DeviceFacts, DeviceRates, Link, device_facts, measure_link, measure_rates,
        },
    },
    train::{
        Processes, TrainError,
        run::show_count,
        settings::{cores, free_memory},
    },
};

use crate::{error::CliError, hardware, output};

/// Kinds of devices that a build may lack, or a machine.
const KINDS: [&str; 2] = ["wgpu", "cuda"];

/// A device, and what was found of it.
#[derive(Clone)]
pub struct Found {
    pub device: NamedDevice,
    pub known: Known,
}

/// What a process finds of a device.
#[derive(Clone, Serialize, Deserialize)]
pub struct Known {
    /// Or why it cannot be used.
    pub facts: Result<(DeviceFacts, DeviceRates), String>,
    /// The cores of its machine.
    pub cores: usize,
    /// The machine's name, if there are several processes.
    pub host: String,
}

/// The link between two devices, or the main memories of two processes, by their names.
#[derive(Clone, Serialize, Deserialize)]
pub struct MeasuredLink {
    pub from: String,
    pub to: String,
    pub latency: f64,
    pub bandwidth: f64,
}

/// The devices of all processes.
pub struct Survey {
    pub found: Vec<Found>,
    /// Between devices of a process.
    pub links: Vec<MeasuredLink>,
    /// From each process to the next one.
    pub process_links: Vec<Link>,
    /// Kinds of which there is no device, and why.
    pub absent: Vec<(String, String)>,
    /// Whether the user named the devices.
    pub is_chosen: bool,
}

/// What a process finds, by the names of its devices.
#[derive(Serialize, Deserialize)]
struct Own {
    found: Vec<(String, Known)>,
    links: Vec<MeasuredLink>,
    absent: Vec<(String, String)>,
}

impl Survey {
    /// Examines this process's devices, while the others wait, and theirs. Each calls this.
    pub fn of(
        devices: &[NamedDevice],
        (is_chosen, list_only): (bool, bool),
        processes: &Processes,
    ) -> Result<Self, CliError> {
        let mut all = Vec::new();
        for rank in 0..processes.size() {
            let is_turn = rank == processes.rank();
            let own = is_turn.then(|| Own::of(devices, list_only, processes));
            all.extend(processes.gather(own)?.into_iter().flatten());
        }
        let mut survey = Self {
            found: Vec::new(),
            links: Vec::new(),
            process_links: if list_only {
                Vec::new()
            } else {
                processes.links()?
            },
            absent: Vec::new(),
            is_chosen,
        };
        for own in &all {
            // What one process has is not absent.
            let is_absent = |(kind, _): &&(String, String)| {
                all.iter()
                    .all(|own| own.absent.iter().any(|(other, _)| other == kind))
            };
            let is_new = |(kind, _): &&(String, String)| {
                survey.absent.iter().all(|(known, _)| known != kind)
            };
            let absent = own.absent.iter().filter(is_absent).filter(is_new);
            let absent: Vec<_> = absent.cloned().collect();
            survey.absent.extend(absent);
        }
        for own in all {
            for (name, known) in own.found {
                let device = name.parse().map_err(TrainError::from)?;
                survey.found.push(Found { device, known });
            }
            survey.links.extend(own.links);
        }
        Ok(survey)
    }
}

impl Own {
    fn of(devices: &[NamedDevice], list_only: bool, processes: &Processes) -> Self {
        let mut found: Vec<(NamedDevice, Known)> = Vec::new();
        let rank = processes.rank();
        let (name, doing) = match processes.size() {
            1 => (None, String::new()),
            _ => (Some(rank), format!("process {rank}: ")),
        };
        let doing = doing + if list_only { "listing" } else { "measuring" };
        let shown = show_count(&doing, "device", devices.len());
        let free = free_memory();
        for device in devices {
            let known = found.iter().find(|(known, _)| known == device);
            let known = known.map(|(_, known)| known.clone());
            let known = known.unwrap_or_else(|| Known {
                facts: examine(device, list_only, free),
                cores: cores(),
                host: processes.host(rank),
            });
            found.push((device.clone(), known));
            shown(found.len());
        }
        let named = |device: &NamedDevice| match name {
            Some(rank) => format!("{rank}/{device}"),
            None => device.name.clone(),
        };
        let links = if list_only {
            Vec::new()
        } else {
            links(&found, &doing, named)
        };
        Self {
            links,
            absent: absent(devices),
            found: found
                .into_iter()
                .map(|(device, known)| (named(&device), known))
                .collect(),
        }
    }
}

/// Measures both directions between each two devices of this process.
fn links(
    found: &[(NamedDevice, Known)],
    doing: &str,
    named: impl Fn(&NamedDevice) -> String,
) -> Vec<MeasuredLink> {
    let usable = found.iter().filter(|(_, known)| known.facts.is_ok());
    let all: Vec<_> = usable.map(|(device, _)| device).collect();
    let is_first =
        |&index: &usize| (all[..index].iter()).all(|other| other.device != all[index].device);
    let unlike: Vec<_> = (0..all.len())
        .filter(is_first)
        .map(|index| all[index])
        .collect();
    let pairs: Vec<_> = (unlike.iter())
        .flat_map(|from| unlike.iter().map(move |to| (*from, *to)))
        .filter(|(from, to)| from.device != to.device)
        .collect();
    if pairs.is_empty() {
        return Vec::new();
    }
    let shown = show_count(doing, "link between them", pairs.len());
    let mut links = Vec::new();
    for (index, (from, to)) in pairs.into_iter().enumerate() {
        match measure_link(&from.device, &to.device) {
            Ok(Link { latency, bandwidth }) => links.push(MeasuredLink {
                from: named(from),
                to: named(to),
                latency,
                bandwidth,
            }),
            Err(error) => output::say(&format!("{error}\n")),
        }
        shown(index + 1);
    }
    links
}

impl Found {
    pub fn memory(&self) -> Option<u64> {
        self.known.facts.as_ref().ok()?.0.memory
    }

    pub fn is_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    pub fn is_in_main_memory(&self) -> bool {
        self.is_cpu() || matches!(&self.known.facts, Ok((facts, _)) if facts.software)
    }
}

/// Asks a device for facts, and measures it. `free` bytes of main memory are free.
fn examine(
    device: &NamedDevice,
    list_only: bool,
    free: Option<u64>,
) -> Result<(DeviceFacts, DeviceRates), String> {
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
    examine().map_err(|error: BuildError| error.to_string())
}

/// The kinds of which there is no device, and why.
fn absent(devices: &[NamedDevice]) -> Vec<(String, String)> {
    let unused = hardware::unused();
    let is_there = |kind: &str| devices.iter().any(|device| device.name.starts_with(kind));
    let why = |kind: &&'static str| {
        let why = match kind.parse::<NamedDevice>() {
            Err(DeviceError::NotCompiled { feature, .. }) => {
                let unused = unused.iter().find(|unused| unused.feature == feature);
                let found = unused.map(|unused| format!(", but {}", unused.found));
                let found = found.unwrap_or_default();
                format!("not in this build{found}; build with --features {feature}")
            }
            Err(DeviceError::NoDriver { install, .. }) => format!("none was found. {install}"),
            Err(other) => other.to_string(),
            Ok(_) => return None, // other devices were named
        };
        Some(((*kind).to_owned(), why))
    };
    let missing = KINDS.iter().filter(|kind| !is_there(kind));
    missing.filter_map(why).collect()
}
