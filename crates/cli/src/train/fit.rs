//! Chooses a schedule and what to recompute, so that a run fits its devices.

use std::path::Path;

use clap::{ArgMatches, parser::ValueSource};
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::{Layer, Measured, Recompute},
    plan::Forecast,
    schedule::Rule,
    train::{
        PipelineSettings,
        run::show_count,
        settings::{AvailableMemory, BalanceSetting, RecomputeSetting, ScheduleSetting},
    },
};
use toml::Table;

use crate::{
    error::{CliError, usage},
    launch::quoted,
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

    /// Changes settings to what was chosen.
    pub fn apply(&self, pipeline: &mut PipelineSettings, open: Open) {
        pipeline.schedule = self.schedule.clone();
        if open.recompute {
            pipeline.recompute = RecomputeSetting::Fixed(self.recompute.clone());
        }
    }

    /// The command of this program with what was chosen instead.
    pub fn command(&self) -> String {
        let chosen = [
            ("--schedule", self.schedule.to_string()),
            ("--recompute", self.recompute.to_string()),
        ];
        let mut words: Vec<String> = Vec::new();
        let mut given = std::env::args().skip(1);
        while let Some(word) = given.next() {
            let flag = word.split_once('=').map_or(&*word, |(flag, _)| flag);
            if flag == "--memory" || chosen.iter().any(|(chosen, _)| *chosen == flag) {
                if !word.contains('=') {
                    given.next();
                }
            } else {
                words.push(word);
            }
        }
        for (flag, value) in chosen {
            words.extend([flag.to_owned(), value]);
        }
        format!("stovepipe {}", quoted(&words))
    }
}

/// The forecast of a run as it was asked for.
pub fn forecast<L: Layer>(
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
pub fn choose<L: Layer>(
    settings: &Settings,
    layers: &[L],
    (measured, available): (&Measured, &AvailableMemory),
    open: Open,
) -> Result<Option<(PipelineSettings, Forecast)>, CliError> {
    let own = &settings.pipeline;
    let mut schedules = vec![own.schedule.clone()];
    if open.schedule && own.workers() == own.stages {
        let can_defer = has_halves(measured, own.workers());
        let rules = Rule::synchronous().filter(|rule| !rule.needs_halves() || can_defer);
        let others = rules.map(ScheduleSetting::Rule);
        schedules.extend(others.filter(|other| *other != own.schedule));
    }
    let mut modes = vec![own.recompute.clone()];
    if open.recompute {
        let fixed = [Recompute::Never, Recompute::ExceptLast, Recompute::Always];
        modes = fixed.map(RecomputeSetting::Fixed).to_vec();
        if available.shares().iter().all(Option::is_some) && own.workers() == own.stages {
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
            if !matches!(pipeline.balance, BalanceSetting::Layers(_)) {
                pipeline.balance = BalanceSetting::Auto;
            }
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

/// Whether a layer can compute the gradients of its weights later.
fn has_halves(measured: &Measured, workers: usize) -> bool {
    let mut layers = (0..workers).flat_map(|worker| &measured.profile(worker).layers);
    layers.any(|layer| layer.weight != Some(0.0))
}
