//! A GPU: whether it computes what the CPU does, and its speed next to PyTorch on the same GPU.
//!
//! `benches/gpu` builds this for CUDA and runs it with the other programs for GPUs. On any device:
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench gpu --device wgpu:0 --only agreement`

use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stovepipe::{
    pipeline::{NamedDevice, Precision, device::device_facts},
    prelude::Recompute,
};
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, ModelChoice},
    bench_progress::BenchProgress,
    contender::{ContenderWork, contend, serve_or_compute_alone},
    measure::{Turn, TurnCosts, take_turns},
    models::model,
    peer::{Peer, PeerSetup, PeerTask},
    piped::PipedSettings,
    plain::RATE,
    recipe::ModelShape,
    report::{BenchReport, Cell, ReportTable, cell},
};

/// A GPU next to the CPU, and next to PyTorch
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// The device, by its name in `stovepipe devices`
    #[arg(long, value_name = "NAME", default_value = "cuda:0")]
    device: String,
    /// The part to measure
    #[arg(long, value_enum, default_value = "all")]
    only: GpuBenchPart,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Leave PyTorch out
    #[arg(long)]
    alone: bool,
    /// Leave `torch.compile` out, which takes minutes for AmoebaNet-D
    #[arg(long)]
    eager: bool,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum GpuBenchPart {
    /// With the CPU
    Agreement,
    /// Samples/s
    Speed,
    /// Both
    All,
}

/// The largest accepted difference of a device from the CPU in f32.
const TOLERANCE: f64 = 1e-4;

const AGREEMENT: &str = "\
One mini-batch of four micro-batches from the same weights, on the CPU and on the devices, one stage
each, recomputed except the last micro-batch. loss: the difference as a share of the CPU's. gradient:
the norm of the difference as a share of the norm, for the parameter where it is largest. In f32 both
must be at most 1e-4; in other types, and where a device rounds the factors of products in f32 (TF32),
they show the effect of the type.";

const SPEED: &str = "\
Whole training steps: forward, backward, AdamW (PyTorch's fused one), on one GPU. bf16 is mixed
precision: PyTorch's by autocast. Each configuration has the GPU to itself, in its own process, with
a step before the first turn in which kernels are compiled and tuned; `first` is the seconds of that
step. PyTorch's f32 has its default settings: convolutions may use TF32, products do not.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    if flags.arguments.contender.is_some() {
        serve_or_compute_alone(&flags.arguments)?;
    }
    let device: NamedDevice = flags.device.parse()?;
    let mut bench = Gpu {
        report: BenchReport::begin("gpu", &flags)?,
        device: device.name,
        flags: &flags,
    };
    bench.report.note(format!("Device: {}", bench.device));
    let agreed = match flags.only {
        GpuBenchPart::Speed => Ok(()),
        _ => bench.agreement(),
    };
    if flags.only != GpuBenchPart::Agreement {
        bench.speed()?;
    }
    bench.report.save(&flags.arguments.out)?;
    bench.report.save_markdown(&flags.arguments.out)?;
    agreed
}

struct Gpu<'a> {
    report: BenchReport,
    device: String,
    flags: &'a Flags,
}

struct GpuCosts {
    costs: TurnCosts,
    /// Seconds until the first turn was over.
    first: f64,
}

impl Gpu<'_> {
    /// Compares the device, two of it, and it with the CPU, to the CPU alone.
    fn agreement(&mut self) -> Result<(), Failure> {
        self.report.note(AGREEMENT);
        let mut table = ReportTable::new("next to the CPU");
        let mut worst = 0.0_f64;
        let shapes = self.chosen(SMALL);
        let mut progress = BenchProgress::new(shapes.len() * 3 * 2);
        let (own, cpu) = (&*self.device, "cpu");
        for shape in shapes {
            for devices in [&[own][..], &[own, own], &[own, cpu]] {
                for precision in [Precision::F32, Precision::Bf16] {
                    let (row, difference) = compare(shape, devices, precision)?;
                    let places = devices.join(",");
                    progress.done(&format!("{}, {places}, {precision}", shape.name()));
                    if precision == Precision::F32 && difference.is_nan() {
                        worst = f64::INFINITY;
                    } else if precision == Precision::F32 {
                        worst = worst.max(difference);
                    }
                    table.row(row);
                }
            }
        }
        self.report.table(table);
        if worst > TOLERANCE {
            let message = format!("differs by {worst:.1e} in f32; {TOLERANCE:.0e} is allowed");
            return Err(message.into());
        }
        Ok(())
    }

    fn speed(&mut self) -> Result<(), Failure> {
        self.report.note(SPEED);
        let mut table = ReportTable::new("training steps on one GPU");
        let quick = self.flags.arguments.quick;
        let (shapes, batch) = if quick { (SMALL, 4) } else { (LARGE, 32) };
        let batch = self.flags.arguments.samples.unwrap_or(batch).max(4);
        let shapes = self.chosen(shapes);
        let contenders = 2 + self.peers().len();
        let mut progress = BenchProgress::new(shapes.len() * 2 * contenders);
        for shape in shapes {
            for precision in [Precision::F32, Precision::Bf16] {
                self.race(shape, batch, precision, (&mut table, &mut progress))?;
            }
        }
        self.report.table(table);
        Ok(())
    }

    /// A model in a precision: all configurations, one after the other.
    fn race(
        &mut self,
        shape: ModelShape,
        batch: usize,
        precision: Precision,
        (table, progress): (&mut ReportTable, &mut BenchProgress),
    ) -> Result<(), Failure> {
        let what = format!("{}, {precision}", shape.name());
        let mut found = Vec::new();
        for &(who, compiled) in self.peers() {
            found.push((who, self.peer(shape, batch, precision, compiled)));
            progress.done(&format!("{what}: {who}"));
        }
        for (who, plan) in self.plans(shape, precision)? {
            found.push((who, self.ours(shape, batch, &plan)));
            progress.done(&format!("{what}: {who}"));
        }
        let rate = |index: usize| match found.get(index) {
            Some((_, Ok(measured))) => batch as f64 / measured.costs.seconds.median(),
            _ => f64::NAN,
        };
        let of_peer = |index| self.peers().get(index).map_or(f64::NAN, |_| rate(index));
        let [eager, compiled] = [0, 1].map(of_peer);
        for (index, (who, measured)) in found.iter().enumerate() {
            let own = rate(index);
            let measured = match measured {
                Ok(measured) => measured,
                Err(error) => {
                    self.report.note(format!("{what}, {who}: {error}"));
                    continue;
                }
            };
            let spread = 100.0 * measured.costs.seconds.spread();
            table.row([
                cell("model", "model", 0, shape.describe()),
                cell("batch", "batch", 0, batch),
                cell("precision", "precision", 0, precision.to_string()),
                cell("who", "", 0, *who),
                cell("samples_per_second", "samples/s", 1, own),
                cell("spread_percent", "±%", 1, spread),
                cell("first_seconds", "first s", 1, measured.first),
                cell("over_eager", "over eager", 2, own / eager),
                cell("over_compiled", "over compiled", 2, own / compiled),
            ]);
        }
        Ok(())
    }

    /// PyTorch's configurations, and whether each is compiled.
    fn peers(&self) -> &'static [(&'static str, bool)] {
        const PEERS: [(&str, bool); 2] = [("PyTorch eager", false), ("PyTorch compiled", true)];
        match self.flags {
            Flags { alone: true, .. } => &[],
            Flags { eager: true, .. } => &PEERS[..1],
            _ => &PEERS,
        }
    }

    /// One stage as it is, and with micro-batches and recomputation.
    fn plans(
        &self,
        shape: ModelShape,
        precision: Precision,
    ) -> Result<Vec<(&'static str, PipedSettings)>, Failure> {
        let layers = model(shape, 1).layers()?;
        let on_gpu = |micro_batches| PipedSettings {
            devices: vec![self.device.clone()],
            precision,
            ..PipedSettings::new(vec![layers], micro_batches)
        };
        let recomputed = PipedSettings {
            recompute: Recompute::Always,
            ..on_gpu(4)
        };
        Ok(vec![
            ("ours, one stage", on_gpu(1)),
            ("ours, one stage, 4 micro-batches, recomputed", recomputed),
        ])
    }

    fn ours(
        &self,
        shape: ModelShape,
        batch: usize,
        plan: &PipedSettings,
    ) -> Result<GpuCosts, Failure> {
        let model = model(shape, batch / plan.micro_batches);
        self.measure(contend(&*model, ContenderWork::training(plan))?)
    }

    fn peer(
        &self,
        shape: ModelShape,
        batch: usize,
        precision: Precision,
        compiled: bool,
    ) -> Result<GpuCosts, Failure> {
        let began = Instant::now();
        let setup = PeerSetup::Gpu {
            device: self.device.clone(),
            precision,
            compiled,
        };
        let mut peer = Peer::start(&PeerTask {
            rate: Some(RATE),
            ..PeerTask::new(&self.flags.python, shape, batch, setup)
        })?;
        let start = began.elapsed().as_secs_f64();
        let minimum = self.flags.arguments.turn();
        let mut measured = self.measure(Box::new(move || peer.turn(minimum)))?;
        measured.first += start;
        Ok(measured)
    }

    fn measure(&self, mut turn: Turn<'_>) -> Result<GpuCosts, Failure> {
        let began = Instant::now();
        turn()?;
        let first = began.elapsed().as_secs_f64();
        let found = take_turns(&mut [turn], self.flags.arguments.rounds(11))?;
        let costs = found.into_iter().next().ok_or("nothing was measured")?;
        Ok(GpuCosts { costs, first })
    }

    fn chosen(&self, shapes: [ModelShape; 2]) -> Vec<ModelShape> {
        let choices = [ModelChoice::Amoebanet224, ModelChoice::Transformer];
        let mut shapes: Vec<_> = shapes.into_iter().zip(choices).collect();
        shapes.retain(|(_, choice)| self.flags.arguments.model.includes(*choice));
        shapes.into_iter().map(|(shape, _)| shape).collect()
    }
}

/// Whether products in f32 may be computed with rounded factors.
fn rounds_products(devices: &[&str]) -> Result<bool, Failure> {
    let facts = |name: &&str| Ok::<_, Failure>(device_facts(&name.parse()?)?.rounds_products);
    Ok(devices
        .iter()
        .map(facts)
        .collect::<Result<Vec<_>, _>>()?
        .contains(&true))
}

/// A row of the table, and the larger of both differences.
fn compare(
    shape: ModelShape,
    devices: &[&str],
    precision: Precision,
) -> Result<([Cell; 6], f64), Failure> {
    let model = model(shape, 2);
    let layers = model.layers()?;
    let cut = match devices.len() {
        1 => vec![layers],
        _ => vec![layers.div_ceil(2), layers / 2],
    };
    let plan = PipedSettings {
        devices: devices.iter().map(|&name| name.to_owned()).collect(),
        precision,
        recompute: Recompute::ExceptLast,
        ..PipedSettings::new(cut, 4)
    };
    let (loss, gradient, difference, verdict) = match model.agreement(&plan) {
        Ok(found) if precision == Precision::F32 && rounds_products(devices)? => (
            Some(found.loss),
            Some(found.gradient),
            0.0,
            "rounded".to_owned(),
        ),
        Ok(found) => {
            let (loss, gradient) = (found.loss, found.gradient);
            let larger = loss.max(gradient); // which skips NaN
            let difference = if loss.is_nan() { loss } else { larger };
            let verdict = match precision {
                Precision::F32 if difference <= TOLERANCE => "equal",
                Precision::F32 => "NOT EQUAL",
                _ => "",
            };
            (Some(loss), Some(gradient), difference, verdict.to_owned())
        }
        // A device need not support other types than f32.
        Err(error) if precision != Precision::F32 => (None, None, 0.0, error.to_string()),
        Err(error) => return Err(error),
    };
    let row = [
        cell("model", "model", 0, shape.describe()),
        cell("devices", "devices", 0, devices.join(",")),
        cell("precision", "precision", 0, precision.to_string()),
        cell("loss", "loss", 8, loss),
        cell("gradient", "gradient", 8, gradient),
        cell("verdict", "", 0, verdict),
    ];
    Ok((row, difference))
}

const SMALL: [ModelShape; 2] = [
    ModelShape::amoebanet(3, 16, 32, false),
    ModelShape::transformer(4, 64, 4, 32),
];

const LARGE: [ModelShape; 2] = [
    ModelShape::amoebanet(18, 208, 224, true),
    ModelShape::transformer(12, 1024, 16, 512),
];
