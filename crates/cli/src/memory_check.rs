//! Whether there is enough memory for a run, checked before any is allocated.

use std::ops::Add;

use stovepipe::{
    pipeline::{Layer, NamedDevice, Profiler, count_parameters, measure::Profile, parameter_bytes},
    plan::MemoryUse,
    schedule::{count, format_bytes},
    train::{
        TrainError,
        settings::{AvailableMemory, free_memory},
    },
};

use crate::{
    allocated,
    error::{CliError, usage},
    peak_of,
    settings::Settings,
    work::ModelWithData,
};

/// Copies of a layer's parameters while it is measured: itself, values on the way to it, gradients and their sum.
const COPIES: u64 = 4;

/// Layers that take little memory, and whose memory shows that of many.
const FEW: usize = 64;
/// Micro-batches that take less than this share of the memory are not looked at more closely.
const SMALL: u64 = 128;

/// Bytes of single floats.
fn bytes(parameters: usize) -> u64 {
    4 * parameters as u64
}

/// What each layer keeps between steps, where nothing was measured.
pub fn at_rest<L: Layer>(settings: &Settings, layers: &[L]) -> Vec<MemoryUse> {
    let state = settings.training.optimizer_state();
    let of_layer = |layer| {
        let [parameters, trained] = parameter_bytes(layer);
        MemoryUse::at_rest(parameters, trained, state)
    };
    layers.iter().map(of_layer).collect()
}

/// Makes sure that a run's parameters and optimizer state fit, however the model is cut, and that its layers can be measured.
pub fn of_run<L: Layer<Side = ()>, T>(
    available: &AvailableMemory,
    settings: &Settings,
    model: &ModelWithData<L, T>,
) -> Result<(), CliError> {
    let pipeline = &settings.pipeline;
    let layers = &model.layers;
    let all = at_rest(settings, layers).into_iter();
    let needs = all.fold(MemoryUse::default(), MemoryUse::add).total();
    // Before any layer is placed.
    let devices = available.devices(&vec![MemoryUse::default(); pipeline.workers()]);
    let mut all = devices.iter();
    let has = all.try_fold(0_u64, |sum, device| Some(sum.saturating_add(device.has?)));
    if let Some(has) = has.filter(|&has| needs > has) {
        let names: Vec<_> = devices.into_iter().map(|device| device.device).collect();
        let device = names.join(" and ");
        return Err(TrainError::TooLarge { device, needs, has }.into());
    }
    // Workers on the CPU measure there.
    let mut named = pipeline.devices.iter().flat_map(|name| name.parse());
    let uses_cpu = named.any(|device: NamedDevice| device.is_cpu());
    let free = free_memory().filter(|_| uses_cpu);
    match free {
        Some(has) if model.sample_needs > has => Err(usage!(
            "a sample takes at least {} of memory, but only {} are free: take smaller samples or a \
             smaller model",
            format_bytes(model.sample_needs),
            format_bytes(has)
        )),
        _ => to_measure(layers, free),
    }
}

/// Makes sure that the parameters of each layer can be measured in `free` bytes.
pub fn to_measure<L: Layer>(layers: &[L], free: Option<u64>) -> Result<(), CliError> {
    let needs = |layer: &L| COPIES * bytes(count_parameters(layer));
    let all = layers.iter().enumerate();
    let largest = all.max_by_key(|(_, layer)| needs(layer));
    match (largest, free) {
        (Some((index, layer)), Some(has)) if needs(layer) > has => Err(usage!(
            "measuring layer {index} ({}) takes about {} of memory, but only {} are free: give it \
             fewer parameters, or free some memory",
            layer.name(),
            format_bytes(needs(layer)),
            format_bytes(has)
        )),
        _ => Ok(()),
    }
}

/// Makes a model's layers with `init`, if so many fit into memory. A layer takes some even before its
/// parameters are allocated.
pub fn of_layers<L, E>(
    layers: usize,
    init: impl Fn(usize) -> Result<Vec<L>, E>,
) -> Result<Vec<L>, CliError>
where
    CliError: From<E>,
{
    if layers > FEW {
        let before = allocated();
        let few = init(FEW)?;
        let each = allocated().saturating_sub(before) / FEW;
        drop(few);
        // Workers have a copy each.
        let needs = (2 * each as u64).saturating_mul(layers as u64);
        if let Some(has) = free_memory().filter(|&has| needs > has) {
            return Err(usage!(
                "{} without their parameters take about {} of memory, but only {} are free: take \
                 fewer --layers",
                count(layers, "layer"),
                format_bytes(needs),
                format_bytes(has)
            ));
        }
    }
    Ok(init(layers)?)
}

/// Measures the layers of a model for a micro-batch of so many samples, if that fits into memory.
pub fn measured<L: Layer<Side = ()>, T>(
    model: &ModelWithData<L, T>,
    samples: usize,
    profiler: &Profiler,
    progress: impl Fn(usize) + Send + Sync + 'static,
) -> Result<Profile, CliError> {
    let profiler = profiler.clone().counting(allocated).counting_peaks(peak_of);
    let measure =
        |profiler: &Profiler, samples| profiler.measure(&model.layers, (model.sample)(samples));
    let free = free_memory().unwrap_or(u64::MAX);
    let fits = |of_sample: u64| {
        let needs = of_sample.saturating_mul(samples as u64);
        if needs <= free {
            return Ok(());
        }
        Err(usage!(
            "measuring a micro-batch of {} takes at least {} of memory, but only {} are free: take a \
             smaller --batch-size, more --micro-batches, or smaller samples",
            count(samples, "sample"),
            format_bytes(needs),
            format_bytes(free)
        ))
    };
    // The input is there twice, on the way into the first layer.
    fits((model.sample_bytes.saturating_mul(2)).max(model.sample_needs))?;
    let all = model.sample_bytes.saturating_mul(samples as u64);
    if samples > 1 && all > free / SMALL {
        fits(largest(&measure(&profiler, 1)?))?;
    }
    Ok(measure(&profiler.on_progress(progress), samples)?)
}

/// The most bytes that a layer needs to be measured: its input, what it keeps for its backward pass,
/// its output, and the output's gradient, beside the skips of all.
fn largest(profile: &Profile) -> u64 {
    let outputs = profile.layers.iter().map(|layer| layer.output);
    let inputs = [profile.input].into_iter().chain(outputs);
    let all = profile.layers.iter().zip(inputs);
    let needs = all.map(|(layer, input)| input + layer.kept.unwrap_or(0) + 2 * layer.output);
    let skips = profile.skips.iter().map(|skip| skip.bytes);
    needs.max().unwrap_or(0) + skips.sum::<u64>()
}
