//! `stovepipe devices`: what this build and this machine offer, and how fast it is.

mod machine;
mod shown;
mod survey;

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::pipeline::NamedDevice;

use self::survey::Survey;
use crate::{error::CliError, output, suggest};

/// Which devices, and what is done with them.
#[derive(Clone, Debug, Args)]
struct DevicesFlags {
    /// Devices, one for each worker, such as cpu,cpu:threads=4,wgpu:0,cuda:0 [default: all that were found]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Write the machine file, for `plan --machine FILE` and `train --machine FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// List devices without measuring them
    #[arg(long, conflicts_with = "out")]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The subcommand and its flags.
pub fn command() -> Command {
    DevicesFlags::augment_args(Command::new("devices"))
        .about("List and measure the devices of this machine")
        .long_about(None)
}

/// Lists, measures, prints and writes.
pub fn main(matches: &ArgMatches) -> Result<ExitCode, CliError> {
    let request = DevicesFlags::from_arg_matches(matches)?;
    let devices = if request.devices.is_empty() {
        NamedDevice::offered()
    } else {
        suggest::devices(&request.devices)?
    };
    let survey = Survey::of(&devices, !request.devices.is_empty(), request.list);
    if request.json {
        output::print_json(&survey.json());
    } else {
        output::print(&survey.text());
    }
    if let Some(path) = &request.out {
        let machine = survey.machine().ok_or(CliError::NoDevices)?;
        output::write(path, &machine.to_toml())?;
    }
    Ok(ExitCode::SUCCESS)
}
