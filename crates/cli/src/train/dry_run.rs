//! `train --dry-run`: what each layer costs and what each stage gets.

use stovepipe::{
    pipeline::{Layer, count_parameters},
    plan::MemoryUse,
    schedule::format_bytes,
    train::settings::BalanceSetting,
};

use super::prediction::{found, measure, memory_lines, predict};
use crate::{
    error::CliError,
    memory_check, output,
    settings::Settings,
    stage_table::{ShareOf, stage_table},
    work::{ModelWithData, Work},
};

pub struct DryRun<'a>(pub &'a Settings);

impl Work for DryRun<'_> {
    type Done = ();

    fn on<L, T>(self, mut model: ModelWithData<L, T>) -> Result<(), CliError>
    where
        L: Layer<Side = ()>,
    {
        let Self(settings) = self;
        model.layers = settings.training.freeze.apply(model.layers)?;
        let (layers, pipeline) = (&model.layers, &settings.pipeline);
        pipeline.check(layers.len())?;
        let (measured, why_not) = match memory_check::of_run(pipeline, &settings.training, layers) {
            Ok(()) => (Some(measure(settings, &model)?), None),
            Err(why_not) => (None, Some(why_not)),
        };
        let mut builder = pipeline.builder_with(layers.clone(), measured.as_ref())?;
        let forecast = match &measured {
            Some(measured) => {
                let forecast = predict(settings, &builder, measured)?;
                builder = builder.balance(found(&forecast));
                Some(forecast)
            }
            None => None,
        };
        let costs = match (&measured, &pipeline.balance) {
            (Some(measured), BalanceSetting::Size) => ShareOf::Memory(measured),
            (Some(measured), BalanceSetting::Even) => ShareOf::Parameters(Some(measured)),
            (Some(measured), _) => ShareOf::Time(measured),
            (None, _) => ShareOf::Parameters(None),
        };
        let (cut, workers) = (builder.cut()?, builder.workers()?);
        let mut text = stage_table(layers, &cut, &workers, &pipeline.devices, costs);
        match &forecast {
            Some(forecast) => {
                text += &format!(
                    "\npredicted: {} a step without the optimizer, bubble {:.1} %\n",
                    output::seconds(forecast.step_time),
                    100.0 * forecast.bubble
                );
                text += &memory_lines(settings, forecast);
            }
            None => text += &rest_lines(settings, layers, &cut, &workers),
        }
        if let Some(why_not) = why_not {
            text += &format!("DOES NOT FIT, so no layer was measured: {why_not}\n");
        }
        output::print(&text);
        Ok(())
    }
}

/// What workers keep between steps, where nothing was measured.
fn rest_lines<L: Layer>(
    settings: &Settings,
    layers: &[L],
    cut: &[usize],
    workers: &[usize],
) -> String {
    let state = settings.training.optimizer_state();
    let mut of_workers = vec![MemoryUse::default(); settings.pipeline.stages];
    let mut begin = 0;
    for (&count, &worker) in cut.iter().zip(workers) {
        let stage = &layers[begin..begin + count];
        let parameters: usize = stage.iter().map(count_parameters).sum();
        // Parameters are single floats.
        let memory = MemoryUse::at_rest(4 * parameters as u64, state);
        of_workers[worker] = of_workers[worker] + memory;
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
