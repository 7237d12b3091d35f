//! Chooses a schedule and what to recompute, so that a run fits its devices.

use std::path::Path;

use clap::{ArgMatches, parser::ValueSource};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Layer, Measured, Recompute},
    plan::{Forecast, MemoryUse},
    schedule::{Rule, format_bytes},
    train::{
        PipelineSettings, TrainError,
        run::show_count,
        settings::{AvailableMemory, BalanceSetting, RecomputeSetting, ScheduleSetting},
    },
};
use toml::Table;

use super::prediction::{chosen_line, memory_lines};
use crate::{
    error::{CliError, usage},
    launch::{arguments_without, quoted},
    settings::Settings,
};

/// What may be chosen, because neither flags nor a file say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    pub schedule: bool,
    pub recompute: bool,
}

impl Open {
    pub const ALL: Self = Self {
        schedule: true,
        recompute: true,
    };

    /// `files` are a configuration, and a plan, which says all.
    pub fn of(flags: &ArgMatches, (config, plan): (Option<&Path>, Option<&Path>)) -> Self {
        let text = config.map(std::fs::read_to_string);
        let table = text.and_then(|text| text.ok()?.parse::<Table>().ok());
        let section = table
            .as_ref()
            .and_then(|table| table.get("pipeline")?.as_table());
        let is_open = |key: &str| {
            let is_flag = flags.value_source(key) == Some(ValueSource::CommandLine);
            let is_in_file = section.is_some_and(|section| section.contains_key(key));
            !is_flag && !is_in_file && plan.is_none()
        };
        Self {
            schedule: is_open("schedule"),
            recompute: is_open("recompute"),
        }
    }

    /// Whether the setting of this name is open.
    pub fn has(self, key: &str) -> bool {
        match key {
            "schedule" => self.schedule,
            "recompute" => self.recompute,
            _ => false,
        }
    }
}

/// How a run is cut, and what was chosen for it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fit {
    pub schedule: ScheduleSetting,
    pub recompute: Recompute,
    pub balance: Vec<usize>,
}

impl Fit {
    pub fn new(pipeline: &PipelineSettings, forecast: &Forecast) -> Self {
        Self {
            schedule: pipeline.schedule.clone(),
            recompute: forecast.recompute.clone(),
            balance: forecast.balance.clone(),
        }
    }

    /// Changes settings to what was chosen, so that a run that goes on does the same.
    pub fn apply(&self, pipeline: &mut PipelineSettings) {
        pipeline.schedule = self.schedule.clone();
        pipeline.recompute = RecomputeSetting::Fixed(self.recompute.clone());
        pipeline.balance = BalanceSetting::Layers(self.balance.clone());
    }

    /// The command of this program with what was chosen instead.
    pub fn command(&self, processes: usize) -> String {
        let chosen = [
            ("--schedule", self.schedule.to_string()),
            ("--recompute", self.recompute.to_string()),
        ];
        let takes_chunks = match &self.schedule {
            ScheduleSetting::Rule(rule) => rule.takes_chunks(),
            ScheduleSetting::File(_) => false,
        };
        let is_dropped = |flag: &str| {
            let is_chosen = chosen.iter().any(|(chosen, _)| *chosen == flag);
            is_chosen || flag == "--memory" || (flag == "--chunks" && !takes_chunks)
        };
        let mut words = arguments_without(is_dropped);
        for (flag, value) in &chosen {
            words.extend([flag.into(), value.into()]);
        }
        if processes > 1 {
            words.extend(["--processes".into(), processes.to_string().into()]);
        }
        format!("stovepipe {}", quoted(words))
    }
}

/// The run as it was asked for, or the fastest that fits of those that differ in what is open; and its forecast.
pub fn decide<L: Layer>(
    settings: &Settings,
    layers: &[L],
    measured: (&Measured, &AvailableMemory),
    open: Option<Open>,
) -> Result<(PipelineSettings, Forecast), CliError> {
    if let Some(open) = open
        && let Some(found) = choose(settings, layers, measured, open)?
    {
        return Ok(found);
    }
    let forecast = forecast(settings, &settings.pipeline, layers, measured)?;
    Ok((settings.pipeline.clone(), forecast))
}

/// What a run will cost, and what was chosen for it, as lines.
pub fn lines(
    available: &AvailableMemory,
    (pipeline, forecast): (&PipelineSettings, &Forecast),
    open: Option<Open>,
) -> String {
    let mut text = memory_lines(available, forecast);
    if open.is_some() || pipeline.recompute == RecomputeSetting::ByLayer {
        text += &chosen_line(pipeline, forecast);
    }
    text
}

