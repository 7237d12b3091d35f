//! The benchmarks of speed, a subcommand each. One program, so that Burn is linked once.

mod gpu;
mod limit;
mod loading;
mod peers;
mod plain;
mod predicted;
mod pytorch;
mod saving;
mod zero_bubble;

use clap::Parser;
use mimalloc::MiMalloc;
use stovepipe::train::keep_freed_memory;
use stovepipe_benches::Failure;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Benchmarks of Stovepipe
#[derive(Parser)]
enum Bench {
    Gpu(gpu::Flags),
    Limit(limit::Flags),
    Loading(loading::Flags),
    Peers(peers::Flags),
    Plain(plain::Flags),
    Predicted(predicted::Flags),
    Pytorch(pytorch::Flags),
    Saving(saving::Flags),
    ZeroBubble(zero_bubble::Flags),
}

fn main() -> Result<(), Failure> {
    keep_freed_memory(); // as in the program
    match Bench::parse() {
        Bench::Gpu(flags) => gpu::main(flags),
        Bench::Limit(flags) => limit::main(flags),
        Bench::Loading(flags) => loading::main(flags),
        Bench::Peers(flags) => peers::main(flags),
        Bench::Plain(flags) => plain::main(flags),
        Bench::Predicted(flags) => predicted::main(flags),
        Bench::Pytorch(flags) => pytorch::main(flags),
        Bench::Saving(flags) => saving::main(flags),
        Bench::ZeroBubble(flags) => zero_bubble::main(flags),
    }
}
