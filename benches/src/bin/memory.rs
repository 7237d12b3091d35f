//! How large a network trains within a budget of memory: Table 1 of the GPipe paper.
//!
//! `cargo build --workspace --release && target/release/memory`

use std::{
    path::PathBuf,
    sync::OnceLock,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use cap::Cap;
use clap::Parser;
use mimalloc::MiMalloc;
use serde::Serialize;
use serde_json::{Value, json};
use stovepipe::{
    pipeline::NamedDevice,
    plan::MemoryUse,
    train::{OptimizerSetting, keep_freed_memory},
};
use stovepipe_benches::{
    Failure,
    footprint::{
        GB,
        case::{Case, Images, Network, Way},
        foretold::{Foresight, Foretold},
        largest::largest,
        picture::{self, Bar, Panel, Part},
        published::{Memory, Published, TABLE_1},
        trial::{Items, Trial},
    },
    memory::Counter,
    report::{Report, Table, column, number},
};

#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// The device that keeps accounts of its own; none if the allocator is asked.
static ACCOUNTANT: OnceLock<Device> = OnceLock::new();

const MIB: f64 = (1 << 20) as f64;

/// The most filters that are asked about.
const WIDEST: usize = 4096;

/// How large a network trains within a budget of memory
#[derive(Parser, Clone, Debug, Serialize)]
struct Flags {
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
    /// Small sizes: shows that the program works, and nothing else
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
to no more). Foretold: by the memory model, from layers of narrow networks and one or two images, each
measured alone. Stages of one process share its memory: k stages are held to k budgets together.";

const ITEMS: &str = "\
Parameters: counted once the network has them, running statistics and bookkeeping among them. Optimizer and gradients: what
the first update brought, and what the second took away. Activations: the most that a step had allocated, less all of this and what
lay there before it. The model counts in it inputs kept for recomputation, activations from forward to backward, and a layer's
gradients on their way into the sum, but not what layers take for a moment. A naive step has no gradients yet when it has most
activations, and the model counts both. The mini-batch, buffers of threads, and the update's own values are in the peak and not
in the model.";

const FULL: &str = "\
Nothing here was trained: it is what the model foretells for 224² and batch 128, as the papers have it. Model: parameters and
what RMSProp with momentum keeps, 12 bytes a parameter; gradients, 4 more, stand by themselves. The papers do not say where
they count gradients; torchgpipe's models have 12.0 bytes a parameter, the paper's 11.9 to 13.3.";

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let mut flags = Flags::parse();
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
    let device = flags.device.parse::<NamedDevice>()?.device;
    if device.memory_pool_usage().is_some() {
        let _ = ACCOUNTANT.set(device.clone());
    }
    if let Some(trial) = &flags.trial {
        return show_trial(&serde_json::from_str(trial)?);
    }
    let mut bench = Bench {
        report: Report::begin("memory", &flags)?,
        foresight: Foresight::measure(flags.side, flags.layers, &device, counter().now)?,
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
        now: || of_pools().map_or_else(|| ALLOCATOR.allocated(), |[in_use, _]| in_use as usize),
        most: || of_pools().map_or_else(|| ALLOCATOR.max_allocated(), |[_, all]| all as usize),
    }
}

/// In a child process: trains, or ends for lack of memory.
fn show_trial(trial: &Trial) -> Result<(), Failure> {
    if ACCOUNTANT.get().is_none() {
        let limit = ALLOCATOR.set_limit(trial.budget as usize);
        limit.map_err(|()| "memory allocation of the program itself is over the budget")?;
    }
    let items = trial.run(&counter())?;
    println!("{}", serde_json::to_string(&items)?);
    Ok(())
}

/// A network that was trained.
struct Trained {
    case: Case,
    items: Items,
    foretold: Foretold,
}

/// A way, the filters that were foretold, the network that trained, and the filters that were too many.
type Searched = (Way, Option<usize>, Option<Network>, Option<usize>);

struct Bench {
    report: Report,
    foresight: Foresight,
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

    /// Trains a case if there is enough memory.
    fn train(&mut self, case: Case) -> Result<Option<Trained>, Failure> {
        let foretold = self.foresight.foretell(&case)?;
        let trial = Trial {
            case,
            cut: foretold.cut.clone(),
            device: self.flags.device.clone(),
            budget: self.budget() * case.way.devices() as u64,
        };
        let items = trial.in_child()?;
        let found = match &items {
            Some(items) => format!("trains, {:.0} MiB", items.peak as f64 / MIB),
            None => "does not fit".to_owned(),
        };
        self.pace
            .tell(&format!("{} as {}: {found}", case.network, case.way));
        Ok(items.map(|items| Trained {
            case,
            items,
            foretold,
        }))
    }

