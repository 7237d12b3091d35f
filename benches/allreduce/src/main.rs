//! All-reduce of f32 beside gloo's and MPI's, in GB/s:
//!
//! ```sh
//! cargo run --release -p stovepipe-allreduce --features mpi -- --python target/pytorch/bin/python
//! ```

use std::path::PathBuf;

use clap::Parser;
use serde::Serialize;

use crate::{failure::Failure, report::Report, side::Side};

#[path = "../../src/failure.rs"]
mod failure;
#[path = "../../src/machine.rs"]
mod machine;
mod report;
mod side;
mod turn;

/// Sizes of the tensor, in bytes.
const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20];
const RANKS: [usize; 2] = [2, 4];

#[derive(Clone, Debug, Parser, Serialize)]
#[command(about = "All-reduce beside gloo's and MPI's")]
struct Flags {
    /// A Python with PyTorch, for gloo; without it, gloo is left out
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
    /// Folder for the results, as JSON
    #[arg(long, value_name = "FOLDER", default_value = "benches/results")]
    out: PathBuf,
    /// Rounds, in each of which all sides take a turn
    #[arg(long, value_name = "N", default_value_t = 7)]
    rounds: usize,
    /// Small tensors and one round, to show that the program works
    #[arg(long)]
    quick: bool,
    /// Be a rank of a side, for the program that started this one
    #[arg(long, hide = true)]
    #[serde(skip)]
    side: Option<Side>,
    /// How many ranks there are
    #[arg(long, hide = true, default_value_t = 2)]
    #[serde(skip)]
    ranks: usize,
}

impl Flags {
    fn sizes(&self) -> &'static [usize] {
        if self.quick { &SIZES[..3] } else { &SIZES }
    }
}

fn main() -> Result<(), Failure> {
    let flags = Flags::parse();
    if let Some(side) = flags.side {
        return side.take_turn(flags.sizes(), flags.ranks);
    }
    let sides: Vec<_> = Side::all(flags.python.is_some()).collect();
    let mut report = Report::begin(&flags, &sides);
    for round in 0..if flags.quick { 1 } else { flags.rounds } {
        for ranks in RANKS {
            for place in 0..sides.len() {
                // So that no side always follows the same one.
                let place = if round % 2 == 0 {
                    place
                } else {
                    sides.len() - 1 - place
                };
                let seconds = sides[place].run(&flags, ranks)?;
                report.add(ranks, sides[place], &seconds);
            }
        }
    }
    report.finish(&flags)
}
