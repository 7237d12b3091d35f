//! Measures a built-in model on the devices of this machine.

use stovepipe::{
    pipeline::{Layer, NamedDevice, Profiler},
    plan::{Machine, Profile},
    schedule::count,
    train::{PipelineSettings, Processes, TrainSettings, run::show_layers, settings::free_memory},
};

use super::flags::PlanFlags;
use crate::{
    data::AnyDataSet,
    error::CliError,
    memory_check,
    models::AnyModel,
    output,
    work::{Load, ModelWithData, Work, with_model},
};

/// Samples of a mini-batch by default.
const BATCH: usize = 64;
/// The measured micro-batch is an eighth of it. A quarter of that is measured, too: it shows what does not grow with the samples.
const SHARE: usize = 8;

/// Measures the model on each kind of device, and the devices; writes both.
pub fn measure(
    flags: &PlanFlags,
    model: (&AnyModel, &AnyDataSet),
    machine: &mut Machine,
    processes: &Processes,
) -> Result<(), CliError> {
    let measure = Measure {
        flags,
        machine,
        processes,
    };
    with_model(model, (0, 1), Load::Nothing, measure)
}

struct Measure<'a> {
    flags: &'a PlanFlags,
    machine: &'a mut Machine,
    processes: &'a Processes,
}

impl Work for Measure<'_> {
    type Done = ();

    fn on<L: Layer<Side = ()>, T>(self, model: ModelWithData<L, T>) -> Result<(), CliError> {
        let Self {
            flags,
            machine,
            processes,
        } = self;
        let layers = &model.layers;
        processes.agree(memory_check::to_measure(layers, free_memory()))?;
        let samples = flags.batch_size.unwrap_or(BATCH).div_ceil(SHARE);
        let profile_of = |device: &NamedDevice, profiler: Profiler, samples: usize| {
            let what = format!("{} on {device}", count(samples, "sample"));
            let shown = show_layers(&what, layers.len());
            memory_check::measured(&model, samples, &profiler, shown)
        };
        let workers = machine.devices.len();
        let mut pipeline = PipelineSettings {
            stages: workers,
            devices: (machine.devices.iter().map(|device| device.name.clone())).collect(),
            threads_per_stage: flags.threads_per_stage,
            precision: flags.precision,
            ..PipelineSettings::default()
        };
        if processes.size() > 1 {
            pipeline.spread(processes.size()).map_err(CliError::from)?;
            for (device, name) in machine.devices.iter_mut().zip(&pipeline.devices) {
                device.name.clone_from(name);
            }
        }
        let measured =
            pipeline.measure(processes, |device, profiler| -> Result<Profile, CliError> {
                let profile = profile_of(device, profiler.clone(), samples)?;
                match samples {
                    1 => Ok(profile),
                    _ => Ok(profile.with_fixed_parts(&profile_of(
                        device,
                        profiler,
                        samples.div_ceil(4),
                    )?)),
                }
            })?;
        let settings = TrainSettings {
            offload: flags.offload,
            offload_to: flags.offload_to.clone().unwrap_or_default(),
            ..TrainSettings::default()
        };
        if flags.offload_to.is_some() {
            let own = pipeline.worker_devices()?;
            let rate = processes.by_first(|| settings.store_rate(&own, 0))?;
            for device in &mut machine.devices {
                device.store = device.store.or(rate);
            }
        }
        let time = |worker: usize| measured.profile(worker).times().iter().sum::<f64>();
        let found = measured.machine(workers);
        for (worker, (device, found)) in machine.devices.iter_mut().zip(found.devices).enumerate() {
            // A plan uses the profile of the first device.
            device.speed = found.speed * time(0) / time(worker);
            device.memory = device.memory.or(found.memory);
        }
        if machine.levels.is_empty() {
            machine.levels = found.levels;
        }
        let written = processes.first(|| {
            output::write(&flags.profile, &measured.profile(0).to_toml())?;
            let machine = machine.to_toml();
            let write = |path| output::write(path, &machine);
            flags.write_machine.as_deref().map_or(Ok(()), write)
        });
        written.map(drop)
    }
}