    /// The widest network that the model lets within the budget.
    fn foretold(&self, way: Way) -> Result<Option<usize>, Failure> {
        let step = self.flags.step;
        widest(&self.foresight, self.case(way, step), self.budget(), step)
    }

    /// The widest networks, by search from what is foretold.
    fn largest(&mut self) -> Result<Vec<Trained>, Failure> {
        let (mut trained, mut rows) = (Vec::new(), Vec::new());
        let pipelines = [1, 2, 4, 8].map(Way::Pipeline).into_iter();
        let most = self.flags.devices;
        for way in [Way::Naive]
            .into_iter()
            .chain(pipelines.filter(|way| way.devices() <= most))
        {
            let foretold = self.foretold(way)?;
            let Some(guess) = foretold.or(Some(self.flags.step)) else {
                continue;
            };
            let (found, too_large) = self.search(way, guess)?;
            rows.push((
                way,
                foretold,
                found.as_ref().map(|found| found.case.network),
                too_large,
            ));
            trained.extend(found);
        }
        self.largest_table(&rows, &trained)?;
        Ok(trained)
    }

    /// Trains networks, from a guess on, until one trains and the next wider one does not. Stages share the memory of
    /// their process, so for several devices nothing wider than the guess is tried: it would be too large for one of them.
    fn search(
        &mut self,
        way: Way,
        guess: usize,
    ) -> Result<(Option<Trained>, Option<usize>), Failure> {
        let (mut best, mut too_large) = (None::<Trained>, None::<usize>);
        let step = self.flags.step;
        let widest = if way.devices() == 1 { WIDEST } else { guess };
        largest(guess, step, step..=widest, |filters| {
            let trained = self.train(self.case(way, filters))?;
            let fits = trained.is_some();
            match trained {
                Some(trained) => best = Some(trained),
                None => too_large = Some(filters),
            }
            Ok(fits)
        })?;
        Ok((best, too_large))
    }

    fn largest_table(&mut self, rows: &[Searched], trained: &[Trained]) -> Result<(), Failure> {
        let columns = [
            column("way", "way", 0),
            column("foretold_filters", "foretold D", 0),
            column("trained_filters", "trained D", 0),
            column("too_large", "too large D", 0),
            column("parameters", "parameters", 0),
            column("times_naive", "× naive-1", 2),
            column("peak_mib", "peak MiB", 1),
            column("step_seconds", "step s", 2),
        ];
        let Flags {
            budget,
            layers,
            side,
            images,
            ..
        } = self.flags;
        let title = format!(
            "largest: AmoebaNet-D({layers}, D) at {side}², batch {images}, within {budget} MiB a device"
        );
        let mut table = Table::new(title, columns);
        let naive = rows
            .first()
            .and_then(|row| row.2)
            .map(Network::parameters)
            .transpose()?;
        for (way, foretold, network, too_large) in rows {
            let items = trained.iter().find(|trained| trained.case.way == *way);
            let items = items.map(|trained| trained.items);
            let parameters = network.map(Network::parameters).transpose()?;
            let times = parameters
                .zip(naive)
                .map(|(own, naive)| own as f64 / naive as f64);
            table.row(json!([
                way.to_string(),
                foretold,
                network.map(|network| network.filters),
                too_large,
                parameters,
                times.map(number),
                items.map(|items| number(items.peak as f64 / MIB)),
                items.map(|items| number(items.seconds)),
            ]));
        }
        self.report.table(table);
        Ok(())
    }

    /// What was measured next to what was foretold.
    fn items(&mut self, trained: &[Trained]) {
        let columns = [
            column("way", "way", 0),
            column("network", "network", 0),
            column("item", "item", 0),
            column("measured_mib", "measured MiB", 2),
            column("foretold_mib", "foretold MiB", 2),
            column("ratio", "foretold / measured", 3),
        ];
        self.report.note(ITEMS);
        let mut table = Table::new("items: bytes of all stages together", columns);
        for Trained {
            case,
            items,
            foretold,
        } in trained
        {
            for (item, measured, foretold) in compared(items, foretold.sum()) {
                let ratio = foretold.map_or(Value::Null, |bytes| number(bytes / measured));
                table.row(json!([
                    case.way.to_string(),
                    case.network.to_string(),
                    item,
                    number(measured / MIB),
                    foretold.map(|bytes| number(bytes / MIB)),
                    ratio,
                ]));
            }
        }
        self.report.table(table);
        let Flags { side, images, .. } = self.flags;
        let group = |trained: &Trained| {
            let bars = vec![
                measured_bar(&trained.items),
                foretold_bar(trained.foretold.sum(), true),
            ];
            (
                format!("{} {}", trained.case.way, trained.case.network),
                bars,
            )
        };
        self.panels.push(Panel {
            title: format!("Trained at {side}², batch {images}: all stages together"),
            unit: ("MiB", MIB),
            groups: trained.iter().map(group).collect(),
        });
    }
}

