//! Whole training steps next to PyTorch's `torch.distributed.pipelining` on the same two cores, and the
//! losses of both, which have to be the same.
//!
//! ```sh
//! python3 -m venv target/pytorch && target/pytorch/bin/pip install -r benches/peers/requirements.txt
//! cargo build --workspace --release && target/release/peers --python target/pytorch/bin/python
//! ```

use std::{fs, path::Path};

use clap::{Parser, ValueEnum};
use mimalloc::MiMalloc;
use serde::Serialize;
use serde_json::json;
use stovepipe::{prelude::Recompute, schedule::Rule, train::keep_freed_memory};
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, ModelChoice},
    contender::{Work, contend, serve},
    curves::{Panel, draw},
    layers::{LayerCost, cut_in_two},
    learning::{self, Learning},
    measure::{Costs, Seconds, Turn, take_turns},
    models::{CLASSES, Shape, model},
    peer::{Peer, Task, Way},
    piped::Plan,
    plain::RATE,
    report::{Report, Table, column, number},
    threads::compute_alone,
};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Training steps and losses next to PyTorch's pipeline
#[derive(Parser, Serialize)]
struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// What to look at
    #[arg(long, value_enum, default_value = "all")]
    only: Part,
    /// Leaves PyTorch out
    #[arg(long)]
    alone: bool,
    /// Has PyTorch keep maps as it does unless told otherwise, not with channels last, which is faster
    #[arg(long)]
    contiguous: bool,
    /// The layers of PyTorch's first stage, where its best cut is another
    #[arg(long, value_name = "N")]
    pytorch_cut: Option<usize>,
    /// Work as one of the configurations, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    contender: Option<String>,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum Part {
    /// Samples/s
    Speed,
    /// Losses
    Losses,
    /// Both
    All,
}

/// How far losses may be from those of PyTorch on one device, as a share of them. Sums in another order differ
/// in the seventh digit, and every update makes more of it.
const TOLERANCE: f64 = 0.01;

/// What the curves are called.
const CURVES: [&str; 4] = [
    "PyTorch, one device",
    "PyTorch, two stages",
    "ours, one device",
    "ours, two stages",
];

const NOTE: &str = "\
Whole training steps: forward, backward, AdamW (PyTorch's fused one). Two stages have a thread each: ours are threads of
a process, PyTorch's are processes that talk by gloo over loopback; both are cut after the same layer. Nothing is computed
twice but where it says so; PyTorch's side never does. PyTorch's maps lie with channels last, where it is faster, unless
told otherwise. One device has the whole mini-batch in one piece: a plain Burn loop on one thread, one stage
on two. ours / PyTorch's are samples/s, the median over rounds in which all took their turn, each in processes of its own:
above 1 we are faster. over one: samples/s over those of the same side's one device on one thread. Both models have as many
parameters, or this program ends.";

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let flags = Flags::parse();
    if let Some(task) = &flags.contender {
        return serve(&flags.arguments, task);
    }
    let _pool = compute_alone()?;
    let mut bench = Peers {
        report: Report::begin("peers", &flags)?,
        flags: &flags,
    };
    bench.report.note(NOTE);
    if flags.only != Part::Losses {
        bench.speed()?;
    }
    let agreed = match flags.only {
        Part::Speed => Ok(()),
        _ => bench.losses(),
    };
    bench.report.save(&flags.arguments.out)?;
    agreed
}

struct Peers<'a> {
    report: Report,
    flags: &'a Flags,
}

/// What takes part in a race.
struct Entry {
    name: &'static str,
    /// Samples of one of its micro-batches.
    samples: usize,
    work: Work,
    /// What it is set against, by its place among PyTorch's.
    rival: usize,
}

/// Mini-batches of a model, and how they are cut.
struct Race {
    shape: Shape,
    batch: usize,
    micro_batches: usize,
    cut: Vec<usize>,
    /// Whether one device and recomputation take part.
    full: bool,
}

