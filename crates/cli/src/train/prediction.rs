//! What a run will cost, from measured layers.

use std::ops::Add;

use stovepipe::{
    pipeline::{Balance, Layer, Measured, Recompute},
    plan::{Forecast, MemoryUse},
    schedule::format_bytes,
    train::{
        PipelineSettings, Processes,
        settings::{AvailableMemory, DeviceMemory},
    },
};

use crate::{error::CliError, measured, memory_check, settings::Settings, work::ModelWithData};

/// What each layer costs for a micro-batch on each different device: as measured before, or `again`.
pub fn measure<L: Layer<Side = ()>, T>(
    settings: &Settings,
    model: &ModelWithData<L, T>,
    (again, processes): (bool, &Processes),
) -> Result<Measured, CliError> {
    let batch = settings.training.batch_size.min(model.samples);
    let samples = batch.div_ceil(settings.pipeline.micro_batches);
    let measured = settings.pipeline.measure(processes, |device, profiler| {
        let key = profiler.fingerprint(&model.layers);
        let key = format!("{samples} {} {key}", model.sample_bytes);
        measured::profile(device, &key, model.layers.len(), again, |shown| {
            memory_check::measured(model, samples.max(1), &profiler, shown)
        })
    })?;
    let devices = settings.pipeline.worker_devices()?;
    let rate = processes.by_first(|| settings.training.store_rate(&devices, 0))?;
    Ok(measured.with_stores(&vec![rate; devices.len()]))
}

/// The cut that was found for a prediction, so that it is not searched again.
pub fn found(forecast: &Forecast) -> Balance {
    Balance::Layers(forecast.balance.clone())
}

/// What each worker needs, and each device has to hold.
pub fn memory_lines(available: &AvailableMemory, forecast: &Forecast) -> String {
    let bytes = format_bytes;
    let worker = |(worker, memory): (usize, &MemoryUse)| {
        format!(
            "worker {worker} needs about {}: parameters {}, gradients {}, optimizer {}, batch {}, inputs {}, activations {}, workspace {}\n",
            bytes(memory.total()),
            bytes(memory.parameters),
            bytes(memory.gradients),
            bytes(memory.optimizer),
            bytes(memory.batch),
            bytes(memory.inputs),
            bytes(memory.activations),
            bytes(memory.workspace),
        )
    };
    let device = |memory: DeviceMemory| {
        let (name, needs) = (memory.device, bytes(memory.needs));
        match memory.has {
            Some(has) if memory.needs > has => {
                format!("{name}: {needs} of {}: DOES NOT FIT\n", bytes(has))
            }
            Some(has) => format!("{name}: {needs} of {}: fits\n", bytes(has)),
            None => format!("{name}: {needs} of an unknown size (--device-memory)\n"),
        }
    };
    let workers = forecast.memory.iter().enumerate().map(worker);
    let devices = available.devices(&forecast.memory).into_iter();
    workers.chain(devices.map(device)).collect()
}

/// What was chosen for a pipeline.
pub fn chosen_line(pipeline: &PipelineSettings, forecast: &Forecast) -> String {
    let layers = match &forecast.recompute {
        Recompute::Segments(_) => "layers ",
        _ => "",
    };
    let (schedule, recompute) = (&pipeline.schedule, &forecast.recompute);
    format!("chosen: schedule {schedule}, recompute {layers}{recompute}\n")
}

/// What workers keep between steps, from what each layer does, where nothing was measured.
pub fn rest_lines(
    settings: &Settings,
    layers: &[MemoryUse],
    cut: &[usize],
    workers: &[usize],
) -> String {
    let mut of_workers = vec![MemoryUse::default(); settings.pipeline.workers()];
    let mut begin = 0;
    for (&count, &worker) in cut.iter().zip(workers) {
        let own = layers[begin..begin + count].iter().copied();
        of_workers[worker] = own.fold(of_workers[worker], MemoryUse::add);
        begin += count;
    }
    let bytes = format_bytes;
    let line = |(worker, memory): (usize, &MemoryUse)| {
        format!(
            "worker {worker} keeps {} besides activations: parameters {}, gradients {}, optimizer {}\n",
            bytes(memory.total()),
            bytes(memory.parameters),
            bytes(memory.gradients),
            bytes(memory.optimizer),
        )
    };
    of_workers.iter().enumerate().map(line).collect()
}
