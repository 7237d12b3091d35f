//! Goes on without devices that were lost: this program starts itself again, since only a new process is sure to be rid
//! of a device that hangs.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    process::{Command, ExitCode},
    time::Duration,
};

use clap::ValueEnum;
use stovepipe::{
    pipeline::{
        NamedDevice, StepError,
        device::{is_out_of_memory, lost_devices},
    },
    train::{
        PipelineSettings, RunFolder, TrainError,
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

/// Ends a run of a model with so many layers that failed with its error, or goes on with the devices that are left, if
/// one is lost.
pub fn go_on(
    error: CliError,
    (settings, layers): (&Settings, usize),
    folder: RunFolder,
) -> Result<ExitCode, CliError> {
    let pipeline = &settings.pipeline;
    let lost = match may_be_of_a_device(&error) {
        true => lost_devices(&pipeline.worker_devices()?, LIMIT),
        false => Vec::new(),
    };
    if lost.is_empty() {
        return Err(unfinished(error, &folder));
    }
    let lost_names = names(&lost);
    let Some(pipeline) = without(pipeline, &lost)? else {
        let error = with_sources(&unfinished(error, &folder));
        return Err(usage!("{error}\nno device is left without {lost_names}"));
    };
    if let Err(why) = pipeline.check(layers) {
        let error = with_sources(&unfinished(error, &folder));
        return Err(usage!(
            "{error}\nwithout {lost_names}, the settings fit no longer: {why}"
        ));
    }
    let begin = match folder.checkpoints().list()?.pop() {
        Some(newest) => format!("checkpoint {}", newest.name()),
        None => "the beginning".to_owned(),
    };
    output::say(&format!(
        "{}\nlost, or hanging: {lost_names}; going on with {} from {begin}\n",
        with_sources(&error),
        names(&pipeline.worker_devices()?)
    ));
    let settings = Settings {
        pipeline,
        ..settings.clone()
    };
    let config = portable(&settings).map_err(CliError::file(&folder.file(CONFIG)))?;
    folder.write(CONFIG, config.as_bytes())?;
    let mut out = OsString::from("--out=");
    out.push(folder.leave());
    let program = env::current_exe().map_err(|error| usage!("{FLAG}: {error}"))?;
    let mut command = Command::new(program);
    command
        .args(["train", "--resume", FLAG, "continue"])
        .arg(out);
    started(&mut command)
}

/// Whether a step failed or hung, and not because of the loss or for want of memory.
fn may_be_of_a_device(error: &CliError) -> bool {
    let (CliError::Train(TrainError::Step(step)) | CliError::Step(step)) = error else {
        return false;
    };
    !matches!(step, StepError::NotFinite { .. }) && !is_out_of_memory(&step.to_string())
}

/// Their names, each once.
fn names(devices: &[NamedDevice]) -> String {
    let names: BTreeSet<_> = devices.iter().map(|device| device.name.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
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
    // That of each stage is for as many stages as there were.
    let balance = match &settings.balance {
        BalanceSetting::Layers(_) => BalanceSetting::Auto,
        by => by.clone(),
    };
    Ok(Some(PipelineSettings {
        stages: left.len(),
        devices: left.into_iter().map(|(_, device)| device.name).collect(),
        replicas: vec![1],
        shares: Vec::new(),
        balance,
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn settings(devices: &[&str], more: PipelineSettings) -> PipelineSettings {
        PipelineSettings {
            devices: devices.iter().map(|&name| name.to_owned()).collect(),
            ..more
        }
    }

    /// The settings without the devices of this name.
    fn left(settings: &PipelineSettings, name: &str) -> Option<PipelineSettings> {
        without(settings, &[name.parse().unwrap()]).unwrap()
    }

    #[test]
    fn settings_fit_the_devices_that_are_left() {
        let [one, two, three] = ["cpu:threads=1", "cpu:threads=2", "cpu:threads=3"];
        let replicas = settings(
            &[one, two, one, three],
            PipelineSettings {
                stages: 2,
                replicas: vec![2],
                shares: vec![3, 1],
                device_memory: vec![1, 2, 3, 4],
                balance: BalanceSetting::Layers(vec![5, 4]),
                schedule: ScheduleSetting::File("of-two.csv".into()),
                micro_batches: 8,
                ..PipelineSettings::default()
            },
        );
        let found = left(&replicas, two).unwrap();
        let expected = PipelineSettings {
            stages: 3,
            device_memory: vec![1, 3, 4],
            micro_batches: 8,
            ..PipelineSettings::default()
        };
        assert_eq!(found, settings(&[one, one, three], expected));
        found.check(3).unwrap();
        assert!(found.check(2).is_err(), "more stages than layers");
        // A device that is named twice is lost twice.
        let found = left(&replicas, one).unwrap();
        assert_eq!((found.stages, &found.device_memory[..]), (2, &[2, 4][..]));
        // One device for all workers.
        assert_eq!(
            left(&settings(&[two], PipelineSettings::default()), two),
            None
        );
        let even = PipelineSettings {
            balance: BalanceSetting::Even,
            ..PipelineSettings::default()
        };
        assert_eq!(
            left(&settings(&[one, two], even), two).unwrap().balance,
            BalanceSetting::Even
        );
    }

    #[test]
    fn only_errors_of_steps_may_be_of_a_device() {
        let of = |step| may_be_of_a_device(&CliError::Train(TrainError::Step(step)));
        assert!(of(StepError::Lost));
        assert!(!may_be_of_a_device(&CliError::NotOfText));
    }
}
