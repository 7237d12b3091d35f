//! Measurements of layers, which the user's folder of caches keeps.

use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    process,
};

use stovepipe::{
    pipeline::{NamedDevice, device::device_facts},
    plan::Profile,
    train::run::show_layers,
};
use sysinfo::{CpuRefreshKind, RefreshKind, System};

use crate::{error::CliError, output};

/// The profile of so many layers on a device: what this program measured before with the same `key` on such a device, or what
/// `measure` finds and shows on a bar. Measures `again` if asked to. A cache that cannot be read or written is ignored.
pub fn profile(
    device: &NamedDevice,
    key: &str,
    layers: usize,
    again: bool,
    measure: impl FnOnce(Box<dyn Fn(usize) + Send + Sync>) -> Result<Profile, CliError>,
) -> Result<Profile, CliError> {
    let file = file(device, key);
    let known = file.as_deref().filter(|_| !again).and_then(read);
    if let Some(known) = known.filter(|known| known.layers.len() == layers) {
        let known_before = "measured before (--remeasure measures it again)";
        output::say(&format!("a micro-batch on {device}: {known_before}\n"));
        return Ok(known);
    }
    let shown = show_layers(&format!("a micro-batch on {device}"), layers);
    let profile = measure(Box::new(shown))?;
    if let Some(file) = file {
        let _ = write(&file, &profile.to_toml());
    }
    Ok(profile)
}

/// The cache file for layers with this fingerprint on a device of this machine.
fn file(device: &NamedDevice, fingerprint: &str) -> Option<PathBuf> {
    let mut hasher = DefaultHasher::new();
    // A program that was built again may compute in another way.
    let program = std::env::current_exe().and_then(fs::metadata).ok();
    let program = program.and_then(|file| Some((file.len(), file.modified().ok()?)));
    (env!("CARGO_PKG_VERSION"), program).hash(&mut hasher);
    let cpu = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let system = System::new_with_specifics(cpu);
    (
        system.cpus().first().map(sysinfo::Cpu::brand),
        system.cpus().len(),
    )
        .hash(&mut hasher);
    let hardware = device_facts(device).ok().map(|facts| facts.hardware);
    (device.to_string(), hardware, fingerprint).hash(&mut hasher);
    let name = format!("{:016x}.toml", hasher.finish());
    Some(dirs::cache_dir()?.join("stovepipe/measurements").join(name))
}

fn read(file: &Path) -> Option<Profile> {
    Profile::from_toml(&fs::read_to_string(file).ok()?).ok()
}

fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    // Renaming keeps it whole if several programs write it.
    let partial = file.with_extension(format!("partial-{}", process::id()));
    let written = fs::write(&partial, text).and_then(|()| fs::rename(&partial, file));
    written.inspect_err(|_| {
        let _ = fs::remove_file(&partial);
    })
}
