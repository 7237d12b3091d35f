//! Whether there is memory for a run, said before any is taken.

use stovepipe::{
    pipeline::{Layer, count_parameters, measure::Forecast},
    plan::MemoryUse,
    train::{TrainError, settings::DeviceMemory},
};

use crate::{error::CliError, settings::Settings};

/// What is there of a layer's parameters while it is measured: a copy, values on the way to it, gradients and their sum.
const COPIES: u64 = 4;

/// Bytes of single floats.
fn bytes(parameters: usize) -> u64 {
    4 * parameters as u64
}

/// Makes sure that what the run keeps between steps fits, wherever the model is cut.
pub fn at_rest<L: Layer>(settings: &Settings, layers: &[L]) -> Result<(), TrainError> {
    let parameters = layers.iter().map(count_parameters).sum();
    let state = settings.training.optimizer_state();
    let needs = MemoryUse::at_rest(bytes(parameters), state).total();
    let devices = devices(settings);
    let has = devices
        .iter()
        .try_fold(0_u64, |sum, device| Some(sum.saturating_add(device.has?)));
    let names: Vec<_> = devices.into_iter().map(|device| device.device).collect();
    match has {
        Some(has) if needs > has => Err(TrainError::TooLarge {
            device: names.join(" and "),
            needs,
            has,
        }),
        _ => Ok(()),
    }
}

/// Makes sure that each layer can be measured, where `free` bytes are free, as far as its parameters are concerned.
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

/// What is known of the devices, before anything is known of the workers.
fn devices(settings: &Settings) -> Vec<DeviceMemory> {
    let workers = settings.pipeline.stages;
    settings.pipeline.device_memory(&Forecast {
        balance: Vec::new(),
        step_time: 0.0,
        bubble: 0.0,
        utilisation: Vec::new(),
        memory: vec![MemoryUse::default(); workers],
        recomputed: 0.0,
    })
}