/// What is there in a step alone: kept inputs, activations, and a layer's gradients on their way into the sum.
fn in_a_step(memory: MemoryUse) -> u64 {
    let passing = memory.gradients - memory.parameters;
    memory.inputs + memory.activations + passing
}

/// Items by name, measured and foretold, in bytes.
fn compared(items: &Items, foretold: MemoryUse) -> [(&'static str, f64, Option<f64>); 8] {
    let sum = items.parameters + items.optimizer + items.gradients + items.activations;
    let row = |name, measured: u64, foretold: Option<u64>| {
        (name, measured as f64, foretold.map(|bytes| bytes as f64))
    };
    [
        row("parameters", items.parameters, Some(foretold.parameters)),
        row("optimizer", items.optimizer, Some(foretold.optimizer)),
        row("gradients", items.gradients, Some(foretold.parameters)),
        row("activations", items.activations, Some(in_a_step(foretold))),
        row("sum", sum, Some(foretold.total())),
        row("mini-batch", items.batch, None),
        row("buffers", items.other, None),
        row("peak", items.peak, Some(foretold.total())),
    ]
}

fn measured_bar(items: &Items) -> Bar {
    let known = items.parameters + items.optimizer + items.gradients + items.activations;
    let parts = [
        (Part::Parameters, items.parameters),
        (Part::Optimizer, items.optimizer),
        (Part::Gradients, items.gradients),
        (Part::Activations, items.activations),
        (Part::Other, items.peak.saturating_sub(known)),
    ];
    bar("measured", parts.map(|(part, bytes)| (part, bytes as f64)))
}

fn foretold_bar(memory: MemoryUse, apart: bool) -> Bar {
    let model = match apart {
        true => vec![
            (Part::Parameters, memory.parameters),
            (Part::Optimizer, memory.optimizer),
        ],
        false => vec![(Part::Model, memory.parameters + memory.optimizer)],
    };
    let rest = [
        (Part::Gradients, memory.parameters),
        (Part::Activations, in_a_step(memory)),
    ];
    let parts = model.into_iter().chain(rest);
    bar("foretold", parts.map(|(part, bytes)| (part, bytes as f64)))
}

fn published_bar(label: &str, memory: Memory) -> Bar {
    let activations = memory.activations.map(|bytes| (Part::Activations, bytes));
    let parts = [(Part::Model, memory.model)].into_iter().chain(activations);
    let missing = memory
        .activations
        .is_none()
        .then_some("+ activations: out of memory");
    Bar {
        missing,
        ..bar(label, parts)
    }
}

fn bar(label: &str, parts: impl IntoIterator<Item = (Part, f64)>) -> Bar {
    Bar {
        label: label.to_owned(),
        parts: parts.into_iter().collect(),
        missing: None,
    }
}

/// The widest network of a case that the model lets within a budget on each device.
fn widest(
    foresight: &Foresight,
    case: Case,
    budget: u64,
    step: usize,
) -> Result<Option<usize>, Failure> {
    largest(step, step, step..=WIDEST, |filters| {
        let network = case.network.with_filters(filters);
        Ok(foresight.foretell(&Case { network, ..case })?.fullest() <= budget)
    })
}

impl Bench {
    /// The papers' networks, as the model foretells them.
    fn full_size(&mut self) -> Result<(), Failure> {
        let images = match self.flags.quick {
            true => Images { side: 32, count: 8 },
            false => Images {
                side: 224,
                count: 128,
            },
        };
        self.pace.say("measuring layers at full size");
        // The CPU's layers, wherever others were trained: they are there on every machine.
        let foresight =
            Foresight::measure(images.side, 18, &Device::flex(), || ALLOCATOR.allocated())?;
        self.report.note(FULL);
        self.published_table(&foresight, images)?;
        self.budgets_table(&foresight, images)
    }

    fn published_table(&mut self, foresight: &Foresight, images: Images) -> Result<(), Failure> {
        let columns = [
            column("way", "way", 0),
            column("network", "network", 0),
            column("parameters", "parameters", 0),
            column("model_gb", "model GB", 2),
            column("gradients_gb", "gradients GB", 2),
            column("activations_gb", "activations GB", 2),
            column("fullest_gb", "fullest device GB", 2),
            column("paper_model_gb", "GPipe model", 2),
            column("paper_activations_gb", "GPipe activations", 2),
            column("torchgpipe_model_gb", "torchgpipe model", 2),
            column("torchgpipe_activations_gb", "torchgpipe activations", 2),
        ];
        let Images { side, count } = images;
        let title = format!(
            "foretold: the papers' networks at {side}², batch {count}, all devices together"
        );
        let mut table = Table::new(title.clone(), columns);
        let gb = |bytes: u64| number(bytes as f64 / GB);
        let mut groups = Vec::new();
        for Published {
            way,
            network,
            paper,
            torchgpipe,
        } in TABLE_1
        {
            let optimizer = OptimizerSetting::RmsProp;
            let foretold = foresight.foretell(&Case {
                network,
                images,
                way,
                optimizer,
            })?;
            let sum = foretold.sum();
            let published = |memory: Memory| {
                [Some(memory.model), memory.activations].map(|bytes| bytes.map(|b| number(b / GB)))
            };
            let ([a, b], [c, d]) = (published(paper), published(torchgpipe));
            table.row(json!([
                way.to_string(),
                network.to_string(),
                network.parameters()?,
                gb(sum.parameters + sum.optimizer),
                gb(sum.parameters),
                gb(in_a_step(sum)),
                gb(foretold.fullest()),
                a,
                b,
                c,
                d,
            ]));
            let bars = vec![
                foretold_bar(sum, false),
                published_bar("GPipe", paper),
                published_bar("torchgpipe", torchgpipe),
            ];
            groups.push((format!("{way} {network}"), bars));
        }
        self.report.table(table);
        self.panels.push(Panel {
            title: format!(
                "Foretold at {side}², batch {count}, next to the papers: all devices together"
            ),
            unit: ("GB", GB),
            groups,
        });
        Ok(())
    }

    fn budgets_table(&mut self, foresight: &Foresight, images: Images) -> Result<(), Failure> {
        let columns = [
            column("budget_gb", "GB a device", 1),
            column("way", "way", 0),
            column("network", "network", 0),
            column("parameters", "parameters", 0),
            column("times_naive", "× naive-1", 2),
            column("fullest_gb", "fullest device GB", 2),
        ];
        let mut table = Table::new(
            "foretold: the largest within a budget, at the papers' size",
            columns,
        );
        let budgets = if self.flags.quick {
            [0.5, 1.0]
        } else {
            BUDGETS
        };
        for budget in budgets {
            let mut naive = None;
            for Published { way, network, .. } in TABLE_1 {
                let optimizer = OptimizerSetting::RmsProp;
                let case = Case {
                    network,
                    images,
                    way,
                    optimizer,
                };
                let Some(filters) = widest(foresight, case, (budget * GB) as u64, 16)? else {
                    table.row(json!([
                        number(budget),
                        way.to_string(),
                        "none",
                        null,
                        null,
                        null
                    ]));
                    continue;
                };
                let network = network.with_filters(filters);
                let parameters = network.parameters()?;
                let naive = *naive.get_or_insert(parameters);
                table.row(json!([
                    number(budget),
                    way.to_string(),
                    network.to_string(),
                    parameters,
                    number(parameters as f64 / naive as f64),
                    number(foresight.foretell(&Case { network, ..case })?.fullest() as f64 / GB),
                ]));
            }
        }
        self.report.table(table);
        Ok(())
    }
}

/// In GB: the accelerators that the GPipe paper had, and a card of 24 GB or so.
const BUDGETS: [f64; 2] = [8.0, 24.6];

/// Tells how far the trials are, on the error stream.
struct Pace {
    began: Instant,
    done: usize,
    expected: usize,
}

impl Pace {
    fn new(expected: usize) -> Self {
        Self {
            began: Instant::now(),
            done: 0,
            expected,
        }
    }

    fn say(&self, what: &str) {
        eprintln!("[{:>4.0} s] {what}", self.began.elapsed().as_secs_f64());
    }

    fn tell(&mut self, what: &str) {
        self.done += 1;
        let left = self.expected.saturating_sub(self.done);
        let mean = self.began.elapsed() / self.done as u32;
        let seconds = Duration::as_secs(&(mean * left as u32));
        self.say(&format!(
            "{what} (about {left} more trainings, {seconds} s)"
        ));
    }
}
