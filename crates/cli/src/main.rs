//! `stovepipe`: trains models through a pipeline of stages, and predicts what that costs.

mod allocator;
mod choice;
mod config;
mod data;
mod devices;
mod error;
mod eval;
mod files;
mod hardware;
mod memory_check;
mod mistakes;
mod models;
mod output;
mod plan;
mod pretrained;
mod settings;
mod simulate;
mod stage_table;
mod suggest;
mod train;
mod verify;
mod work;

use std::{env, error::Error, process::ExitCode};

use clap::{ArgMatches, Command};
use stovepipe::train::keep_freed_memory;

use error::CliError;

fn main() -> ExitCode {
    keep_freed_memory();
    let mut command = command();
    let result = match command.try_get_matches_from_mut(env::args_os()) {
        Ok(matches) => run(&matches),
        Err(error) => suggest::with_tip(error, &command).exit(),
    };
    match result {
        Ok(code) => code,
        Err(CliError::Arguments(error)) => error.exit(),
        Err(error) => {
            eprintln!("error: {}", with_sources(&error));
            ExitCode::FAILURE
        }
    }
}

fn command() -> Command {
    Command::new("stovepipe")
        .about("Pipeline-parallel training for Burn")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(train::command())
        .subcommand(eval::command())
        .subcommand(devices::command())
        .subcommand(plan::command())
        .subcommand(simulate::command())
        .subcommand(verify::command())
}

fn run(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    match matches.subcommand() {
        Some(("train", matches)) => train::main(matches),
        Some(("eval", matches)) => eval::main(matches),
        Some(("devices", matches)) => devices::main(matches),
        Some(("plan", matches)) => plan::main(matches),
        Some(("simulate", matches)) => simulate::main(matches),
        Some(("verify", matches)) => verify::main(matches),
        // `subcommand_required` lets nothing else through.
        _ => Ok(ExitCode::FAILURE),
    }
}

/// An error and those that caused it. Some already say what caused them.
fn with_sources(error: &CliError) -> String {
    let (mut text, mut source) = (error.to_string(), error.source());
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(cause_text.trim()) {
            text = format!("{text}: {}", cause_text.trim());
        }
        source = cause.source();
    }
    text
}
