//! `stovepipe`: trains models through a pipeline of stages, and predicts what that costs.

#![deny(clippy::print_stderr, clippy::print_stdout)] // They panic if the text cannot be written.

mod choice;
mod compare;
mod completions;
mod config;
mod data;
mod devices;
mod doctor;
mod error;
mod eval;
mod export;
mod files;
mod flags;
mod hardware;
mod hub_export;
mod launch;
mod measured;
mod memory_check;
mod mistakes;
mod models;
mod new;
mod output;
mod plan;
mod pretrained;
mod processes;
mod rank;
mod report;
mod settings;
mod simulate;
mod suggest;
mod train;
mod verify;
mod work;

#[cfg(unix)]
use std::sync::Arc;
use std::{env, process::ExitCode};

use cap::Cap;
use clap::{ArgMatches, Command};
use mimalloc::MiMalloc;
use peakmem_alloc::{PeakMemAlloc, PeakMemAllocTrait as _};
use stovepipe::train::{Processes, keep_freed_memory};

use error::CliError;

/// The system's allocator returns large blocks to the kernel, which clears them again under a lock that all stages share:
/// two stages would run no faster than one. It counts, so that layers can be measured.
#[global_allocator]
static ALLOCATOR: Cap<&PeakMemAlloc<MiMalloc>> = Cap::new(&PEAK, usize::MAX);
static PEAK: PeakMemAlloc<MiMalloc> = PeakMemAlloc::new(MiMalloc);

/// The exit status after arguments that cannot be used.
const USAGE: u8 = 2;

/// Bytes that are allocated now.
fn allocated() -> usize {
    ALLOCATOR.allocated()
}

/// The most bytes that are allocated during some work, above those before.
fn peak_of(work: &mut dyn FnMut()) -> usize {
    PEAK.reset_peak_memory();
    work();
    PEAK.get_peak_memory()
}

fn main() -> ExitCode {
    keep_freed_memory();
    // A limit of file sizes is then an error of the write, as a full disk is.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let mut command = command();
    let mut processes = Processes::default();
    let result = match command.try_get_matches_from_mut(env::args_os()) {
        Ok(matches) => run(&matches, &mut processes),
        Err(error) => Err(suggest::with_tip(error, &command).into()),
    };
    let result = match result {
        // Help is a result.
        Err(CliError::Arguments(text)) if !text.use_stderr() => {
            output::is_read(text.print()).map(|_| ExitCode::SUCCESS)
        }
        result => result,
    };
    match result {
        Ok(code) => code,
        Err(CliError::Arguments(error)) => {
            if rank::is_first() {
                let _ = error.print();
            }
            ExitCode::from(USAGE)
        }
        Err(error) => {
            let text = suggest::plain(&error::with_sources(&error));
            processes::report(&processes, &error, &text);
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
        .subcommand(export::command())
        .subcommand(devices::command())
        .subcommand(doctor::command())
        .subcommand(plan::command())
        .subcommand(simulate::command())
        .subcommand(verify::command())
        .subcommand(report::command())
        .subcommand(compare::command())
        .subcommand(new::command())
        .subcommand(completions::command())
}

/// Runs a subcommand, in all processes of a job that this one may be part of.
fn run(matches: &ArgMatches, processes: &mut Processes) -> Result<ExitCode, CliError> {
    if let Some((name, flags)) = matches.subcommand() {
        if let Some(count) = launch::asked(flags) {
            return launch::start(count);
        }
        *processes = processes::join(name, flags)?;
    }
    match matches.subcommand() {
        Some(("train", matches)) => train::main(matches, processes),
        Some(("eval", matches)) => eval::main(matches, processes),
        Some(("export", matches)) => export::main(matches),
        Some(("devices", matches)) => devices::main(matches, processes),
        Some(("doctor", matches)) => doctor::main(matches),
        Some(("plan", matches)) => plan::main(matches, processes),
        Some(("simulate", matches)) => simulate::main(matches),
        Some(("verify", matches)) => verify::main(matches, processes),
        Some(("report", matches)) => report::main(matches),
        Some(("compare", matches)) => compare::main(matches),
        Some(("new", matches)) => new::main(matches),
        Some(("completions", matches)) => completions::main(matches, command()),
        // `subcommand_required` lets nothing else through.
        _ => Ok(ExitCode::FAILURE),
    }
}
