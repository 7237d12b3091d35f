//! `stovepipe devices`: what this build and this machine offer, and how fast it is.

mod machine;
mod share;
mod shown;
mod survey;

use std::{path::PathBuf, process::ExitCode};

use clap::{ArgMatches, Args, Command, FromArgMatches};
use stovepipe::{
    pipeline::NamedDevice,
    train::{PipelineSettings, Processes},
};

use self::survey::Survey;
use crate::{
    error::{CliError, usage},
    flags, output, suggest,
};

#[derive(Clone, Debug, Args)]
struct DevicesFlags {
    /// Devices, one for each worker, such as cpu,cpu:threads=4,wgpu:0,cuda:0 [default: all that were found]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    devices: Vec<String>,
    /// Write the machine file, for `plan --machine FILE` and `train --machine FILE`
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Start mpirun with this many processes on this machine: the devices of all, and the links between
    #[arg(long, value_name = "N")]
    processes: Option<usize>,
    /// List devices without measuring them
    #[arg(long, conflicts_with = "out")]
    list: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn command() -> Command {
    flags::finished(DevicesFlags::augment_args(Command::new("devices")))
        .about("List and measure the devices of this machine")
        .long_about(None)
}

/// This process's devices: those that the user named for it, or what it was offered.
fn own_devices(
    request: &DevicesFlags,
    processes: &Processes,
) -> Result<Vec<NamedDevice>, CliError> {
    if request.devices.is_empty() {
        return share::offered(processes);
    }
    let all = suggest::devices(&request.devices)?;
    let (rank, size) = (processes.rank(), processes.size());
    if size == 1 {
        return Ok(all);
    }
    let mut settings = PipelineSettings {
        stages: all.len().max(size),
        devices: request.devices.clone(),
        ..PipelineSettings::default()
    };
    settings.spread(size)?;
    let names = settings.devices.iter().filter_map(|name| {
        let (process, device) = name.split_once('/')?;
        (process.parse() == Ok(rank)).then(|| device.to_owned())
    });
    suggest::devices(&names.collect::<Vec<_>>())
}

pub fn main(matches: &ArgMatches, processes: &Processes) -> Result<ExitCode, CliError> {
    let request = DevicesFlags::from_arg_matches(matches)?;
    let devices = own_devices(&request, processes);
    let devices = processes.agree(devices)?;
    processes.first(|| request.out.as_deref().map_or(Ok(()), output::check_file))?;
    let is_chosen = !request.devices.is_empty();
    let survey = Survey::of(&devices, (is_chosen, request.list), processes)?;
    if let Some(path) = &request.out {
        let machine = survey.machine(processes)?;
        processes.first(|| {
            let no_devices = || usage!("no device can be used, so no machine file was written");
            output::write(path, &machine.ok_or_else(no_devices)?.to_toml())
        })?;
    }
    if processes.is_first() {
        output::print_either(request.json, || survey.json(), || survey.text())?;
    }
    Ok(ExitCode::SUCCESS)
}
