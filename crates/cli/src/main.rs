//! `stovepipe`: trains models through a pipeline of stages, and says beforehand what it will cost.

mod data;
mod devices;
mod error;
mod eval;
mod memory_check;
mod mistakes;
mod model;
mod output;
mod plan;
mod pretrained;
mod settings;
mod simulate;
mod stage_table;
mod train;
mod verify;
mod work;

use std::process::ExitCode;

use cap::Cap;
use clap::{ArgMatches, Command};
use mimalloc::MiMalloc;
use stovepipe::train::keep_freed_memory;

/// The system's allocator gives large blocks back to the kernel and has them cleared anew, under a
/// lock that all stages share: two stages at once then run no faster than one. It counts, so that layers
/// can be measured.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// Bytes that are allocated now.
fn allocated() -> usize {
    ALLOCATOR.allocated()
}

fn main() -> ExitCode {
    keep_freed_memory();
    let matches = command().get_matches();
    match run(&matches) {
        Ok(code) => code,
        Err(error::CliError::Arguments(error)) => error.exit(),
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
        .subcommand(eval::command())
        .subcommand(devices::command())
        .subcommand(plan::command())
        .subcommand(simulate::command())
        .subcommand(verify::command())
}

fn run(matches: &ArgMatches) -> Result<ExitCode, error::CliError> {
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
