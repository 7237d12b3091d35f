//! What a built-in model costs on the devices that are here.

use stovepipe::{
    pipeline::{Layer, NamedDevice, Profiler},
    plan::{Machine, Profile},
    train::{PipelineSettings, run::show_layers, settings::free_memory},
};

use super::Request;
use crate::{
    allocated,
    error::CliError,
    memory_check, output,
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
    memory_check::to_measure(layers, free_memory())?;
    let samples = request.batch_size.unwrap_or(BATCH).div_ceil(SHARE);
    let profile_of = |device: &NamedDevice, profiler: Profiler, samples: usize| {
        let shown = show_layers(&format!("{samples} samples on {device}"), layers.len());
        let profiler = profiler.counting(allocated).on_progress(shown);
        profiler.measure(layers, (model.sample)(samples))
    };
    let workers = machine.devices.len();
    let pipeline = PipelineSettings {
        stages: workers,
        devices: (machine.devices.iter().map(|device| device.name.clone())).collect(),
        threads_per_stage: request.threads_per_stage,
        precision: request.precision,
        ..PipelineSettings::default()
    };
    let measured = pipeline.measure(|device, profiler| -> Result<Profile, CliError> {
        let profile = profile_of(device, profiler.clone(), samples)?;
        match samples {
            1 => Ok(profile),
            _ => Ok(profile.with_fixed_parts(&profile_of(device, profiler, samples.div_ceil(4))?)),
        }
    })?;
    let time = |worker: usize| measured.profile(worker).times().iter().sum::<f64>();
    let found = measured.machine(workers);
    for (worker, (device, found)) in machine.devices.iter_mut().zip(found.devices).enumerate() {
        // A plan is made from the profile of the first device.
        device.speed = found.speed * time(0) / time(worker);
        device.memory = device.memory.or(found.memory);
    }
    if machine.levels.is_empty() {
        machine.levels = found.levels;
    }
    output::write(&request.profile, &measured.profile(0).to_toml())?;
    if let Some(path) = &request.write_machine {
        output::write(path, &machine.to_toml())?;
    }
    Ok(())
}
