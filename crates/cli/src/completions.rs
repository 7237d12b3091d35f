//! `stovepipe completions`: what a shell needs to complete commands and flags.

use std::process::ExitCode;

use clap::{ArgMatches, Args, Command, FromArgMatches};
use clap_complete::Shell;

use crate::{error::CliError, flags, output};

#[derive(Clone, Debug, Args)]
struct CompletionsFlags {
    /// Shell
    shell: Shell,
}

pub fn command() -> Command {
    let command = CompletionsFlags::augment_args(Command::new("completions"));
    flags::finished(command)
        .about("Print completions for a shell")
        .long_about(None)
}

pub fn main(matches: &ArgMatches, mut program: Command) -> Result<ExitCode, CliError> {
    let flags = CompletionsFlags::from_arg_matches(matches)?;
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut program, name, &mut script);
    output::print_raw(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}
