//! Goes on without devices that were lost: this program starts itself again, since only a new process is sure to be rid
//! of a device that hangs.

use std::{
    env,
    ffi::OsStr,
    process::{Command, ExitCode},
    time::Duration,
};

use clap::ValueEnum;
use stovepipe::{
    pipeline::{NamedDevice, device::lost_devices},
    train::{
        PipelineSettings, RunFolder,
        settings::{BalanceSetting, ScheduleSetting},
    },
};

use super::messages::unfinished;
use crate::{
    config::portable,
    error::{CliError, usage, with_sources},
    files::CONFIG,
    output,
    settings::Settings,
};

pub const FLAG: &str = "--on-device-lost";
/// How long a device may take to add a few numbers. The first time, it compiles for that.
const LIMIT: Duration = Duration::from_secs(30);

/// What to do if a device is lost or hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnDeviceLost {
    /// The run ends with an error
    Stop,
    /// The run goes on from its newest checkpoint, on the other devices
    Continue,
}

/// Ends a run that failed with its error, or goes on with the devices that are left, if one is lost.
pub fn go_on(
    error: CliError,
    settings: &Settings,
    folder: RunFolder,
) -> Result<ExitCode, CliError> {
    let error = unfinished(error, &folder);
    let pipeline = &settings.pipeline;
    let lost = lost_devices(&pipeline.worker_devices()?, LIMIT);
    if lost.is_empty() {
        return Err(error);
    }
    let names = |devices: &[NamedDevice]| {
        let names = devices.iter().map(|device| device.name.clone());
        names.collect::<Vec<_>>().join(", ")
    };
    let lost_names = names(&lost);
    let Some(pipeline) = without(pipeline, &lost)? else {
        return Err(usage!("{error}\nall devices are lost: {lost_names}"));
    };
    let (devices, error) = (pipeline.devices.join(", "), with_sources(&error));
    output::say(&format!(
        "{error}\n{lost_names} is lost or hangs: going on with {devices}, from the newest checkpoint\n"
    ));
    let settings = Settings {
        pipeline,
        ..settings.clone()
    };
    let config = portable(&settings).map_err(CliError::file(&folder.file(CONFIG)))?;
    folder.write(CONFIG, config.as_bytes())?;
    let path = folder.leave();
    let program = env::current_exe().map_err(|error| usage!("{FLAG}: {error}"))?;
    let mut command = Command::new(program);
    let words = ["train", "--resume", FLAG, "continue", "--out"];
    command.args(words.map(OsStr::new)).arg(path);
    started(&mut command)
}

/// The settings for the devices that are left, if there are any.
fn without(
    settings: &PipelineSettings,
    lost: &[NamedDevice],
) -> Result<Option<PipelineSettings>, CliError> {
    let devices = settings.worker_devices()?.into_iter().enumerate();
    let left: Vec<_> = devices
        .filter(|(_, device)| !lost.contains(device))
        .collect();
    if left.is_empty() {
        return Ok(None);
    }
    let memory = &settings.device_memory;
    let memory = match memory.len() {
        0 | 1 => memory.clone(),
        _ => left
            .iter()
            .filter_map(|(worker, _)| memory.get(*worker).copied())
            .collect(),
    };
    // A file has the actions of each worker.
    let schedule = match &settings.schedule {
        ScheduleSetting::File(_) => PipelineSettings::default().schedule,
        rule => rule.clone(),
    };
    Ok(Some(PipelineSettings {
        stages: left.len(),
        devices: left.into_iter().map(|(_, device)| device.name).collect(),
        replicas: vec![1],
        shares: Vec::new(),
        balance: BalanceSetting::Auto,
        device_memory: memory,
        schedule,
        ..settings.clone()
    }))
}

/// This process becomes the other program.
#[cfg(unix)]
fn started(command: &mut Command) -> Result<ExitCode, CliError> {
    use std::os::unix::process::CommandExt;

    let error = command.exec();
    Err(usage!(
        "{FLAG}: the program could not be started again: {error}"
    ))
}

#[cfg(not(unix))]
fn started(command: &mut Command) -> Result<ExitCode, CliError> {
    let status = command.status();
    let status = status
        .map_err(|error| usage!("{FLAG}: the program could not be started again: {error}"))?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}
