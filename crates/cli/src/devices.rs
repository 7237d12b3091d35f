//! `stovepipe devices`: what this build and this machine offer, and what they do in a second.

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
    train::{TrainError, run::show_count, settings::free_memory},
};

use crate::{error::CliError, output};

/// Kinds of devices that a build may lack, or a machine.
const KINDS: [&str; 2] = ["wgpu", "cuda"];

/// Which devices, and what becomes of it.
#[derive(Clone, Debug, Args)]
struct Request {
    /// Devices to look at, one for each worker; one may be named several times (cpu, cpu:threads=4, wgpu:0,
    /// cuda:0) [default: each that there is]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Write the machine file, for `plan --machine FILE` and `train --machine FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Say what there is, and measure nothing
    #[arg(long, conflicts_with = "out")]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    Request::augment_args(Command::new("devices"))
        .about("List and measure devices, and write the planner's machine file")
        .long_about(None)
}

/// Lists, measures, prints and writes.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let request = Request::from_arg_matches(matches)?;
    let devices = match request.devices.is_empty() {
        true => NamedDevice::offered(),
        false => named(&request.devices)?,
    };
    let survey = Survey::of(&devices, &request);
    match request.json {
        true => output::print_json(&survey.json()),
        false => output::print(&survey.text()),
    }
    if let Some(path) = &request.out {
        let machine = survey.machine().ok_or(CliError::NoDevices)?;
        output::write(path, &machine.to_toml())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn named(names: &[String]) -> Result<Vec<NamedDevice>, CliError> {
    let devices = names.iter().map(|name| name.parse());
    let devices = devices.collect::<Result<Vec<_>, DeviceError>>();
    Ok(devices.map_err(TrainError::from)?)
}

/// What was found out about a device.
#[derive(Clone)]
struct Found {
    device: NamedDevice,
    /// Or why it cannot be used.
    facts: Result<(DeviceFacts, DeviceRates), String>,
}

/// What lies between two devices, by their places.
struct Way {
    from: usize,
    to: usize,
    link: Link,
}

struct Survey {
    found: Vec<Found>,
    ways: Vec<Way>,
    absent: Vec<(&'static str, String)>,
    /// Whether the user said which devices.
    is_chosen: bool,
}

impl Survey {
    fn of(devices: &[NamedDevice], request: &Request) -> Self {
        let mut found: Vec<Found> = Vec::new();
        let doing = if request.list {
            "looking at"
        } else {
            "measuring"
        };
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
                None => look_at(device, request.list, free),
            });
            shown(found.len());
        }
        let mut survey = Self {
            found,
            ways: Vec::new(),
            absent: absent(devices),
            is_chosen: !request.devices.is_empty(),
        };
        if !request.list {
            survey.measure_ways();
        }
        survey
    }

    /// Measures each way between two devices that are not the same.
    fn measure_ways(&mut self) {
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
        let shown = show_count("measuring", "ways between them", pairs.len());
        let mut ways = Vec::new();
        for (index, &(from, to)) in pairs.iter().enumerate() {
            match measure_link(device(from), device(to)) {
                Ok(link) => ways.push(Way { from, to, link }),
                Err(error) => eprintln!("{error}"),
            }
            shown(index + 1);
        }
        self.ways = ways;
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

/// Where `free` bytes of main memory are free.
fn look_at(device: &NamedDevice, list_only: bool, free: Option<u64>) -> Found {
    let look = || {
        let mut facts = device_facts(device)?;
        if facts.software || device.is_cpu() {
            facts.memory = free;
        }
        let rates = match list_only {
            true => DeviceRates::default(),
            false => measure_rates(device)?,
        };
        Ok((facts, rates))
    };
    Found {
        device: device.clone(),
        facts: look().map_err(|error: BuildError| error.to_string()),
    }
}

/// Why there is no device of a kind, of kinds that none is of.
fn absent(devices: &[NamedDevice]) -> Vec<(&'static str, String)> {
    let is_there = |kind: &str| devices.iter().any(|device| device.name.starts_with(kind));
    let why = |kind: &&'static str| {
        let why = match kind.parse::<NamedDevice>() {
            Err(DeviceError::NotCompiled { feature, .. }) => {
                format!("not in this build; build with --features {feature}")
            }
            Err(DeviceError::NoDriver { install, .. }) => format!("none was found. {install}"),
            Err(other) => other.to_string(),
            Ok(_) => return None, // somebody asked for other devices
        };
        Some((*kind, why))
    };
    KINDS
        .iter()
        .filter(|kind| !is_there(kind))
        .filter_map(why)
        .collect()
}
