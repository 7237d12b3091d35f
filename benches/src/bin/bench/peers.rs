//! Whole training steps next to PyTorch's `torch.distributed.pipelining` on the same two cores, and
//! the losses of both, which have to be the same.
//!
//! ```sh
//! python3 -m venv target/pytorch && target/pytorch/bin/pip install -r benches/peers/requirements.txt
//! cargo build --release -p stovepipe-benches && target/release/bench peers --python target/pytorch/bin/python
//! ```

mod loaded;
mod losses;
mod speed;

use clap::{Args, ValueEnum};
use serde::Serialize;
use stovepipe_benches::{
    Failure,
    arguments::Arguments,
    contender::serve_or_compute_alone,
    peer::{PeerSetup, PeerTask},
    recipe::ModelShape,
    report::BenchReport,
};

/// Training steps and losses next to PyTorch's pipeline
#[derive(Args, Serialize)]
pub struct Flags {
    #[command(flatten)]
    arguments: Arguments,
    /// A Python that has PyTorch
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,
    /// The part to measure
    #[arg(long, value_enum, default_value = "all")]
    only: PeersBenchPart,
    /// Also run our stages in two processes, as PyTorch's are; needs a build with `--features mpi`
    #[arg(long)]
    processes: bool,
    /// Leave PyTorch out
    #[arg(long)]
    alone: bool,
    /// Let PyTorch keep images in its default layout, not with channels last, which is faster
    #[arg(long)]
    contiguous: bool,
    /// The layers of PyTorch's first stage, if its best cut differs from ours
    #[arg(long, value_name = "N")]
    pytorch_cut: Option<usize>,
}

/// A part of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum PeersBenchPart {
    /// Samples/s
    Speed,
    /// Samples/s while another process takes half of a core
    Loaded,
    /// Losses
    Losses,
    /// All of them
    All,
}

const NOTE: &str = "\
Whole training steps: forward, backward, AdamW (PyTorch's fused one). Two stages have a thread each:
ours are threads of a process, PyTorch's are processes that use gloo over loopback; both are cut
after the same layer. There is no recomputation unless a row says so. In rows `both recompute` each
stage of either side runs forward again (PyTorch's by `torch.utils.checkpoint`), but for 1F1B's last
one, whose backward pass follows at once; where only we do, we keep the last micro-batch's tapes.
PyTorch's images have their channels last, where it is faster, unless a flag says otherwise. One
device has the whole mini-batch in one piece: a plain Burn loop on one thread, one stage on two.
ours / PyTorch's are samples/s, the median over rounds in which all took their turn, each in its own
processes: above 1 we are faster. over one: samples/s over those of the same side's one device on
one thread. of products: the share of the rate, in operations/s, at which two threads compute the
Transformer's largest matrix product with `faer` and do nothing else. This program fails if the models have different numbers of parameters.";

pub fn main(flags: Flags) -> Result<(), Failure> {
    serve_or_compute_alone(&flags.arguments)?;
    let mut bench = Peers {
        report: BenchReport::begin("peers", &flags)?,
        flags: &flags,
    };
    bench.report.note(NOTE);
    let does = |part| flags.only == part || flags.only == PeersBenchPart::All;
    if does(PeersBenchPart::Speed) {
        bench.speed()?;
    }
    if does(PeersBenchPart::Loaded) {
        bench.loaded()?;
    }
    let agreed = if does(PeersBenchPart::Losses) {
        bench.losses()
    } else {
        Ok(())
    };
    bench.report.save(&flags.arguments.out)?;
    agreed
}

struct Peers<'a> {
    report: BenchReport,
    flags: &'a Flags,
}

impl Peers<'_> {
    fn task(&self, shape: ModelShape, batch: usize, setup: PeerSetup) -> PeerTask<'_> {
        PeerTask {
            channels_last: shape.is_amoebanet() && !self.flags.contiguous,
            ..PeerTask::new(&self.flags.python, shape, batch, setup)
        }
    }
}

/// The models of comparisons with PyTorch.
pub(crate) fn shapes(arguments: &Arguments) -> Vec<ModelShape> {
    let pick = |usual, small| if arguments.quick { small } else { usual };
    let filters = pick(64, 4);
    let small_filters = arguments.small_filters.unwrap_or(filters);
    let shapes = [
        ModelShape::amoebanet(3, small_filters, pick(32, 16), false),
        ModelShape::amoebanet(3, filters, pick(224, 64), true),
        ModelShape::transformer(pick(8, 4), pick(512, 16), pick(8, 2), pick(128, 4)),
    ];
    let mut shapes = shapes.to_vec();
    shapes.retain(|shape| shape.is_chosen(arguments.model));
    shapes
}
