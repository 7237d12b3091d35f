//! Whether there is enough memory for a run, checked before any is allocated.

use stovepipe::{
    pipeline::{Layer, NamedDevice, count_parameters, measure::Forecast},
    plan::MemoryUse,
    train::{
        PipelineSettings, TrainError, TrainSettings,
        settings::{DeviceMemory, free_memory},
    },
};

use crate::error::CliError;

/// Copies of a layer's parameters while it is measured: itself, values on the way to it, gradients and their sum.
const COPIES: u64 = 4;

/// Bytes of single floats.
fn bytes(parameters: usize) -> u64 {
    4 * parameters as u64
}

/// Makes sure that a run's parameters and optimizer state fit, however the model is cut, and that its layers can be measured.
pub fn of_run<L: Layer>(
    pipeline: &PipelineSettings,
    training: &TrainSettings,
    layers: &[L],
) -> Result<(), CliError> {
    let parameters = layers.iter().map(count_parameters).sum();
    let needs = MemoryUse::at_rest(bytes(parameters), training.optimizer_state()).total();
    let devices = devices(pipeline);
    let has = devices
        .iter()
        .try_fold(0_u64, |sum, device| Some(sum.saturating_add(device.has?)));
    if let Some(has) = has.filter(|&has| needs > has) {
        let names: Vec<_> = devices.into_iter().map(|device| device.device).collect();
        let device = names.join(" and ");
        return Err(TrainError::TooLarge { device, needs, has }.into());
    }
    // Workers on the CPU measure there.
    let is_cpu = |name: &String| {
        name.parse::<NamedDevice>()
            .is_ok_and(|device| device.is_cpu())
    };
    let uses_cpu = pipeline.devices.iter().any(is_cpu);
    to_measure(layers, free_memory().filter(|_| uses_cpu))
}

/// Makes sure that the parameters of each layer can be measured in `free` bytes.
pub fn to_measure<L: Layer>(layers: &[L], free: Option<u64>) -> Result<(), CliError> {
    let needs = |layer: &L| COPIES * bytes(count_parameters(layer));
    let largest = layers
        .iter()
        .enumerate()
        .max_by_key(|(_, layer)| needs(layer));
    match (largest, free) {
        (Some((index, layer)), Some(has)) if needs(layer) > has => Err(CliError::Unmeasurable {
            layer: format!("layer {index} ({})", layer.name()),
            needs: needs(layer),
            has,
        }),
        _ => Ok(()),
    }
}

/// The memory of the devices, before any layer is placed.
fn devices(pipeline: &PipelineSettings) -> Vec<DeviceMemory> {
    pipeline.device_memory(&Forecast {
        balance: Vec::new(),
        step_time: 0.0,
        bubble: 0.0,
        utilisation: Vec::new(),
        memory: vec![MemoryUse::default(); pipeline.stages],
        recomputed: 0.0,
    })
}
