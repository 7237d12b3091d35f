//! `train --dry-run`: what each layer costs and what each stage gets.

use std::fmt::Write;

use stovepipe::{
    pipeline::{
        Layer, Measured, count_parameters,
        measure::{LayerProfile, Profile},
    },
    schedule::format_bytes,
    train::{
        Processes,
        settings::{BalanceSetting, OffloadSetting},
    },
};

use super::{
    fit::{self, Open},
    prediction::{found, measure, rest_lines},
};
use crate::{
    error::CliError,
    memory_check, output,
    settings::Settings,
    work::{ModelWithData, Work},
};

pub struct DryRun<'a> {
    pub settings: &'a Settings,
    /// Whether to measure what was measured before.
    pub remeasure: bool,
    /// What to choose so that it fits, if asked to.
    pub open: Option<Open>,
}

impl Work for DryRun<'_> {
    type Done = ();

    fn on<L: Layer<Side = ()>, T>(self, mut model: ModelWithData<L, T>) -> Result<(), CliError> {
        let Self {
            settings,
            remeasure,
            open,
        } = self;
        model.layers = settings.training.freeze.apply(model.layers)?;
        let (layers, pipeline) = (&model.layers, &settings.pipeline);
        pipeline.check(layers.len())?;
        settings.check_offload()?;
        let alone = Processes::default();
        let available = pipeline.available_memory(&alone)?;
        let (measured, why_not) = match memory_check::of_run(&available, settings, &model) {
            Ok(()) => (Some(measure(settings, &model, (remeasure, &alone))?), None),
            Err(why_not) => (None, Some(why_not)),
        };
        let (mut pipeline, mut forecast) = (pipeline.clone(), None);
        if let Some(own) = &measured {
            let decided = fit::decide(settings, layers, (own, &available), open)?;
            (pipeline, forecast) = (decided.0, Some(decided.1));
        }
        let mut builder = pipeline.builder_with(layers.clone(), measured.as_ref())?;
        if let Some(forecast) = &forecast {
            builder = builder.balance(found(forecast));
        }
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
                let what = match pipeline.schedule.is_asynchronous() {
                    true => "an update",
                    false => "a step",
                };
                // GPUs are not measured side by side.
                let devices = measured
                    .as_ref()
                    .map(|own| own.machine(workers.len()).devices);
                let mut names = devices.iter().flatten().map(|device| &device.name);
                let accuracy = match names.all(|name| name.starts_with("cpu")) {
                    true => " (within 10 % in most cases)",
                    false => "",
                };
                let without = match settings.training.offload {
                    OffloadSetting::None => "without the optimizer",
                    OffloadSetting::Optimizer => {
                        "with what an update moves, without what it computes"
                    }
                };
                text += &format!(
                    "\npredicted: {} {what}{accuracy} {without}, bubble {:.1} %\n",
                    output::seconds(forecast.step_time),
                    100.0 * forecast.bubble
                );
                text += &fit::lines(&available, (&pipeline, forecast), open);
            }
            None => {
                let rest = memory_check::at_rest(settings, layers);
                text += &rest_lines(settings, &rest, &cut, &workers);
            }
        }
        if let Some(why_not) = why_not {
            text += &format!("DOES NOT FIT, so no layer was measured: {why_not}\n");
        }
        output::print(&text)?;
        Ok(())
    }
}

