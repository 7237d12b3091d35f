//! `stovepipe plan`: where to cut, which schedule, what to recompute, and what it costs.

mod chain;
mod flags;
mod graph;
mod measure;
mod without_flush;

use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::Precision,
    plan::{LayerGraph, Profile},
    train::{
        Processes,
        settings::{MOST_MICRO_BATCHES, OffloadSetting},
    },
};

use self::flags::PlanFlags;

use crate::{
    data::check,
    error::{CliError, usage},
    flags::{finished, is_given, refuse_idle},
    models, output,
    settings::{Subjects, fit_base},
};

pub fn command() -> Command {
    let command = PlanFlags::augment_args(Command::new("plan"));
    let command = Subjects::new(models::trained()).augment(command);
    finished(command)
        .about("Find the fastest pipeline that fits the memory")
        .long_about(None)
}

pub fn main(matches: &ArgMatches, processes: &Processes) -> Result<ExitCode, CliError> {
    let flags = PlanFlags::from_arg_matches(matches)?;
    if processes.size() > 1 && !flags.measure {
        return Err(usage!(
            "without --measure, `plan` runs in one process: start it without a launcher"
        ));
    }
    let from = flags.from.as_deref();
    let (mut model, data) = Subjects::new(models::trained()).read(None, matches, from)?;
    let is_here = flags.offload == OffloadSetting::None;
    let idle = [
        ("adapter", from.is_none(), "without --from"),
        ("offload-bandwidth", is_here, "without --offload optimizer"),
        ("offload-to", is_here, "without --offload optimizer"),
    ];
    refuse_idle(matches, idle)?;
    if !flags.measure {
        let subjects = Subjects::new(models::trained()).augment(Command::new(""));
        let mut all = subjects.get_arguments();
        if let Some(flag) = all.find(|arg| is_given(matches, arg)) {
            let flag = flag.get_long().unwrap_or_default();
            return Err(usage!(
                "--{flag} has no effect without --measure: the profile says what layers cost"
            ));
        }
    }
    let mut machine = flags.machine()?;
    let profile = Some(&flags.profile).filter(|_| flags.measure);
    let files = [profile, flags.write_machine.as_ref(), flags.out.as_ref()];
    processes.first(|| output::check_files(files.into_iter().flatten()))?;
    // More are not trained, either.
    for &count in &flags.micro_batches {
        let is_right = |count| (1..=MOST_MICRO_BATCHES).contains(&count);
        check("micro-batches", count, is_right, "from 1 to 65536")?;
    }
    if flags.measure {
        let devices = machine.devices.iter().map(|device| device.name.clone());
        fit_base(&mut model, &devices.collect::<Vec<_>>());
        measure::measure(&flags, (&model, &data), &mut machine, processes)?;
    }
    if !processes.is_first() {
        return Ok(ExitCode::SUCCESS);
    }
    let text = output::read(&flags.profile)?;
    // The first line of PipeDream's files is a node or an edge.
    let first = text.lines().find(|line| !line.trim().is_empty());
    if first.is_some_and(|line| line.contains(" -- ")) {
        let graph = LayerGraph::from_text(&text).map_err(CliError::file(&flags.profile))?;
        let idle = "schedules recompute batch-size replicas optimizer-state offload precision threads-per-stage \
                    offload-bandwidth";
        let idle = idle.split(' ').map(|flag| (flag, true, "on a graph.txt"));
        refuse_idle(matches, idle)?;
        graph::plan(&flags, &graph, &machine)?;
    } else {
        let is_written = flags.measure || flags.out.is_some();
        let idle = (
            "threads-per-stage",
            !is_written,
            "without --measure or --out",
        );
        refuse_idle(matches, [idle])?;
        let mut profile = Profile::from_toml(&text).map_err(CliError::file(&flags.profile))?;
        if flags.precision != Precision::F32 {
            // A profile that was not measured in mixed precision does not say.
            for layer in &mut profile.layers {
                layer.cast.get_or_insert(layer.parameters / 2);
            }
        }
        chain::plan(&flags, &profile, &machine)?;
    }
    Ok(ExitCode::SUCCESS)
}