/// The error of a run that does not fit, with what helps: the command of one that does, or the layer that never does.
pub fn advised<L: Layer>(
    error: TrainError,
    settings: &Settings,
    layers: &[L],
    measured: (&Measured, &AvailableMemory),
    processes: usize,
) -> Result<CliError, CliError> {
    let other = choose(settings, layers, measured, Open::ALL)?;
    let command = other.map(|(pipeline, forecast)| {
        let command = Fit::new(&pipeline, &forecast).command(processes);
        format!("this fits, and gives the same result: {command}")
    });
    let layer = || {
        let (layer, needs, has) = too_large_layer(settings, measured)?;
        let (name, needs, has) = (layers[layer].name(), format_bytes(needs), format_bytes(has));
        Some(format!(
            "layer {layer} ({name}) alone needs about {needs} of {has} for one micro-batch"
        ))
    };
    Ok(match command.or_else(layer) {
        Some(advice) => CliError::DoesNotFit {
            error: Box::new(error),
            advice,
        },
        None => error.into(),
    })
}

/// The forecast of a run as it was asked for.
fn forecast<L: Layer>(
    settings: &Settings,
    pipeline: &PipelineSettings,
    layers: &[L],
    (measured, available): (&Measured, &AvailableMemory),
) -> Result<Forecast, CliError> {
    let state = settings.training.optimizer_state();
    let builder = pipeline.builder_with(layers.to_vec(), Some(measured))?;
    if pipeline.recompute != RecomputeSetting::ByLayer {
        return Ok(builder.forecast(measured, state)?);
    }
    if let Some(worker) = available.shares().iter().position(Option::is_none) {
        return Err(usage!(
            "--recompute by-layer: how much memory the device of worker {worker} has is not known: say it \
             with --device-memory"
        ));
    }
    Ok(builder.choose_layers(measured, state)?)
}

/// The fastest run that fits, of those that differ in what is open.
fn choose<L: Layer>(
    settings: &Settings,
    layers: &[L],
    (measured, available): (&Measured, &AvailableMemory),
    open: Open,
) -> Result<Option<(PipelineSettings, Forecast)>, CliError> {
    let own = &settings.pipeline;
    let mut schedules = vec![own.schedule.clone()];
    // Without a flush, the result is another one.
    if open.schedule && own.workers() == own.stages && !own.schedule.is_asynchronous() {
        let can_defer = (0..own.workers()).any(|worker| measured.profile(worker).has_halves());
        let rules = Rule::synchronous().filter(|rule| !rule.needs_halves() || can_defer);
        let others = rules.map(ScheduleSetting::Rule);
        schedules.extend(others.filter(|other| *other != own.schedule));
    }
    let mut modes = vec![own.recompute.clone()];
    if open.recompute {
        let fixed = [Recompute::Never, Recompute::ExceptLast, Recompute::Always];
        modes = fixed.map(RecomputeSetting::Fixed).to_vec();
        if own.no_stashing {
            modes = vec![RecomputeSetting::Fixed(Recompute::Always)];
        } else if available.shares().iter().all(Option::is_some) {
            modes.push(RecomputeSetting::ByLayer);
        }
    }
    let all = schedules.len() * modes.len();
    let shown = show_count("choosing among", "pipeline", all);
    let mut best: Option<(PipelineSettings, Forecast)> = None;
    for (number, schedule) in schedules.iter().enumerate() {
        for (place, mode) in modes.iter().enumerate() {
            shown(number * modes.len() + place + 1);
            let mut pipeline = own.clone();
            (pipeline.schedule, pipeline.recompute) = (schedule.clone(), mode.clone());
            // With fewer layers than stages, for instance.
            if pipeline.check(layers.len()).is_err() {
                continue;
            }
            let found = forecast(settings, &pipeline, layers, (measured, available))?;
            let is_faster = |best: &(_, Forecast)| found.step_time < best.1.step_time;
            if available.check(&found.memory).is_ok() && best.as_ref().is_none_or(is_faster) {
                best = Some((pipeline, found));
            }
        }
    }
    Ok(best)
}

/// The layer that needs most for one micro-batch, if that is more than its device has: its index, its bytes, and
/// the device's.
fn too_large_layer(
    settings: &Settings,
    (measured, available): (&Measured, &AvailableMemory),
) -> Option<(usize, u64, u64)> {
    let has = available.shares().into_iter().collect::<Option<Vec<_>>>()?;
    let has = has.into_iter().max()?;
    let state = settings.training.optimizer_state();
    let profile = measured.profile(0);
    let inputs = [profile.input].into_iter();
    let inputs = inputs.chain(profile.layers.iter().map(|layer| layer.output));
    let needs = profile.layers.iter().zip(inputs).map(|(layer, input)| {
        let rest = MemoryUse::at_rest(
            layer.parameters,
            layer.trained.unwrap_or(layer.parameters),
            state,
        );
        let workspace = layer.workspace.unwrap_or_default();
        rest.total() + input + layer.kept.unwrap_or(layer.output) + workspace
    });
    let (layer, needs) = needs.enumerate().max_by_key(|(_, needs)| *needs)?;
    (needs > has).then_some((layer, needs, has))
}
