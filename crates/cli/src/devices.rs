//! `stovepipe devices`: what this build and this machine offer, and what they do in a second.

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use serde_json::{Value, json};
use stovepipe::{
    pipeline::{
        BuildError, DeviceError, DeviceFacts, DeviceRates, NamedDevice, device_facts, measure_link,
        measure_rates,
    },
    plan::{DeviceSpec, LinkLevel, Machine},
    train::{TrainError, free_memory, show_count},
};

use crate::{
    error::CliError,
    output::{self, Align, Table},
};

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

/// What lies between two devices, by their places: seconds, and bytes a second.
struct Way {
    from: usize,
    to: usize,
    latency: f64,
    bandwidth: f64,
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
        let shown = show_count(doing, "devices", devices.len());
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
                Ok((latency, bandwidth)) => ways.push(Way {
                    from,
                    to,
                    latency,
                    bandwidth,
                }),
                Err(error) => eprintln!("{error}"),
            }
            shown(index + 1);
        }
        self.ways = ways;
    }

    fn name(&self, index: usize) -> &str {
        &self.found[index].device.name
    }

    /// What a planner has to know of the devices that can be used. The CPU by another name is left out unless
    /// somebody asked for it.
    fn machine(&self) -> Option<Machine> {
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

    fn text(&self) -> String {
        let mut table = Table::new(&[
            ("device", Align::Left),
            ("is", Align::Left),
            ("memory", Align::Right),
            ("f32", Align::Right),
            ("bf16", Align::Right),
            ("f16", Align::Right),
            ("from host", Align::Right),
            ("to host", Align::Right),
        ]);
        for found in &self.found {
            table.row(found.row());
        }
        let mut text = format!("{table}");
        if !self.ways.is_empty() {
            text += &format!("\n{}", self.way_table());
        }
        let refused = self.found.iter().filter_map(|found| {
            let error = found.facts.as_ref().err()?;
            Some(format!("{}: {error}\n", found.device))
        });
        let absent = self
            .absent
            .iter()
            .map(|(kind, why)| format!("{kind}: {why}\n"));
        let notes: String = refused.chain(absent).collect();
        if !notes.is_empty() {
            text += &format!("\n{notes}");
        }
        text
    }

    fn way_table(&self) -> Table {
        let mut table = Table::new(&[
            ("from", Align::Left),
            ("to", Align::Left),
            ("bandwidth", Align::Right),
            ("latency", Align::Right),
        ]);
        for way in &self.ways {
            table.row(vec![
                self.name(way.from).to_owned(),
                self.name(way.to).to_owned(),
                bytes_a_second(way.bandwidth),
                output::seconds(way.latency),
            ]);
        }
        table
    }

    fn json(&self) -> Value {
        let ways = self.ways.iter().map(|way| {
            json!({
                "from": self.name(way.from),
                "to": self.name(way.to),
                "latency": way.latency,
                "bandwidth": way.bandwidth,
            })
        });
        let absent = self.absent.iter();
        json!({
            "devices": self.found.iter().map(Found::json).collect::<Vec<_>>(),
            "links": ways.collect::<Vec<_>>(),
            "absent": absent.map(|(kind, why)| json!({ "kind": kind, "why": why })).collect::<Vec<_>>(),
        })
    }
}

impl Found {
    fn memory(&self) -> Option<u64> {
        self.facts.as_ref().ok()?.0.memory
    }

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

    fn is_cpu(&self) -> bool {
        self.device.name.starts_with("cpu")
    }

    fn is_in_main_memory(&self) -> bool {
        self.is_cpu() || matches!(&self.facts, Ok((facts, _)) if facts.software)
    }

    /// Operations a second of single floats.
    fn rate(&self) -> Option<f64> {
        let (_, rates) = self.facts.as_ref().ok()?;
        Some(rates.products.first()?.rate)
    }

    fn kind(&self) -> String {
        match &self.facts {
            Err(_) => "cannot be used, see below".to_owned(),
            Ok(_) if self.is_cpu() => {
                let threads = self.device.threads.unwrap_or(1);
                output::count(threads, "thread", "threads")
            }
            Ok((facts, _)) => {
                let hardware = facts.hardware.as_deref().unwrap_or_default();
                let software = if facts.software {
                    " (software, on the CPU)"
                } else {
                    ""
                };
                format!("{hardware}{software}")
            }
        }
    }

    fn row(&self) -> Vec<String> {
        let free = if self.is_in_main_memory() {
            " free"
        } else {
            ""
        };
        let memory = (self.memory()).map(|memory| format!("{}{free}", output::bytes(memory)));
        let none = DeviceRates::default();
        let rates = self.facts.as_ref().map_or(&none, |(_, rates)| rates);
        let product = |dtype: &str| {
            let product = rates.products.iter().find(|product| product.dtype == dtype);
            product.map_or("-".to_owned(), |product| operations_a_second(product.rate))
        };
        let copy = |rate: Option<f64>| rate.map_or("-".to_owned(), bytes_a_second);
        vec![
            self.device.name.clone(),
            self.kind(),
            memory.unwrap_or_else(|| "unknown".to_owned()),
            product("f32"),
            product("bf16"),
            product("f16"),
            copy(rates.to_device),
            copy(rates.to_host),
        ]
    }

    fn json(&self) -> Value {
        let mut value = match &self.facts {
            Ok((facts, rates)) => json!({
                "hardware": facts.hardware,
                "software": facts.software,
                "memory": self.memory(),
                "largest_tensor": facts.largest_tensor,
                "products": rates.products,
                "from_host": rates.to_device,
                "to_host": rates.to_host,
            }),
            Err(error) => json!({ "error": error }),
        };
        value["name"] = json!(self.device.name);
        if self.is_cpu() {
            value["threads"] = json!(self.device.threads.unwrap_or(1));
        }
        value
    }
}

/// Where `free` bytes of main memory are free.
fn look_at(device: &NamedDevice, list_only: bool, free: Option<u64>) -> Found {
    let look = || {
        let mut facts = device_facts(device)?;
        if facts.software || device.name.starts_with("cpu") {
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

fn operations_a_second(rate: f64) -> String {
    match rate {
        1e13.. => format!("{:.1} TFLOP/s", rate / 1e12),
        _ => format!("{:.1} GFLOP/s", rate / 1e9),
    }
}

fn bytes_a_second(rate: f64) -> String {
    format!("{:.1} GB/s", rate / 1e9)
}
