//! `stovepipe devices`: what this build and this machine offer, and how fast it is.

mod machine;
mod shown;

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::{
        BuildError, NamedDevice,
        device::{
            DeviceError, DeviceFacts, DeviceRates, Link, device_facts, measure_link, measure_rates,
        },
    },
    train::{run::show_count, settings::free_memory},
};

use crate::{error::CliError, hardware, output, suggest};

/// Kinds of devices that a build may lack, or a machine.
const KINDS: [&str; 2] = ["wgpu", "cuda"];

/// Which devices, and what is done with them.
#[derive(Clone, Debug, Args)]
struct Request {
    /// Devices, one for each worker, such as cpu,cpu:threads=4,wgpu:0,cuda:0 [default: each that there is]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Write the machine file, for `plan --machine FILE` and `train --machine FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// List devices without measuring them
    #[arg(long, conflicts_with = "out")]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    Request::augment_args(Command::new("devices"))
        .about("List and measure the devices of this machine")
        .long_about(None)
}

/// Lists, measures, prints and writes.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let request = Request::from_arg_matches(matches)?;
    let devices = if request.devices.is_empty() {
        NamedDevice::offered()
    } else {
        suggest::devices(&request.devices)?
    };
    let survey = Survey::of(&devices, &request);
    if request.json {
        output::print_json(&survey.json());
    } else {
        output::print(&survey.text());
    }
    if let Some(path) = &request.out {
        let machine = survey.machine().ok_or(CliError::NoDevices)?;
        output::write(path, &machine.to_toml())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A device, and what was measured.
#[derive(Clone)]
struct Found {
    device: NamedDevice,
    /// Or why it cannot be used.
    facts: Result<(DeviceFacts, DeviceRates), String>,
}

/// The link between two devices, by their places.
struct MeasuredLink {
    from: usize,
    to: usize,
    link: Link,
}

struct Survey {
    found: Vec<Found>,
    links: Vec<MeasuredLink>,
    absent: Vec<(&'static str, String)>,
    /// Whether the user named the devices.
    is_chosen: bool,
}

impl Survey {
    fn of(devices: &[NamedDevice], request: &Request) -> Self {
        let mut found: Vec<Found> = Vec::new();
        let doing = if request.list { "listing" } else { "measuring" };
        let what = if devices.len() == 1 {
            "device"
        } else {
            "devices"
        };
        let shown = show_count(doing, what, devices.len());
        let free = free_memory();
        for device in devices {
            let known = found.iter().find(|known| known.device == *device);
            found.push(match known {
                Some(known) => known.clone(),
                None => examine(device, request.list, free),
            });
            shown(found.len());
        }
        let mut survey = Self {
            found,
            links: Vec::new(),
            absent: absent(devices),
            is_chosen: !request.devices.is_empty(),
        };
        if !request.list {
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
    fn memory(&self) -> Option<u64> {
        self.facts.as_ref().ok()?.0.memory
    }

    fn is_cpu(&self) -> bool {
        self.device.is_cpu()
    }

    fn is_in_main_memory(&self) -> bool {
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
