//! A GPU: whether it computes what the CPU does, and how fast next to PyTorch on the same card.
//!
//! `benches/gpu` builds this for CUDA and runs it with all else that wants a GPU. On any other device:
//!
//! `cargo build --release -p stovepipe-benches && target/release/bench gpu --device wgpu:0 --only agreement`

use std::time::Instant;

use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::{Value, json};
use stovepipe::{
    pipeline::{NamedDevice, Precision},
    prelude::Recompute,
};
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, ModelChoice},
    contender::{Work, contend, serve},
    measure::{Costs, Turn, take_turns},
    models::model,
    pace::Pace,
    peer::{Peer, Task, Way},
    piped::PipelineSettings,
    plain::RATE,
    recipe::{CLASSES, Shape},
    report::{Report, Table, column, number},
};

/// A GPU next to the CPU, and next to PyTorch
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// The device, as `stovepipe devices` calls it
    #[arg(long, value_name = "NAME", default_value = "cuda:0")]
    device: String,
    /// What to look at
    #[arg(long, value_enum, default_value = "all")]
    only: Part,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// Leaves PyTorch out
    #[arg(long)]
    alone: bool,
    /// Work as one of the configurations, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    contender: Option<String>,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// With the CPU
    Agreement,
    /// Samples/s
    Speed,
    /// Both
    All,
}

/// How far a device may be from the CPU in f32.
const TOLERANCE: f64 = 1e-4;

const AGREEMENT: &str = "\
One mini-batch of four micro-batches from the same weights, on the CPU and on the devices, cut in as many stages, everything
recomputed but the last. loss: the difference as a share of the CPU's. gradient: the norm of the difference as a share of
the norm, for the parameter where it is largest. In f32 both must be 1e-4 at most; in the others they say how much the
type of numbers costs.";

const SPEED: &str = "\
Whole training steps: forward, backward, AdamW (PyTorch's fused one), on one card. bf16 is mixed precision: PyTorch's by autocast. Each
configuration has the card to itself, in a process of its own, with a step before the first turn in which kernels are
compiled and tuned; that step's seconds are under `first`. PyTorch's f32 is as it comes: convolutions may use TF32, products do not.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    if let Some(task) = &flags.contender {
        return serve(&flags.arguments, task);
    }
    let device: NamedDevice = flags.device.parse()?;
    let mut bench = Gpu {
        report: Report::begin("gpu", &flags)?,
        device: device.name,
        flags: &flags,
    };
    bench.report.note(format!("Device: {}", bench.device));
    let agreed = match flags.only {
        Part::Speed => Ok(()),
        _ => bench.agreement(),
    };
    if flags.only != Part::Agreement {
        bench.speed()?;
    }
    bench.report.save(&flags.arguments.out)?;
    bench.report.save_markdown(&flags.arguments.out)?;
    agreed
}

struct Gpu<'a> {
    report: Report,
    device: String,
    flags: &'a Flags,
}

