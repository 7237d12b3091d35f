//! Whole training steps next to PyTorch's `torch.distributed.pipelining` on the same two cores, and the
//! losses of both, which have to be the same.
//!
//! ```sh
//! python3 -m venv target/pytorch && target/pytorch/bin/pip install -r benches/peers/requirements.txt
//! cargo build --release -p stovepipe-benches && target/release/bench peers --python target/pytorch/bin/python
//! ```

mod losses;
mod speed;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, ModelChoice},
    contender::serve,
    peer::{Task, Way},
    recipe::{CLASSES, Shape},
    report::Report,
    threads::compute_alone,
};

/// Training steps and losses next to PyTorch's pipeline
#[derive(Args, Serialize)]
pub struct Flags {
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

const NOTE: &str = "\
Whole training steps: forward, backward, AdamW (PyTorch's fused one). Two stages have a thread each: ours are threads of
a process, PyTorch's are processes that talk by gloo over loopback; both are cut after the same layer. Nothing is computed
twice but where it says so; PyTorch's side never does. PyTorch's maps lie with channels last, where it is faster, unless
told otherwise. One device has the whole mini-batch in one piece: a plain Burn loop on one thread, one stage
on two. ours / PyTorch's are samples/s, the median over rounds in which all took their turn, each in processes of its own:
above 1 we are faster. over one: samples/s over those of the same side's one device on one thread. Both models have as many
parameters, or this program ends.";

pub fn main(flags: Flags) -> Result<(), Failure> {
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

impl Peers<'_> {
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
            double: false,
        }
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
