//! The largest network that trains within a memory budget: Table 1 of the GPipe paper.
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench-memory memory`

mod bars;
mod papers;
mod trained;

use std::{path::PathBuf, sync::OnceLock};

use burn::tensor::Device;
use clap::Args;
use peakmem_alloc::PeakMemAllocTrait as _;
use serde::Serialize;
use stovepipe::{pipeline::NamedDevice, train::settings::OptimizerSetting};
use stovepipe_benches::{
    Failure,
    bench_progress::BenchProgress,
    footprint::{
        case::{FootprintCase, ImageBatch, Network, Strategy},
        largest::largest,
        picture::{self, BarPanel},
        predicted::Predictor,
        trial::Trial,
    },
    memory::AllocationCounter,
    report::{BenchReport, save_file},
};

/// The device if it counts its memory itself; empty if the allocator counts.
static COUNTING_DEVICE: OnceLock<Device> = OnceLock::new();

const MIB: f64 = (1 << 20) as f64;

/// The most filters of the search.
const WIDEST: usize = 4096;

/// The largest network that trains within a memory budget
#[derive(Args, Clone, Debug, Serialize)]
pub struct Flags {
    /// Folder for the results, as JSON, Markdown and a picture
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// The device to train on: cpu, cuda:0, wgpu:0
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: String,
    /// Memory of a device, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    budget: u64,
    /// Height and width of images
    #[arg(long, value_name = "PIXELS", default_value_t = 64)]
    side: usize,
    /// Images in a mini-batch, and micro-batches of a pipeline
    #[arg(long, value_name = "N", default_value_t = 32)]
    images: usize,
    /// L of AmoebaNet-D(L, D)
    #[arg(long, value_name = "L", default_value_t = 18)]
    layers: usize,
    /// The search tries multiples of this number of filters
    #[arg(long, value_name = "D", default_value_t = 8)]
    step: usize,
    /// The largest number of devices of a pipeline
    #[arg(long, value_name = "N", default_value_t = 8)]
    devices: usize,
    /// The optimizer
    #[arg(long, value_enum, default_value = "rmsprop")]
    optimizer: OptimizerSetting,
    /// Small sizes, to show that the program works
    #[arg(long)]
    quick: bool,
    /// Run this training, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    trial: Option<String>,
}

const NOTE: &str = "\
Naive-1 has the whole mini-batch in one piece and keeps all activations; pipeline-k is GPipe on k
devices, with a micro-batch for each image, where stages keep their inputs and recompute everything
else. Trained: two steps with their updates, in a separate process whose allocator is limited to the
budget (on another device: whose memory pools stay within it). Prediction: by the memory model, from
layers of narrow networks and one or two images, each measured alone. Stages of one process share its
memory, so k stages have k budgets together.";

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
    let trial = flags.trial.as_deref().map(serde_json::from_str::<Trial>);
    let trial = trial.transpose()?;
    let name = trial.as_ref().map_or(&flags.device, |trial| &trial.device);
    let device = name.parse::<NamedDevice>()?.device;
    if device.memory_pool_usage().is_some() {
        let _ = COUNTING_DEVICE.set(device.clone());
    }
    if let Some(trial) = &trial {
        return show_trial(trial);
    }
    let mut bench = Bench {
        report: BenchReport::begin("memory", &flags)?,
        predictor: Predictor::measure(
            flags.side,
            flags.layers,
            &device,
            &crate::profiler(&device),
        )?,
        progress: BenchProgress::new(2 * 3 + flags.devices.ilog2() as usize),
        flags,
        panels: Vec::new(),
    };
    bench.report.note(NOTE);
    let trained = bench.largest()?;
    bench.items(&trained);
    bench.full_size()?;
    let out = &bench.flags.out;
    bench.report.save(out)?;
    bench.report.save_markdown(out)?;
    save_file(out, "memory.svg", &picture::draw(&bench.panels))
}

fn counter() -> AllocationCounter {
    /// The bytes of tensors and of the pools, once the device has finished.
    #[expect(clippy::disallowed_methods, reason = "it measures")]
    fn of_pools() -> Option<[u64; 2]> {
        let device = COUNTING_DEVICE.get()?;
        device.sync().ok()?;
        let usage = device.memory_pool_usage()?;
        Some([usage.bytes_in_use, usage.bytes_reserved])
    }
    AllocationCounter {
        now: || match of_pools() {
            Some([in_use, _]) => in_use as usize,
            None => crate::ALLOCATOR.allocated(),
        },
        peak: || match of_pools() {
            Some([_, all]) => all as usize,
            None => crate::PEAK.get_peak_memory(),
        },
    }
}

/// In a child process: trains, or fails for lack of memory.
fn show_trial(trial: &Trial) -> Result<(), Failure> {
    if COUNTING_DEVICE.get().is_none() {
        let limited = crate::ALLOCATOR.set_limit(trial.budget as usize);
        limited.map_err(|()| "memory allocation of the program itself exceeds the budget")?;
    }
    let items = trial.run(&counter())?;
    println!("{}", serde_json::to_string(&items)?);
    Ok(())
}

struct Bench {
    report: BenchReport,
    predictor: Predictor,
    flags: Flags,
    progress: BenchProgress,
    panels: Vec<BarPanel>,
}

impl Bench {
    fn case(&self, strategy: Strategy, filters: usize) -> FootprintCase {
        let layers = self.flags.layers;
        FootprintCase {
            network: Network { layers, filters },
            images: self.images(),
            strategy,
            optimizer: self.flags.optimizer,
        }
    }

    fn images(&self) -> ImageBatch {
        ImageBatch {
            side: self.flags.side,
            count: self.flags.images,
        }
    }

    fn budget(&self) -> u64 {
        self.flags.budget << 20
    }
}

/// The widest network that fits into the budget of each device by the memory model.
fn widest(
    predictor: &Predictor,
    case: FootprintCase,
    budget: u64,
    step: usize,
) -> Result<Option<usize>, Failure> {
    largest(step, step, step..=WIDEST, |filters| {
        let network = case.network.with_filters(filters);
        let predicted = predictor.predict(&FootprintCase { network, ..case })?;
        Ok(predicted.fullest() <= budget)
    })
}
