//! What a built-in model costs on the devices that are here.

use std::collections::{BTreeMap, BTreeSet};

use stovepipe::{
    pipeline::{Layer, NamedDevice, Profiler, device_facts, measure_link},
    plan::{LinkLevel, Machine, Profile},
    train::{TrainError, free_memory, show_layers},
};

use super::Request;
use crate::{
    allocated,
    error::CliError,
    output, room,
    work::{Load, Model, Work, with_model},
};

/// Samples of a mini-batch unless it is said.
const BATCH: usize = 64;
/// A micro-batch that is measured has this share of them, and the smaller one that tells what does not
/// grow with the samples a quarter of that.
const SHARE: usize = 8;

/// Measures the model on each kind of device, and what there is to know about the devices; writes both.
pub fn measure(request: &Request, machine: &mut Machine) -> Result<(), CliError> {
    let model = (&request.model, &request.data);
    with_model(model, 0, Load::Nothing, Measure { request, machine })
}

struct Measure<'a> {
    request: &'a Request,
    machine: &'a mut Machine,
}

impl Work for Measure<'_> {
    type Done = ();

    fn on<L, T>(self, model: Model<L, T>) -> Result<(), CliError>
    where
        L: Layer<Side = ()>,
    {
        measure_model(self.request, self.machine, &model)
    }
}

fn measure_model<L: Layer<Side = ()>, T>(
    request: &Request,
    machine: &mut Machine,
    model: &Model<L, T>,
) -> Result<(), CliError> {
    let layers = &model.layers;
    room::to_measure(layers, free_memory())?;
    let samples = request.batch_size.unwrap_or(BATCH).div_ceil(SHARE);
    let profile_of = |name: &str, samples: usize| -> Result<Profile, CliError> {
        let device: NamedDevice = name.parse().map_err(TrainError::from)?;
        let threads = device.threads.unwrap_or(request.threads_per_stage);
        let profiler = Profiler::new(&device.device).threads(threads);
        let shown = show_layers(&format!("{samples} samples on {name}"), layers.len());
        Ok(profiler
            .counting(allocated)
            .on_progress(shown)
            .measure(layers, (model.sample)(samples))?)
    };
    let both = |name: &str| -> Result<Profile, CliError> {
        let profile = profile_of(name, samples)?;
        match samples {
            1 => Ok(profile),
            _ => Ok(profile.with_fixed_parts(&profile_of(name, samples.div_ceil(4))?)),
        }
    };
    let first = machine.devices[0].name.clone();
    let profile = both(&first)?;
    let time = |profile: &Profile| profile.times().iter().sum::<f64>();
    let mut speeds = BTreeMap::from([(first.clone(), 1.0)]);
    for device in &mut machine.devices {
        let speed = match speeds.get(&device.name) {
            Some(&speed) => speed,
            None => time(&profile) / time(&both(&device.name)?),
        };
        speeds.insert(device.name.clone(), speed);
        device.speed = speed;
    }
    share_memory(machine);
    measure_links(machine)?;
    output::write(&request.profile, &profile.to_toml())?;
    if let Some(path) = &request.write_machine {
        output::write(path, &machine.to_toml())?;
    }
    Ok(())
}

/// Workers on the CPU share what is free, and a GPU may say what it has.
fn share_memory(machine: &mut Machine) {
    for device in &mut machine.devices {
        let facts = || device_facts(&device.name.parse().ok()?).ok();
        device.memory = device.memory.or_else(|| facts()?.memory);
    }
    let on_cpu = machine
        .devices
        .iter()
        .filter(|device| device.name.starts_with("cpu"))
        .count();
    let Some(free) = free_memory().filter(|_| on_cpu > 0) else {
        return;
    };
    let devices = machine.devices.iter_mut();
    for device in devices.filter(|device| device.name.starts_with("cpu")) {
        device.memory.get_or_insert(free / on_cpu as u64);
    }
}

/// One level with the slowest link between neighbours, unless levels were given.
fn measure_links(machine: &mut Machine) -> Result<(), CliError> {
    if !machine.levels.is_empty() || machine.devices.len() < 2 {
        return Ok(());
    }
    let mut level = LinkLevel {
        workers: machine.devices.len(),
        bandwidth: f64::MAX,
        latency: 0.0,
    };
    let mut known = BTreeSet::new();
    for pair in machine.devices.windows(2) {
        let names = (pair[0].name.clone(), pair[1].name.clone());
        if !known.insert(names.clone()) {
            continue;
        }
        let device = |name: &str| name.parse::<NamedDevice>().map_err(TrainError::from);
        let (from, to) = (device(&names.0)?, device(&names.1)?);
        let (latency, bandwidth) = measure_link(&from.device, &to.device)?;
        level.latency = level.latency.max(latency);
        level.bandwidth = level.bandwidth.min(bandwidth);
    }
    machine.levels.push(level);
    Ok(())
}