impl Gpu<'_> {
    /// Whether devices compute what the CPU does, alone, twice and beside it.
    fn agreement(&mut self) -> Result<(), Failure> {
        self.report.note(AGREEMENT);
        let columns = [
            column("model", "model", 0),
            column("devices", "devices", 0),
            column("precision", "precision", 0),
            column("loss", "loss", 8),
            column("gradient", "gradient", 8),
            column("verdict", "", 0),
        ];
        let mut table = Table::new("next to the CPU", columns);
        let mut worst = 0.0_f64;
        let shapes = self.chosen(small_shapes());
        let mut pace = Pace::new(shapes.len() * 3 * 2);
        for shape in shapes {
            let (own, cpu) = (self.device.clone(), "cpu".to_owned());
            for devices in [
                vec![own.clone()],
                vec![own.clone(), own.clone()],
                vec![own, cpu],
            ] {
                for precision in [Precision::F32, Precision::Bf16] {
                    let (row, off) = compare(shape, &devices, precision)?;
                    let places = devices.join(",");
                    pace.tell(&format!("{}, {places}, {precision}", shape.name()));
                    if precision == Precision::F32 {
                        worst = if off.is_nan() {
                            f64::INFINITY
                        } else {
                            worst.max(off)
                        };
                    }
                    table.row(row);
                }
            }
        }
        self.report.table(table);
        match worst <= TOLERANCE {
            true => Ok(()),
            false => {
                Err(format!("off by {worst:.1e} in f32, but {TOLERANCE:.0e} is allowed").into())
            }
        }
    }

    fn speed(&mut self) -> Result<(), Failure> {
        self.report.note(SPEED);
        let columns = [
            column("model", "model", 0),
            column("batch", "batch", 0),
            column("precision", "precision", 0),
            column("who", "", 0),
            column("samples_per_second", "samples/s", 1),
            column("spread_percent", "±%", 1),
            column("first_seconds", "first s", 1),
            column("over_eager", "over eager", 2),
            column("over_compiled", "over compiled", 2),
        ];
        let mut table = Table::new("training steps on one card", columns);
        let sizes = self.chosen_sizes();
        let contenders = if self.flags.alone { 2 } else { 4 };
        let mut pace = Pace::new(sizes.len() * 2 * contenders);
        for (shape, batch) in sizes {
            for precision in [Precision::F32, Precision::Bf16] {
                self.race(shape, batch, precision, (&mut table, &mut pace))?;
            }
        }
        self.report.table(table);
        Ok(())
    }

    /// A model in a precision: all that run it, one after the other.
    fn race(
        &mut self,
        shape: Shape,
        batch: usize,
        precision: Precision,
        (table, pace): (&mut Table, &mut Pace),
    ) -> Result<(), Failure> {
        let what = format!("{}, {precision}", shape.name());
        let mut found = Vec::new();
        if !self.flags.alone {
            for (who, compiled) in [("PyTorch eager", false), ("PyTorch compiled", true)] {
                found.push((who, self.peer(shape, batch, precision, compiled)));
                pace.tell(&format!("{what}: {who}"));
            }
        }
        for (who, plan) in self.plans(shape, precision)? {
            found.push((who, self.ours(shape, batch, &plan)));
            pace.tell(&format!("{what}: {who}"));
        }
        let rate = |index: usize| match found.get(index) {
            Some((_, Ok(measured))) => batch as f64 / measured.costs.seconds.median(),
            _ => f64::NAN,
        };
        let theirs = match self.flags.alone {
            true => [f64::NAN; 2],
            false => [rate(0), rate(1)],
        };
        for (index, (who, measured)) in found.iter().enumerate() {
            let own = rate(index);
            let measured = match measured {
                Ok(measured) => measured,
                Err(error) => {
                    self.report
                        .note(format!("{}, {precision}, {who}: {error}", shape.name()));
                    continue;
                }
            };
            let spread = number(100.0 * measured.costs.seconds.spread());
            let [eager, compiled] = theirs.map(|theirs| number(own / theirs));
            let (name, precision) = (shape.describe(), precision.to_string());
            let first = number(measured.first);
            table.row(json!([
                name,
                batch,
                precision,
                who,
                number(own),
                spread,
                first,
                eager,
                compiled
            ]));
        }
        Ok(())
    }

    /// How we run a model: as it is, and as a model runs that does not fit.
    fn plans(
        &self,
        shape: Shape,
        precision: Precision,
    ) -> Result<Vec<(&'static str, PipelineSettings)>, Failure> {
        let layers = model(shape, 1).layers()?;
        let on_card = |micro_batches| PipelineSettings {
            devices: vec![self.device.clone()],
            precision,
            ..PipelineSettings::new(vec![layers], micro_batches)
        };
        let recomputed = PipelineSettings {
            recompute: Recompute::Always,
            ..on_card(4)
        };
        Ok(vec![
            ("ours, one stage", on_card(1)),
            ("ours, one stage, 4 micro-batches, recomputed", recomputed),
        ])
    }

    fn ours(
        &self,
        shape: Shape,
        batch: usize,
        plan: &PipelineSettings,
    ) -> Result<Measured, Failure> {
        let model = model(shape, batch / plan.micro_batches);
        let work = Work::Piped {
            plan: plan.clone(),
            optimizer: true,
        };
        self.measure(contend(&*model, work)?)
    }

    fn peer(
        &self,
        shape: Shape,
        batch: usize,
        precision: Precision,
        compiled: bool,
    ) -> Result<Measured, Failure> {
        let began = Instant::now();
        let mut peer = Peer::start(&Task {
            python: &self.flags.python,
            shape,
            classes: CLASSES,
            batch,
            way: Way::Card {
                device: self.device.clone(),
                precision,
                compiled,
            },
            micro_batches: 1,
            rate: Some(RATE),
            vary: false,
            save: None,
            channels_last: matches!(shape, Shape::Amoebanet { .. }),
            double: false,
        })?;
        let start = began.elapsed().as_secs_f64();
        let least = self.flags.arguments.turn();
        let mut measured = self.measure(Box::new(move || peer.turn(least)))?;
        measured.first += start;
        Ok(measured)
    }

    fn measure(&self, mut turn: Turn<'_>) -> Result<Measured, Failure> {
        let began = Instant::now();
        turn()?;
        let first = began.elapsed().as_secs_f64();
        let found = take_turns(&mut [turn], self.flags.arguments.rounds(11))?;
        let costs = found.into_iter().next().ok_or("nothing was measured")?;
        Ok(Measured { costs, first })
    }

    fn chosen(&self, shapes: [Shape; 2]) -> Vec<Shape> {
        let is_chosen = |shape: &Shape| {
            let choice = match shape {
                Shape::Amoebanet { .. } => ModelChoice::Amoebanet224,
                Shape::Transformer { .. } => ModelChoice::Transformer,
            };
            self.flags.arguments.model.includes(choice)
        };
        shapes.into_iter().filter(is_chosen).collect()
    }

    /// Models, and samples of their mini-batches.
    fn chosen_sizes(&self) -> Vec<(Shape, usize)> {
        let (shapes, batch) = match self.flags.arguments.quick {
            true => (small_shapes(), 4),
            false => (large_shapes(), 32),
        };
        let batch = self.flags.arguments.samples.unwrap_or(batch).max(4);
        self.chosen(shapes)
            .into_iter()
            .map(|shape| (shape, batch))
            .collect()
    }
}

