//! `stovepipe`: trains models through a pipeline of stages.

mod data;
mod error;
mod plan;
mod settings;
mod train;

use std::process::ExitCode;

use clap::{ArgMatches, Command};
use mimalloc::MiMalloc;
use stovepipe::train::keep_freed_memory;

/// The system's allocator gives large blocks back to the kernel and has them cleared anew, under a
/// lock that all stages share: two stages at once then run no faster than one.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    keep_freed_memory();
    let matches = command().get_matches();
    match run(&matches) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
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
}

fn run(matches: &ArgMatches) -> Result<ExitCode, error::CliError> {
    match matches.subcommand() {
        Some(("train", matches)) => train::main(matches),
        // `subcommand_required` lets nothing else through.
        _ => Ok(ExitCode::FAILURE),
    }
}