impl Peers<'_> {
    fn speed(&mut self) -> Result<(), Failure> {
        for shape in shapes(&self.flags.arguments) {
            let cut = self.cut(shape)?;
            let counts = if self.flags.arguments.quick {
                [2, 4]
            } else {
                [8, 32]
            };
            for (index, micro_batches) in counts.into_iter().enumerate() {
                let race = Race {
                    shape,
                    batch: self.batch(shape, micro_batches),
                    micro_batches,
                    cut: cut.clone(),
                    full: index == 0,
                };
                let table = self.race(&race)?;
                self.report.table(table);
            }
        }
        Ok(())
    }

    /// Where our stages are cut: where each layer's time for a micro-batch says.
    fn cut(&self, shape: Shape) -> Result<Vec<usize>, Failure> {
        let samples = (self.batch(shape, 8) / 8).max(1);
        let costs =
            model(shape, samples).layer_costs(if self.flags.arguments.quick { 1 } else { 5 })?;
        Ok(cut_in_two(
            &costs.iter().map(LayerCost::total).collect::<Vec<_>>(),
        )?)
    }

    /// Samples of a mini-batch, a multiple of the number of micro-batches.
    fn batch(&self, shape: Shape, micro_batches: usize) -> usize {
        let usual = match (self.flags.arguments.quick, shape) {
            // PyTorch wants more than one number a channel.
            (true, _) => 2 * micro_batches,
            (_, Shape::Amoebanet { large: false, .. }) => 64,
            (_, Shape::Amoebanet { large: true, .. }) => 16,
            (_, Shape::Transformer { .. }) => 32,
        };
        match self.flags.arguments.samples {
            Some(samples) => samples.max(1) * micro_batches,
            None => usual.max(micro_batches),
        }
    }

    fn race(&self, race: &Race) -> Result<Table, Failure> {
        let entries = race.entries();
        let rivals = if self.flags.alone {
            Vec::new()
        } else {
            race.rivals()
        };
        let least = self.flags.arguments.turn();
        let mut turns: Vec<Turn<'_>> = Vec::new();
        for entry in &entries {
            let measured = model(race.shape, entry.samples);
            turns.push(contend(&*measured, entry.work.clone())?);
        }
        let mut version = String::new();
        for way in rivals {
            let mut peer = self.peer(race, way)?;
            version.clone_from(&peer.version);
            turns.push(Box::new(move || peer.turn(least)));
        }
        let rounds = match race.shape {
            Shape::Transformer { .. } => 3,
            Shape::Amoebanet { .. } => 5,
        };
        let mut found = take_turns(&mut turns, self.flags.arguments.rounds(rounds))?;
        let theirs = found.split_off(entries.len());
        Ok(race.table(&version, &entries, &found, &theirs))
    }

    fn peer(&self, race: &Race, way: Way) -> Result<Peer, Failure> {
        let micro_batches = match &way {
            Way::OneDevice { .. } | Way::Card { .. } => 1,
            Way::Pipeline { .. } => race.micro_batches,
        };
        let way = match (way, self.flags.pytorch_cut) {
            (Way::Pipeline { cut, schedule }, Some(first)) => Way::Pipeline {
                cut: vec![first, cut.iter().sum::<usize>().saturating_sub(first)],
                schedule,
            },
            (way, _) => way,
        };
        let task = Task {
            way,
            micro_batches,
            rate: Some(RATE),
            ..self.task(race.shape, race.batch)
        };
        let peer = Peer::start(&task)?;
        let ours = model(race.shape, 1).parameters()?;
        match peer.parameters == ours {
            true => Ok(peer),
            false => {
                let message = format!("{ours} parameters here, {} in PyTorch", peer.parameters);
                Err(format!("{}: {message}", race.shape.name()).into())
            }
        }
    }

    fn task(&self, shape: Shape, batch: usize) -> Task<'_> {
        Task {
            python: &self.flags.python,
            shape,
            classes: CLASSES,
            batch,
            way: Way::OneDevice { threads: 1 },
            micro_batches: 1,
            rate: None,
            vary: false,
            save: None,
            channels_last: matches!(shape, Shape::Amoebanet { .. }) && !self.flags.contiguous,
        }
    }
}

impl Race {
    /// Our side.
    fn entries(&self) -> Vec<Entry> {
        let layers = self.cut.iter().sum();
        let piped = |name, schedule, recompute, rival| Entry {
            name,
            samples: self.batch / self.micro_batches,
            work: Work::Piped {
                plan: Plan {
                    schedule,
                    recompute,
                    ..Plan::new(self.cut.clone(), self.micro_batches)
                },
                optimizer: true,
            },
            rival,
        };
        let (one, gpipe) = (Rule::OneForwardOneBackward, Rule::GPipe);
        let mut entries = vec![
            piped("1F1B", one, Recompute::Never, 0),
            piped("GPipe", gpipe, Recompute::Never, 1),
        ];
        if self.full {
            let twice = Recompute::ExceptLast;
            entries.push(piped("1F1B, recomputed except last", one, twice, 0));
            entries.push(piped("GPipe, recomputed except last", gpipe, twice, 1));
            let whole = |name, work, rival| Entry {
                name,
                samples: self.batch,
                work,
                rival,
            };
            let alone = Work::Plain {
                micro_batches: 1,
                optimizer: true,
            };
            let wide = Work::Piped {
                plan: Plan {
                    threads: 2,
                    ..Plan::new(vec![layers], 1)
                },
                optimizer: true,
            };
            entries.push(whole("one device, one thread", alone, 2));
            entries.push(whole("one device, two threads", wide, 3));
        }
        entries
    }

