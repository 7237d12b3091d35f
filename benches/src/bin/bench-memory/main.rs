//! The benchmarks of memory, a subcommand each. They have their own program, since their allocator
//! counts bytes, which takes time.

mod breakdown;
mod by_layer;
mod forecast;
mod long_run;
mod memory;

use burn::tensor::Device;
use cap::Cap;
use clap::Parser;
use mimalloc::MiMalloc;
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait as _};
use stovepipe::{pipeline::Profiler, train::keep_freed_memory};
use stovepipe_benches::{
    Failure,
    arguments::{MemoryArguments, SweepArguments},
    measure::compute_alone,
    memory::{AllocationCounter, show_memory},
};

#[global_allocator]
static ALLOCATOR: Cap<&PeakMemAlloc<MiMalloc>> = Cap::new(&PEAK, usize::MAX);
static PEAK: PeakMemAlloc<MiMalloc> = PeakMemAlloc::new(MiMalloc);

/// Benchmarks of the memory that Stovepipe needs
#[derive(Parser)]
enum Bench {
    /// Where the time and the memory of a step go
    Breakdown(MemoryArguments),
    /// Recomputation by layer next to recomputation of everything
    ByLayer(SweepArguments),
    /// The bytes of trainings next to their forecasts
    Forecast(MemoryArguments),
    LongRun(long_run::Flags),
    Memory(memory::Flags),
}

fn main() -> Result<(), Failure> {
    keep_freed_memory(); // as in the program
    match Bench::parse() {
        Bench::Breakdown(flags) => serve_or(breakdown::main, flags),
        Bench::ByLayer(flags) => by_layer::main(flags),
        Bench::Forecast(flags) => serve_or(forecast::main, flags),
        Bench::LongRun(flags) => long_run::main(flags),
        Bench::Memory(flags) => memory::main(flags),
    }
}

/// Runs a benchmark, or what a child process of it does.
fn serve_or(
    bench: fn(MemoryArguments) -> Result<(), Failure>,
    mut flags: MemoryArguments,
) -> Result<(), Failure> {
    compute_alone()?;
    if let Some(task) = &flags.memory_of {
        let counter = AllocationCounter {
            now: || ALLOCATOR.allocated(),
            peak: || PEAK.get_peak_memory(),
        };
        return show_memory(task, &counter);
    }
    if flags.arguments.quick {
        flags.micro_batches = flags.micro_batches.min(2);
    }
    bench(flags)
}

/// A profiler that counts what the allocator allocates, unless the device counts itself.
fn profiler(device: &Device) -> Profiler {
    let profiler = Profiler::new(device).counting(|| ALLOCATOR.allocated());
    profiler.counting_peaks(|work| {
        PEAK.reset_peak_memory();
        work();
        PEAK.get_peak_memory()
    })
}
