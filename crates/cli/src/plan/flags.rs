//! The flags of `plan`, and the machine that they describe.

use std::path::PathBuf;

use clap::Args;
use stovepipe::{
    pipeline::Precision,
    plan::{DeviceSpec, LinkLevel, Machine, OptimizerState},
    schedule::{Rule, count},
    train::settings::{OffloadSetting, RecomputeSetting},
};

use crate::{
    data::check,
    error::{CliError, usage},
    files::read_machine,
    suggest,
};

/// More would take minutes to plan for.
const MOST_WORKERS: usize = 4096;

const MACHINE: &str = "Machine";
const CHOICE: &str = "What to choose from";
const MEASURING: &str = "Measuring";

#[derive(Clone, Debug, Args)]
pub struct PlanFlags {
    /// What each layer costs: a profile as --measure writes it (TOML), or PipeDream's graph.txt
    #[arg(long, value_name = "FILE", default_value = "profile.toml")]
    pub profile: PathBuf,
    /// Devices and links (TOML), as `devices --out` writes them, instead of the flags below
    #[arg(long, value_name = "FILE", help_heading = MACHINE,
        conflicts_with_all = ["workers", "bandwidth", "levels", "memory", "latency", "devices"])]
    pub machine: Option<PathBuf>,
    /// Number of equal devices [default: 2]
    #[arg(long, value_name = "N", help_heading = MACHINE)]
    pub workers: Option<usize>,
    /// Bytes a second between devices; with several levels one for each, innermost first [default: no limit]
    #[arg(long, value_name = "BYTES", num_args = 1.., value_delimiter = ',', help_heading = MACHINE)]
    pub bandwidth: Vec<f64>,
    /// Devices, then groups, that each level joins: 4,2 is two machines of four [default: one level]
    #[arg(long, value_name = "N,N", value_delimiter = ',', help_heading = MACHINE)]
    pub levels: Vec<usize>,
    /// Seconds until a message arrives
    #[arg(long, value_name = "S", default_value_t = 0.0, help_heading = MACHINE)]
    pub latency: f64,
    /// Memory of each device in bytes [default: no limit]
    #[arg(long, value_name = "BYTES", help_heading = MACHINE)]
    pub memory: Option<u64>,
    /// Samples of a mini-batch [default: 8 times those of the profile]
    #[arg(long, value_name = "N", help_heading = CHOICE)]
    pub batch_size: Option<usize>,
    /// Micro-batches of a mini-batch [default: powers of two]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CHOICE)]
    pub micro_batches: Vec<usize>,
    /// Schedules; pipedream alone, to see what it would gain [default: all that give the result of one device]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CHOICE)]
    pub schedules: Vec<Rule>,
    /// What to recompute: always, except-last, never, by-layer [default: the fastest that fits]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = CHOICE)]
    pub recompute: Vec<RecomputeSetting>,
    /// Let there be replicas of the whole pipeline, or of stages (1f1b)
    #[arg(long, help_heading = CHOICE)]
    pub replicas: bool,
    /// Numbers kept for each parameter: 2 for Adam, 1 for momentum, 1 more each for --ema and --accumulate
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = CHOICE)]
    pub optimizer_state: u8,
    /// What lies off its device: optimizer, for these numbers and gradients, or nothing
    #[arg(long, value_enum, default_value_t = OffloadSetting::None, help_heading = CHOICE)]
    pub offload: OffloadSetting,
    /// Bytes a second between a device and where that lies, one way at a time [default: measured at --offload-to, else it
    /// takes no time]
    #[arg(long, value_name = "BYTES/S", help_heading = CHOICE)]
    pub offload_bandwidth: Option<f64>,
    /// Measure a built-in model here first, and write the profile
    #[arg(long, help_heading = MEASURING)]
    pub measure: bool,
    /// Measure the model that these weights are for: a folder of the Hugging Face Hub, perhaps with config.json alone, or a run
    #[arg(long, value_name = "PATH", requires = "measure", help_heading = MEASURING)]
    pub from: Option<PathBuf>,
    /// Start mpirun with this many processes on this machine, which measure their devices and links
    #[arg(long, value_name = "N", requires = "measure", help_heading = MEASURING)]
    pub processes: Option<usize>,
    /// Devices, one for each worker (cpu, wgpu:0, cuda:0) [default: cpu for each]
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = MEASURING)]
    pub devices: Vec<String>,
    /// CPU threads of each worker
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = MEASURING)]
    pub threads_per_stage: usize,
    /// Measure how fast --offload moves bytes: to the memory of the host (host), or to files in a folder
    #[arg(long, value_name = "host|DIR", requires = "measure", help_heading = MEASURING)]
    pub offload_to: Option<PathBuf>,
    /// Type to compute in: f32, or bf16 or f16 in mixed precision
    #[arg(long, value_name = "TYPE", default_value = "f32", help_heading = MEASURING)]
    pub precision: Precision,
    /// Write the machine file, too
    #[arg(long, value_name = "FILE", requires = "measure", help_heading = MEASURING)]
    pub write_machine: Option<PathBuf>,
    /// Write the plan, for `train --plan FILE`
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl PlanFlags {
    pub fn machine(&self) -> Result<Machine, CliError> {
        check(
            "optimizer-state",
            self.optimizer_state,
            |n| n <= 4,
            "from 0 to 4",
        )?;
        let mut machine = self.usual_machine()?;
        if let Some(bandwidth) = self.offload_bandwidth {
            let is_bandwidth = |bytes: f64| bytes.is_finite() && bytes > 0.0;
            check(
                "offload-bandwidth",
                bandwidth,
                is_bandwidth,
                "greater than 0",
            )?;
            let devices = machine.devices.iter_mut();
            devices.for_each(|device| device.store = Some(bandwidth));
        }
        Ok(machine)
    }

    fn usual_machine(&self) -> Result<Machine, CliError> {
        if let Some(path) = &self.machine {
            return read_machine(path);
        }
        if self.measure {
            suggest::devices(&self.devices)?;
        }
        let product = || self.levels.iter().copied().fold(1, usize::saturating_mul);
        let workers = match (self.workers, self.levels.is_empty(), self.devices.len()) {
            (Some(workers), ..) => workers,
            (None, false, _) => product(),
            (None, true, 0) => 2,
            (None, true, devices) => devices,
        };
        if workers > MOST_WORKERS {
            return Err(usage!(
                "{workers} workers are more than the {MOST_WORKERS} that can be planned for"
            ));
        }
        if !self.levels.is_empty() && product() != workers {
            let joined = product();
            return Err(usage!(
                "--levels join {}, but there are {workers} workers",
                count(joined, "device")
            ));
        }
        let devices = self.devices.len();
        if devices > 1 && devices != workers {
            return Err(usage!(
                "{devices} devices for {}: name one for all, or one for each",
                count(workers, "worker")
            ));
        }
        let name = |worker: usize| {
            let own = self.devices.get(worker).or(self.devices.first());
            own.map_or("cpu", String::as_str).trim().to_owned()
        };
        let device = |worker| DeviceSpec {
            name: name(worker),
            speed: 1.0,
            memory: self.memory,
            store: None,
        };
        let devices = (0..workers).map(device).collect();
        let levels = self.link_levels(workers)?;
        Ok(Machine { devices, levels })
    }

    fn link_levels(&self, workers: usize) -> Result<Vec<LinkLevel>, CliError> {
        if self.bandwidth.is_empty() && self.latency == 0.0 {
            return Ok(Vec::new());
        }
        let mut levels = self.levels.clone();
        if levels.is_empty() {
            levels.push(workers);
        }
        let (given, expected) = (self.bandwidth.len(), levels.len());
        if given > 1 && given != expected {
            return Err(usage!(
                "{given} bandwidths for {}: give one for all, or one for each",
                count(expected, "level")
            ));
        }
        let level = |(index, &workers): (usize, &usize)| {
            let bandwidth = self.bandwidth.get(index).or(self.bandwidth.first());
            let bandwidth = bandwidth.copied().unwrap_or(f64::MAX);
            let latency = self.latency;
            let is_bandwidth = |bytes: f64| bytes.is_finite() && bytes > 0.0;
            let is_latency = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
            check("bandwidth", bandwidth, is_bandwidth, "greater than 0")?;
            check("latency", latency, is_latency, "at least 0")?;
            Ok(LinkLevel {
                workers,
                bandwidth,
                latency,
            })
        };
        levels.iter().enumerate().map(level).collect()
    }

    pub fn state(&self) -> OptimizerState {
        let is_offloaded = self.offload == OffloadSetting::Optimizer;
        OptimizerState {
            on_device: self.optimizer_state * u8::from(!is_offloaded),
            offloaded: self.optimizer_state * u8::from(is_offloaded),
            offloads_gradients: is_offloaded,
            accumulates: false,
        }
    }
}