    /// PyTorch's side.
    fn rivals(&self) -> Vec<Way> {
        let piped = |schedule| Way::Pipeline {
            cut: self.cut.clone(),
            schedule,
        };
        let mut rivals = vec![piped(Rule::OneForwardOneBackward), piped(Rule::GPipe)];
        if self.full {
            rivals.extend([1, 2].map(|threads| Way::OneDevice { threads }));
        }
        rivals
    }

    fn table(&self, version: &str, entries: &[Entry], ours: &[Costs], theirs: &[Costs]) -> Table {
        let title = format!(
            "{}: {}, batch {}, m = {}, cut {:?}; {} rounds next to PyTorch {version}",
            self.shape.name(),
            self.shape.describe(),
            self.batch,
            self.micro_batches,
            self.cut,
            ours.first().map_or(0, |costs| costs.seconds.0.len()),
        );
        let columns = [
            column("way", "", 0),
            column("samples_per_second", "ours", 2),
            column("pytorch_samples_per_second", "PyTorch's", 2),
            column("over_pytorch", "ours / PyTorch's", 3),
            column("spread_percent", "±%", 1),
            column("over_one", "over one", 2),
            column("pytorch_over_one", "PyTorch's", 2),
        ];
        let mut table = Table::new(title, columns);
        let one_of = |costs: &[Costs], index: usize| costs.get(index).map(|c| c.seconds.clone());
        let (our_one, their_one) = (one_of(ours, 4), one_of(theirs, 2));
        for (entry, costs) in entries.iter().zip(ours) {
            let rival = one_of(theirs, entry.rival);
            let ratio = over(rival.as_ref(), Some(&costs.seconds));
            table.row(json!([
                entry.name,
                number(self.batch as f64 / costs.seconds.median()),
                number(
                    rival
                        .as_ref()
                        .map_or(f64::NAN, |r| self.batch as f64 / r.median())
                ),
                number(ratio.median()),
                number(100.0 * ratio.spread()),
                number(over(our_one.as_ref(), Some(&costs.seconds)).median()),
                number(over(their_one.as_ref(), rival.as_ref()).median()),
            ]));
        }
        table
    }
}

/// Seconds over seconds, round by round; nothing if one is not there.
fn over(these: Option<&Seconds>, those: Option<&Seconds>) -> Seconds {
    match (these, those) {
        (Some(these), Some(those)) => these.over(those),
        _ => Seconds::default(),
    }
}

/// The models that were chosen.
fn shapes(arguments: &Arguments) -> Vec<Shape> {
    let pick = |usual, small| if arguments.quick { small } else { usual };
    let filters = pick(64, 4);
    let shapes = [
        (
            ModelChoice::Amoebanet32,
            Shape::Amoebanet {
                layers: 3,
                filters: arguments.small_filters.unwrap_or(filters),
                side: pick(32, 16),
                large: false,
            },
        ),
        (
            ModelChoice::Amoebanet224,
            Shape::Amoebanet {
                layers: 3,
                filters,
                side: pick(224, 64),
                large: true,
            },
        ),
        (
            ModelChoice::Transformer,
            Shape::Transformer {
                layers: pick(8, 4),
                d: pick(512, 16),
                heads: pick(8, 2),
                length: pick(128, 4),
            },
        ),
    ];
    let chosen = shapes
        .into_iter()
        .filter(|(choice, _)| arguments.model.includes(*choice));
    chosen.map(|(_, shape)| shape).collect()
}

