//! The benchmarks of memory, a subcommand each. They have their own program, since their allocator
//! counts bytes, which takes time.

mod breakdown;
mod by_layer;
mod memory;

use cap::Cap;
use clap::Parser;
use mimalloc::MiMalloc;
use stovepipe::train::keep_freed_memory;
use stovepipe_benches::{Failure, arguments::SweepArguments};

#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// Benchmarks of the memory that Stovepipe needs
#[derive(Parser)]
enum Bench {
    Breakdown(breakdown::Flags),
    /// Recomputation by layer next to recomputation of everything
    ByLayer(SweepArguments),
    Memory(memory::Flags),
}

fn main() -> Result<(), Failure> {
    keep_freed_memory(); // as in the program
    match Bench::parse() {
        Bench::Breakdown(flags) => breakdown::main(flags),
        Bench::ByLayer(flags) => by_layer::main(flags),
        Bench::Memory(flags) => memory::main(flags),
    }
}
