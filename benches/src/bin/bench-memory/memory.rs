//! How large a network trains within a budget of memory: Table 1 of the GPipe paper.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory memory`

mod bars;
mod papers;
mod trained;

use std::{path::PathBuf, sync::OnceLock};

use burn::tensor::Device;
use clap::Args;
use serde::Serialize;
use stovepipe::{pipeline::NamedDevice, train::settings::OptimizerSetting};
use stovepipe_benches::{
    Failure,
    footprint::{
        case::{Case, Images, Network, Way},
        largest::largest,
        picture::{self, Panel},
        predicted::Predictor,
        trial::Trial,
    },
    memory::Counter,
    pace::Pace,
    report::Report,
};

/// The device that keeps accounts of its own; none if the allocator is asked.
static ACCOUNTANT: OnceLock<Device> = OnceLock::new();

const MIB: f64 = (1 << 20) as f64;

/// The most filters that are asked about.
const WIDEST: usize = 4096;

/// How large a network trains within a budget of memory
#[derive(Args, Clone, Debug, Serialize)]
pub struct Flags {
    /// Folder for the figures, as JSON, Markdown and a picture
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// The device to train on: cpu, cuda:0, wgpu:0
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: String,
    /// What a device may have allocated, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    budget: u64,
    /// Height and width of images
    #[arg(long, value_name = "PIXELS", default_value_t = 64)]
    side: usize,
    /// Images in a mini-batch, and so the micro-batches of a pipeline
    #[arg(long, value_name = "N", default_value_t = 32)]
    images: usize,
    /// L of AmoebaNet-D(L, D)
    #[arg(long, value_name = "L", default_value_t = 18)]
    layers: usize,
    /// The search goes through multiples of so many filters
    #[arg(long, value_name = "D", default_value_t = 8)]
    step: usize,
    /// The largest number of devices that a network is cut for
    #[arg(long, value_name = "N", default_value_t = 8)]
    devices: usize,
    /// Who updates parameters
    #[arg(long, value_enum, default_value = "rmsprop")]
    optimizer: OptimizerSetting,
    /// Small sizes, to show that the program works
    #[arg(long)]
    quick: bool,
    /// What a child process is to try
    #[arg(long, hide = true)]
    #[serde(skip)]
    trial: Option<String>,
}

const NOTE: &str = "\
Naive-1 has the whole mini-batch in one piece and keeps all activations; pipeline-k is GPipe on k devices, a micro-batch
for each image, inputs of stages kept and everything else computed again. Trained: two steps with their updates, in a
process of its own, whose allocator gives it no more than the budget (on another device: whose memory pools come
to no more). Prediction: by the memory model, from layers of narrow networks and one or two images, each
measured alone. Stages of one process share its memory: k stages are held to k budgets together.";

pub fn main(mut flags: Flags) -> Result<(), Failure> {
    if flags.quick {
        flags = Flags {
            budget: 24,
            side: 32,
            images: 4,
            layers: 3,
            step: 4,
            devices: 2,
            ..flags
        };
    }
    let trial: Option<Trial> = flags
        .trial
        .as_deref()
        .map(serde_json::from_str)
        .transpose()?;
    let name = trial.as_ref().map_or(&flags.device, |trial| &trial.device);
    let device = name.parse::<NamedDevice>()?.device;
    if device.memory_pool_usage().is_some() {
        let _ = ACCOUNTANT.set(device.clone());
    }
    if let Some(trial) = &trial {
        return show_trial(trial);
    }
    let mut bench = Bench {
        report: Report::begin("memory", &flags)?,
        predictor: Predictor::measure(flags.side, flags.layers, &device, counter().now)?,
        pace: Pace::new(2 * 3 + flags.devices.ilog2() as usize),
        flags,
        panels: Vec::new(),
    };
    bench.report.note(NOTE);
    let trained = bench.largest()?;
    bench.items(&trained);
    bench.full_size()?;
    let Bench {
        report,
        flags,
        panels,
        ..
    } = bench;
    report.save(&flags.out)?;
    report.save_markdown(&flags.out)?;
    Ok(std::fs::write(
        flags.out.join("memory.svg"),
        picture::draw(&panels),
    )?)
}

/// The accounts of the device, or of this process.
fn counter() -> Counter {
    /// Tensors that there are, once the device has done what it was told, and what the pools took for them.
    fn of_pools() -> Option<[u64; 2]> {
        let device = ACCOUNTANT.get()?;
        device.sync().ok()?;
        let usage = device.memory_pool_usage()?;
        Some([usage.bytes_in_use, usage.bytes_reserved])
    }
    Counter {
        now: || {
            of_pools().map_or_else(
                || crate::ALLOCATOR.allocated(),
                |[in_use, _]| in_use as usize,
            )
        },
        most: || {
            of_pools().map_or_else(|| crate::ALLOCATOR.max_allocated(), |[_, all]| all as usize)
        },
    }
}

/// In a child process: trains, or ends for lack of memory.
fn show_trial(trial: &Trial) -> Result<(), Failure> {
    if ACCOUNTANT.get().is_none() {
        let limit = crate::ALLOCATOR.set_limit(trial.budget as usize);
        limit.map_err(|()| "memory allocation of the program itself is over the budget")?;
    }
    let items = trial.run(&counter())?;
    println!("{}", serde_json::to_string(&items)?);
    Ok(())
}

struct Bench {
    report: Report,
    predictor: Predictor,
    flags: Flags,
    pace: Pace,
    panels: Vec<Panel>,
}

impl Bench {
    fn case(&self, way: Way, filters: usize) -> Case {
        let Flags {
            layers,
            side,
            images,
            optimizer,
            ..
        } = self.flags;
        Case {
            network: Network { layers, filters },
            images: Images {
                side,
                count: images,
            },
            way,
            optimizer,
        }
    }

    fn budget(&self) -> u64 {
        self.flags.budget << 20
    }
}

/// The widest network of a case that the model lets within a budget on each device.
fn widest(
    predictor: &Predictor,
    case: Case,
    budget: u64,
    step: usize,
) -> Result<Option<usize>, Failure> {
    largest(step, step, step..=WIDEST, |filters| {
        let network = case.network.with_filters(filters);
        Ok(predictor.predict(&Case { network, ..case })?.fullest() <= budget)
    })
}