/// What a configuration's turns came to.
struct Measured {
    costs: Costs,
    /// Seconds until the first turn was over.
    first: f64,
}

/// A row of the table, and by how much it is off.
fn compare(
    shape: Shape,
    devices: &[String],
    precision: Precision,
) -> Result<(Value, f64), Failure> {
    let model = model(shape, 2);
    let layers = model.layers()?;
    let cut = match devices.len() {
        1 => vec![layers],
        _ => vec![layers.div_ceil(2), layers / 2],
    };
    let plan = PipelineSettings {
        devices: devices.to_vec(),
        precision,
        recompute: Recompute::ExceptLast,
        ..PipelineSettings::new(cut, 4)
    };
    let (name, places) = (shape.describe(), devices.join(","));
    match model.agreement(&plan) {
        Ok(found) => {
            let off = match found.loss.is_nan() {
                true => f64::NAN,
                false => found.loss.max(found.gradient),
            };
            let verdict = match precision {
                Precision::F32 if off <= TOLERANCE => "equal",
                Precision::F32 => "NOT EQUAL",
                _ => "",
            };
            let (loss, gradient) = (number(found.loss), number(found.gradient));
            let row = json!([name, places, precision.to_string(), loss, gradient, verdict]);
            Ok((row, off))
        }
        // What a device cannot compute in is no mistake; f32 all can.
        Err(error) if precision != Precision::F32 => {
            let row = json!([
                name,
                places,
                precision.to_string(),
                null,
                null,
                error.to_string()
            ]);
            Ok((row, 0.0))
        }
        Err(error) => Err(error),
    }
}

fn small_shapes() -> [Shape; 2] {
    [
        Shape::Amoebanet {
            layers: 3,
            filters: 16,
            side: 32,
            large: false,
        },
        Shape::Transformer {
            layers: 4,
            d: 64,
            heads: 4,
            length: 32,
        },
    ]
}

fn large_shapes() -> [Shape; 2] {
    [
        Shape::Amoebanet {
            layers: 18,
            filters: 208,
            side: 224,
            large: true,
        },
        Shape::Transformer {
            layers: 12,
            d: 1024,
            heads: 16,
            length: 512,
        },
    ]
}