impl Peers<'_> {
    /// Trains from the same weights on the same mini-batches in four ways.
    fn losses(&mut self) -> Result<(), Failure> {
        if self.flags.alone {
            self.report
                .note("Without PyTorch there is nothing to set losses against.");
            return Ok(());
        }
        let columns = [
            column("model", "model", 0),
            column("curve", "curve", 0),
            column("first", "first loss", 4),
            column("last", "last loss", 4),
            column("largest_difference", "largest difference", 6),
        ];
        let title = format!("losses next to {}'s, as shares of them", CURVES[0]);
        let mut summary = Table::new(title, columns);
        let mut panels = Vec::new();
        let mut worst = 0.0_f64;
        for shape in shapes(&self.flags.arguments) {
            let shape = short(shape);
            let curves = self.curves(shape)?;
            self.report.table(losses_table(shape, &curves));
            for (name, curve) in CURVES.iter().zip(&curves) {
                let apart = difference(curve, &curves[0]);
                // Numbers that are none agree with nothing.
                worst = if apart.is_nan() {
                    f64::INFINITY
                } else {
                    worst.max(apart)
                };
                let [first, last] =
                    [curve.first(), curve.last()].map(|loss| loss.copied().unwrap_or(f64::NAN));
                summary.row(json!([
                    shape.name(),
                    name,
                    number(first),
                    number(last),
                    number(apart)
                ]));
            }
            panels.push(Panel {
                title: shape.describe(),
                curves,
            });
        }
        self.report.table(summary);
        save_picture(&self.flags.arguments.out, &panels)?;
        match worst <= TOLERANCE {
            true => Ok(()),
            false => Err(format!("losses differ by {worst:.4} of themselves, more than {TOLERANCE}: the work is not the same").into()),
        }
    }

    fn curves(&self, shape: Shape) -> Result<Vec<Vec<f64>>, Failure> {
        let quick = self.flags.arguments.quick;
        let micro_batches = if quick { 2 } else { 8 };
        let (samples, rate) = match shape {
            Shape::Amoebanet { large, .. } => (if large && !quick { 1 } else { 4 }, 1e-4),
            Shape::Transformer { .. } => (1, 2e-5),
        };
        let folder = tempfile::tempdir()?;
        let weights = folder.path().join("weights.pt");
        let steps = if quick { 3 } else { 24 };
        let measured = model(shape, samples);
        let cut = cut_in_two(&vec![1.0; measured.layers()?])?;
        let schedule = Rule::OneForwardOneBackward;
        let piped = Way::Pipeline {
            cut: cut.clone(),
            schedule,
        };
        let mut curves = Vec::new();
        for (way, save) in [
            (Way::OneDevice { threads: 1 }, Some(weights.clone())),
            (piped, None),
        ] {
            let mut peer = Peer::start(&Task {
                way,
                micro_batches,
                rate: Some(rate),
                vary: true,
                save,
                ..self.task(shape, micro_batches * samples)
            })?;
            let losses = (0..steps).map(|_| Ok(peer.step()?.loss));
            curves.push(losses.collect::<Result<Vec<_>, Failure>>()?);
        }
        let plain = learning::Way::Plain { micro_batches };
        let piped = learning::Way::Piped(Plan::new(cut, micro_batches));
        for way in [plain, piped] {
            curves.push(measured.losses(&Learning {
                weights: weights.clone(),
                way,
                steps,
                rate,
            })?);
        }
        Ok(curves)
    }
}

/// The model on short sequences: what losses are to show is that numbers agree.
fn short(shape: Shape) -> Shape {
    match shape {
        Shape::Transformer {
            layers,
            d,
            heads,
            length,
        } => Shape::Transformer {
            layers,
            d,
            heads,
            length: length.min(32),
        },
        images => images,
    }
}

/// The largest difference of two curves, as a share of the second.
fn difference(curve: &[f64], other: &[f64]) -> f64 {
    let apart = curve
        .iter()
        .zip(other)
        .map(|(a, b)| (a - b).abs() / b.abs());
    apart.fold(0.0, |most, apart| {
        if apart > most || apart.is_nan() {
            apart
        } else {
            most
        }
    })
}

fn losses_table(shape: Shape, curves: &[Vec<f64>]) -> Table {
    let columns = [
        column("step", "step", 0),
        column("pytorch_one_device", CURVES[0], 5),
        column("pytorch_two_stages", CURVES[1], 5),
        column("one_device", CURVES[2], 5),
        column("two_stages", CURVES[3], 5),
    ];
    let mut table = Table::new(format!("{}: losses", shape.name()), columns);
    for step in 0..curves[0].len() {
        let losses: Vec<_> = curves.iter().map(|curve| json!(curve[step])).collect();
        let row = [json!(step + 1)].into_iter().chain(losses);
        table.row(row.collect());
    }
    table
}

fn save_picture(folder: &Path, panels: &[Panel]) -> Result<(), Failure> {
    fs::create_dir_all(folder)?;
    let title = "Losses from the same weights on the same mini-batches";
    let path = folder.join("peers.svg");
    fs::write(&path, draw(title, &CURVES, panels))?;
    println!("\nsaved in {}", path.display());
    Ok(())
}
