//! `stovepipe plan`: where to cut, which schedule, what to recompute, and what it costs.

mod chain;
mod flags;
mod graph;
mod measure;

use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::plan::{LayerGraph, Profile};

use self::flags::PlanFlags;

use crate::{error::CliError, models, output, settings::Subjects};

/// The subcommand and its flags.
pub fn command() -> Command {
    let command = PlanFlags::augment_args(Command::new("plan"));
    let command = Subjects::new(models::trained()).augment(command);
    output::with_negative_numbers(command)
        .about("Find the fastest pipeline that fits the memory")
        .long_about(None)
}

/// Measures if asked to, plans, and prints the plan.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let flags = PlanFlags::from_arg_matches(matches)?;
    let (model, data) = Subjects::new(models::trained()).read(None, matches)?;
    let mut machine = flags.machine()?;
    if flags.measure {
        measure::measure(&flags, (&model, &data), &mut machine)?;
    }
    let text = output::read(&flags.profile)?;
    let unreadable = |source| CliError::Read {
        path: flags.profile.clone(),
        source,
    };
    if is_graph(&text) {
        let graph = LayerGraph::from_text(&text).map_err(|error| unreadable(error.into()))?;
        graph::plan(&flags, &graph, &machine)?;
    } else {
        let profile = Profile::from_toml(&text).map_err(|error| unreadable(error.into()))?;
        chain::plan(&flags, &profile, &machine)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The first line of PipeDream's files is a node or an edge.
fn is_graph(text: &str) -> bool {
    let first = text.lines().find(|line| !line.trim().is_empty());
    first.is_some_and(|line| line.contains(" -- "))
}
