//! The benchmarks of memory, a subcommand each. They have their own program, since their allocator
//! counts bytes, which takes time.

mod breakdown;
mod by_layer;
mod forecast;
mod memory;

use burn::tensor::Device;
use cap::Cap;
use clap::Parser;
use mimalloc::MiMalloc;
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait as _};
use stovepipe::{pipeline::Profiler, train::keep_freed_memory};
use stovepipe_benches::{Failure, arguments::SweepArguments, memory::AllocationCounter};

#[global_allocator]
static ALLOCATOR: Cap<&PeakMemAlloc<MiMalloc>> = Cap::new(&PEAK, usize::MAX);
static PEAK: PeakMemAlloc<MiMalloc> = PeakMemAlloc::new(MiMalloc);

/// Benchmarks of the memory that Stovepipe needs
#[derive(Parser)]
enum Bench {
    Breakdown(breakdown::Flags),
    /// Recomputation by layer next to recomputation of everything
    ByLayer(SweepArguments),
    Forecast(forecast::Flags),
    Memory(memory::Flags),
}

fn main() -> Result<(), Failure> {
    keep_freed_memory(); // as in the program
    match Bench::parse() {
        Bench::Breakdown(flags) => breakdown::main(flags),
        Bench::ByLayer(flags) => by_layer::main(flags),
        Bench::Forecast(flags) => forecast::main(flags),
        Bench::Memory(flags) => memory::main(flags),
    }
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

const COUNTER: AllocationCounter = AllocationCounter {
    now: || ALLOCATOR.allocated(),
    peak: || ALLOCATOR.max_allocated(),
};
