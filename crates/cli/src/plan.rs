//! `stovepipe plan`: where to cut, in which order to run, what to compute again, and what it comes to.

mod chain;
mod file;
mod graph;
mod measure;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{ArgMatches, Args, Command, FromArgMatches, value_parser};
use stovepipe::{
    pipeline::Precision,
    plan::{DeviceSpec, LayerGraph, LinkLevel, Machine, OptimizerState, Profile},
    schedule::{Recompute, Rule},
};

use crate::{data::DataSettings, error::CliError, model::ModelSettings, output};

pub use file::PlanFile;

/// More would take minutes to plan for.
const MOST_WORKERS: usize = 4096;

const MACHINE: &str = "Machine";
const CHOICE: &str = "What to choose from";
const MEASURING: &str = "Measuring";

/// What to plan.
#[derive(Clone, Debug, Args)]
pub struct Request {
    /// What each layer costs: a profile as --measure writes it (TOML), or PipeDream's graph.txt
    #[arg(long, value_name = "FILE", default_value = "profile.toml")]
    profile: PathBuf,
    /// Devices and links (TOML), as `devices --out` writes them, instead of the flags below
    #[arg(long, value_name = "FILE", help_heading = MACHINE,
        conflicts_with_all = ["workers", "bandwidth", "levels", "memory", "latency"])]
    machine: Option<PathBuf>,
    /// Devices, all alike [default: 2]
    #[arg(long, value_name = "N", help_heading = MACHINE)]
    workers: Option<usize>,
    /// Bytes a second between devices; with several levels one for each, the innermost first
    /// [default: no limit]
    #[arg(long, value_name = "B", num_args = 1.., value_delimiter = ',', help_heading = MACHINE)]
    bandwidth: Vec<f64>,
    /// Devices, then groups of them, that each level joins: 4,2 is two machines of four
    /// [default: all on one level]
    #[arg(long, value_name = "N,N", value_delimiter = ',', help_heading = MACHINE)]
    levels: Vec<usize>,
    /// Seconds until a message arrives
    #[arg(long, value_name = "S", default_value_t = 0.0, help_heading = MACHINE)]
    latency: f64,
    /// Bytes that each device holds [default: enough]
    #[arg(long, value_name = "BYTES", help_heading = MACHINE)]
    memory: Option<u64>,
    /// Samples of a mini-batch [default: 8 times those of the profile]
    #[arg(long, value_name = "N", help_heading = CHOICE)]
    batch_size: Option<usize>,
    /// Micro-batches of a mini-batch [default: powers of two]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CHOICE)]
    micro_batches: Vec<usize>,
    /// Schedules by name [default: all that give the result of one device]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CHOICE)]
    schedules: Vec<Rule>,
    /// What to compute again: always, except-last, never [default: whatever is best]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CHOICE)]
    recompute: Vec<Recompute>,
    /// Let several workers share a stage (1f1b; the engine does not run it yet)
    #[arg(long, help_heading = CHOICE)]
    replicas: bool,
    /// Numbers that training keeps of each parameter: 2 for Adam, 1 for momentum; one more each for averaged
    /// weights and for gradients that are accumulated
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = value_parser!(u8).range(0..=4),
        help_heading = CHOICE)]
    optimizer_state: u8,
    /// Measure a built-in model here first, and write the profile
    #[arg(long, help_heading = MEASURING)]
    measure: bool,
    /// Devices, one for each worker (cpu, wgpu:0, cuda:0) [default: cpu for each]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = MEASURING)]
    devices: Vec<String>,
    /// CPU threads of each worker
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = MEASURING)]
    threads_per_stage: usize,
    /// Numbers that workers compute in: f32, or bf16 or f16 in mixed precision
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = MEASURING)]
    precision: Precision,
    /// Write what was found out about the devices, too
    #[arg(long, value_name = "FILE", requires = "measure", help_heading = MEASURING)]
    write_machine: Option<PathBuf>,
    /// Write the plan, for `train --plan FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    // Settings with defaults of their own, over which flags go.
    #[arg(skip)]
    model: ModelSettings,
    #[arg(skip)]
    data: DataSettings,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = Request::augment_args(Command::new("plan"));
    let command = DataSettings::augment_args(ModelSettings::augment_args(command));
    output::with_negative_numbers(crate::settings::with_defaults(command))
        .about("Find the fastest pipeline that fits: cut, schedule, micro-batches, recomputation")
        .long_about(None)
}

