//! The benchmarks of speed, a subcommand each. One program, so that Burn is linked once.

mod checksums;
mod dropout;
mod engine_cost;
mod finetune;
mod gpu;
mod kills;
mod limit;
mod loading;
mod offload;
mod overlap;
mod peers;
mod plain;
mod predicted;
mod processes;
mod pytorch;
mod replicas;
mod saving;
mod staleness;
mod windows;
mod zero_bubble;

use clap::Parser;
use mimalloc::MiMalloc;
use stovepipe::train::keep_freed_memory;
use stovepipe_benches::{
    Failure,
    arguments::{Arguments, SweepArguments},
};

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Benchmarks of Stovepipe
#[derive(Parser)]
enum Bench {
    Checksums(checksums::Flags),
    /// What dropout costs a step
    Dropout(Arguments),
    /// What the engine costs a layer and micro-batch, by the number of stages
    EngineCost(Arguments),
    Finetune(finetune::Flags),
    Gpu(gpu::Flags),
    Kills(kills::Flags),
    /// The pipeline against its limit: stages, micro-batches, schedules, recomputation
    Limit(SweepArguments),
    Loading(loading::Flags),
    Offload(offload::Flags),
    Overlap(overlap::Flags),
    Peers(peers::Flags),
    /// The engine with one stage and one micro-batch next to a plain Burn loop
    Plain(Arguments),
    /// Steps next to their predicted times
    Predicted(SweepArguments),
    /// Two stages in two processes next to two threads of one
    Processes(Arguments),
    Pytorch(pytorch::Flags),
    Replicas(replicas::Flags),
    Saving(saving::Flags),
    Staleness(staleness::Flags),
    /// Throughput without a flush next to 1F1B
    Windows(SweepArguments),
    /// Backward passes in halves: zero-bubble schedules next to 1F1B
    ZeroBubble(SweepArguments),
}

fn main() -> Result<(), Failure> {
    keep_freed_memory(); // as in the program
    match Bench::parse() {
        Bench::Checksums(flags) => checksums::main(flags),
        Bench::Dropout(flags) => dropout::main(flags),
        Bench::EngineCost(flags) => engine_cost::main(flags),
        Bench::Finetune(flags) => finetune::main(flags),
        Bench::Gpu(flags) => gpu::main(flags),
        Bench::Kills(flags) => kills::main(flags),
        Bench::Limit(flags) => limit::main(flags),
        Bench::Loading(flags) => loading::main(flags),
        Bench::Offload(flags) => offload::main(flags),
        Bench::Overlap(flags) => overlap::main(flags),
        Bench::Peers(flags) => peers::main(flags),
        Bench::Plain(flags) => plain::main(flags),
        Bench::Predicted(flags) => predicted::main(flags),
        Bench::Processes(flags) => processes::main(flags),
        Bench::Pytorch(flags) => pytorch::main(flags),
        Bench::Replicas(flags) => replicas::main(flags),
        Bench::Saving(flags) => saving::main(flags),
        Bench::Staleness(flags) => staleness::main(flags),
        Bench::Windows(flags) => windows::main(flags),
        Bench::ZeroBubble(flags) => zero_bubble::main(flags),
    }
}