/// What the shares in the last column are of.
#[derive(Clone, Copy)]
enum ShareOf<'a> {
    /// Forward and backward.
    Time(&'a Measured),
    /// Parameters with what training adds to them, and outputs.
    Memory(&'a Measured),
    /// Parameters alone, beside measured times if there are any.
    Parameters(Option<&'a Measured>),
}

impl ShareOf<'_> {
    /// The line of a layer on a worker.
    fn row<L: Layer>(self, layer: &L, index: usize, worker: usize) -> Row {
        let own = |measured: &Measured, costs: fn(&Profile) -> Vec<f64>| {
            let profile = measured.profile(worker);
            let cost = costs(profile)[index];
            Row::of_layer(layer, Some(cost), Some(&profile.layers[index]))
        };
        match self {
            Self::Time(measured) => own(measured, Profile::times),
            Self::Memory(measured) => own(measured, Profile::sizes),
            Self::Parameters(measured) => {
                let profile = measured.map(|measured| &measured.profile(worker).layers[index]);
                Row::of_layer(layer, None, profile)
            }
        }
    }
}

/// A line for each layer, and one for each stage with its share of the whole. Times are those of the stage's device.
fn stage_table<L: Layer>(
    layers: &[L],
    cut: &[usize],
    workers: &[usize],
    devices: &[String],
    costs: ShareOf,
) -> String {
    let of = match costs {
        ShareOf::Time(_) => "of time",
        ShareOf::Memory(_) => "of memory",
        ShareOf::Parameters(_) => "of parameters",
    };
    let of_stages = cut.iter().zip(workers);
    let of_layers = of_stages.flat_map(|(&count, &worker)| std::iter::repeat_n(worker, count));
    let rows: Vec<_> = (layers.iter().zip(of_layers).enumerate())
        .map(|(index, (layer, worker))| costs.row(layer, index, worker))
        .collect();
    let whole = Row::sum(&rows);
    let mut table = format!(
        "{:<14}  {:>12}  {:>12}  {:>11}  {:>11}  {of}\n",
        "layer", "parameters", "output", "forward", "backward"
    );
    let mut begin = 0;
    for (stage, &count) in cut.iter().enumerate() {
        let own = &rows[begin..begin + count];
        for (index, row) in (begin..).zip(own) {
            let line = row.line(&layers[index].name(), 9, &whole);
            let _ = writeln!(table, "{index:>4} {line}");
        }
        let device = devices.get(workers[stage]).or(devices.first());
        let device = device.map_or("", String::as_str);
        let name = format!("stage {stage} {device}");
        let _ = writeln!(table, "{}", Row::sum(own).line(&name, 14, &whole));
        begin += count;
    }
    let _ = writeln!(table, "{}", whole.line("all", 14, &whole));
    table
}

/// What a layer costs, or several together.
struct Row {
    /// What shares are of.
    cost: f64,
    parameters: usize,
    /// Bytes of the output, and seconds forward and backward, if they were measured.
    measured: Option<(u64, f64, f64)>,
}

impl Row {
    /// A layer costs its parameters if no other cost is given.
    fn of_layer<L: Layer>(layer: &L, cost: Option<f64>, profile: Option<&LayerProfile>) -> Self {
        let parameters = count_parameters(layer);
        Self {
            cost: cost.unwrap_or(parameters as f64),
            parameters,
            measured: profile.map(|layer| (layer.output, layer.forward, layer.backward)),
        }
    }

    /// A stage has the output of its last layer.
    fn sum(rows: &[Self]) -> Self {
        let measured = rows.iter().map(|row| row.measured);
        let sum =
            |sum: (u64, f64, f64), row: (u64, f64, f64)| (row.0, sum.1 + row.1, sum.2 + row.2);
        Self {
            cost: rows.iter().map(|row| row.cost).sum(),
            parameters: rows.iter().map(|row| row.parameters).sum(),
            measured: (measured.collect::<Option<Vec<_>>>())
                .and_then(|rows| rows.into_iter().reduce(sum)),
        }
    }

    fn line(&self, name: &str, width: usize, whole: &Self) -> String {
        let milliseconds = |seconds: f64| format!("{:.2} ms", 1e3 * seconds);
        let (output, forward, backward) = match self.measured {
            Some((bytes, f, b)) => (format_bytes(bytes), milliseconds(f), milliseconds(b)),
            None => ("-".to_owned(), "-".to_owned(), "-".to_owned()),
        };
        format!(
            "{name:<width$}  {:>12}  {output:>12}  {forward:>11}  {backward:>11}  {:>4.1} %",
            self.parameters,
            100.0 * self.cost / whole.cost
        )
    }
}