/// Measures if asked to, plans, and prints the plan.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let mut request = Request::from_arg_matches(matches)?;
    request.model.update_from_arg_matches(matches)?;
    request.data.update_from_arg_matches(matches)?;
    request.data.settle()?;
    request.model.settle(request.data.image_size())?;
    let mut machine = request.machine()?;
    if request.measure {
        measure::measure(&request, &mut machine)?;
    }
    let text = output::read(&request.profile)?;
    let unreadable = |reason: String| CliError::Unreadable {
        path: request.profile.clone(),
        reason,
    };
    match is_graph(&text) {
        true => {
            let graph = LayerGraph::from_text(&text).map_err(|e| unreadable(e.to_string()))?;
            graph::plan(&request, &graph, &machine)?;
        }
        false => {
            let profile = Profile::from_toml(&text).map_err(|e| unreadable(e.to_string()))?;
            chain::plan(&request, &profile, &machine)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// A machine file.
pub fn read_machine(path: &Path) -> Result<Machine, CliError> {
    Machine::from_toml(&output::read(path)?).map_err(|error| CliError::Unreadable {
        path: path.to_owned(),
        reason: error.to_string(),
    })
}

/// PipeDream's files begin with a node or an edge between two.
fn is_graph(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.is_some_and(|line| line.contains(" -- "))
}

impl Request {
    fn machine(&self) -> Result<Machine, CliError> {
        if let Some(path) = &self.machine {
            return read_machine(path);
        }
        let product = || self.levels.iter().copied().fold(1, usize::saturating_mul);
        let workers = match (self.workers, self.levels.is_empty(), self.devices.len()) {
            (Some(workers), ..) => workers,
            (None, false, _) => product(),
            (None, true, 0) => 2,
            (None, true, devices) => devices,
        };
        if workers > MOST_WORKERS {
            return Err(CliError::TooManyWorkers {
                workers,
                most: MOST_WORKERS,
            });
        }
        if !self.levels.is_empty() && product() != workers {
            return Err(CliError::Levels {
                joined: product(),
                workers,
            });
        }
        if !matches!(self.devices.len(), 0 | 1) && self.devices.len() != workers {
            return Err(CliError::DeviceCount {
                devices: self.devices.len(),
                workers,
            });
        }
        let name = |worker: usize| {
            let own = self.devices.get(worker).or(self.devices.first());
            own.map_or("cpu", String::as_str).trim().to_owned()
        };
        let device = |worker| DeviceSpec {
            name: name(worker),
            speed: 1.0,
            memory: self.memory,
        };
        Ok(Machine {
            devices: (0..workers).map(device).collect(),
            levels: self.link_levels(workers)?,
        })
    }

    fn link_levels(&self, workers: usize) -> Result<Vec<LinkLevel>, CliError> {
        if self.bandwidth.is_empty() && self.latency == 0.0 {
            return Ok(Vec::new());
        }
        let levels = match self.levels.is_empty() {
            true => vec![workers],
            false => self.levels.clone(),
        };
        let given = self.bandwidth.len();
        if given > 1 && given != levels.len() {
            return Err(CliError::Bandwidths {
                given,
                levels: levels.len(),
            });
        }
        let number = |what, value: f64, is_valid: bool| match is_valid {
            true => Ok(value),
            false => Err(CliError::Number { what, value }),
        };
        let level = |(index, &workers): (usize, &usize)| {
            let bandwidth = self.bandwidth.get(index).or(self.bandwidth.first());
            let bandwidth = bandwidth.copied().unwrap_or(f64::MAX);
            let latency = self.latency;
            Ok(LinkLevel {
                workers,
                bandwidth: number(
                    "--bandwidth",
                    bandwidth,
                    bandwidth.is_finite() && bandwidth > 0.0,
                )?,
                latency: number("--latency", latency, latency.is_finite() && latency >= 0.0)?,
            })
        };
        levels.iter().enumerate().map(level).collect()
    }

    /// In mixed precision a step computes on copies of half the size, which count as a whole number here.
    fn state(&self) -> OptimizerState {
        let copies = u8::from(self.precision != Precision::F32);
        OptimizerState(self.optimizer_state + copies)
    }

    /// Prints a plan in the way that was asked for.
    fn print(&self, text: &str, json: &serde_json::Value) {
        match self.json {
            true => output::print_json(json),
            false => output::print(text),
        }
    }
}
