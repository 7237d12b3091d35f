//! What a run will cost, from measured layers.

use stovepipe::{
    pipeline::{Balance, Layer, Measured, PipelineBuilder},
    plan::{Forecast, MemoryUse},
    schedule::format_bytes,
    train::{run::show_layers, settings::DeviceMemory},
};

use crate::{allocator::allocated, error::CliError, settings::Settings, work::ModelWithData};

/// Measures what each layer costs for a micro-batch, on each different device.
pub fn measure<L: Layer<Side = ()>, T>(
    settings: &Settings,
    model: &ModelWithData<L, T>,
) -> Result<Measured, CliError> {
    let batch = settings.training.batch_size.min(model.samples);
    let samples = batch.div_ceil(settings.pipeline.micro_batches);
    let sample = (model.sample)(samples.max(1));
    settings.pipeline.measure(|device, profiler| {
        let shown = show_layers(&format!("a micro-batch on {device}"), model.layers.len());
        let profiler = profiler.counting(allocated).on_progress(shown);
        Ok(profiler.measure(&model.layers, sample.clone())?)
    })
}

/// Predicts time and memory of a step.
pub fn predict<L: Layer>(
    settings: &Settings,
    builder: &PipelineBuilder<L>,
    measured: &Measured,
) -> Result<Forecast, CliError> {
    let state = settings.training.optimizer_state();
    Ok(builder.forecast(measured, state)?)
}

/// The cut that was found for a prediction, so that it is not searched again.
pub fn found(forecast: &Forecast) -> Balance {
    Balance::Layers(forecast.balance.clone())
}

/// What each worker keeps, and each device has to hold.
pub fn memory_lines(settings: &Settings, forecast: &Forecast) -> String {
    let bytes = format_bytes;
    let worker = |(worker, memory): (usize, &MemoryUse)| {
        format!(
            "worker {worker} keeps about {}: parameters {}, gradients {}, optimizer {}, inputs {}, activations {}\n",
            bytes(memory.total()),
            bytes(memory.parameters),
            bytes(memory.gradients),
            bytes(memory.optimizer),
            bytes(memory.inputs),
            bytes(memory.activations),
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
    let devices = settings.pipeline.device_memory(forecast).into_iter();
    workers.chain(devices.map(device)).collect()
}
