//! The programs of `docs/src/guide`: `guide 3` runs those of chapter 3.

mod cut;
mod memory;
mod model;
mod one_device;
mod out;
mod same;
mod three_devices;
mod train;
mod two_stages;
mod wrong;

use std::path::Path;

use mimalloc::MiMalloc;

/// With the system's allocator, stages wait for each other in the kernel.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Any error in a chapter.
type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    stovepipe::train::keep_freed_memory();
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["1"] => one_device::main(),
        ["3"] => two_stages::main(),
        ["4"] => same::main(),
        ["5"] => cut::main(),
        ["6"] => memory::main(),
        ["7", ref names @ ..] => three_devices::main(names),
        ["8", folder, stages] => train::main(Path::new(folder), stages.parse()?),
        ["10", folder] => out::main(Path::new(folder)),
        ["memory", bytes] => memory::by_layer(bytes.parse()?),
        ["wrong"] => wrong::main(),
        _ => Err(
            "say which: 1, 3, 4, 5, 6, 7 [DEVICE…], 8 FOLDER STAGES, 10 FOLDER, memory BYTES, wrong"
                .into(),
        ),
    }
}
