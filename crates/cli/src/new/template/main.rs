use std::{env, error::Error, path::Path};

use mimalloc::MiMalloc;
use stovepipe::{
    prelude::NamedDevice,
    train::{RunFolder, keep_freed_memory},
};

/// With the system's allocator, stages on the CPU wait for each other in the kernel.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Each argument is a device, such as `cpu`, `wgpu:0` or `cuda:1`, and gets a stage.
fn main() -> Result<(), Box<dyn Error>> {
    keep_freed_memory();
    let named = env::args().skip(1).map(|name| name.parse());
    let mut devices = named.collect::<Result<Vec<NamedDevice>, _>>()?;
    if devices.is_empty() {
        devices = vec!["cpu".parse()?, "cpu".parse()?];
    }
    let folder = RunFolder::create_next(Path::new("runs"), "train")?;
    let summary = NAME::train(devices, &folder)?;
    println!("{}; see {}", summary.test, folder.finish()?.display());
    Ok(())
}
