//! Goes on without devices that were lost: this program starts itself again, since only a new process is sure to be rid
//! of a device that hangs.

use std::{
    collections::BTreeSet,
    env,
    ffi::OsString,
    io,
    path::PathBuf,
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
use toml::{Table, Value};

use super::{
    fit::Open,
    messages::{resume_command, unfinished},
};
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

impl OnDeviceLost {
    /// As a flag, after a space; nothing for what is usual.
    pub const fn flag(self) -> &'static str {
        match self {
            Self::Stop => "",
            Self::Continue => " --on-device-lost continue",
        }
    }
}

/// Ends a run of a model with so many layers that failed with its error, or goes on with the devices that are left, if
/// one is lost. What `open` says is chosen again, for these.
pub fn go_on(
    error: CliError,
    (settings, open): (&Settings, Option<Open>),
    layers: usize,
    folder: RunFolder,
) -> Result<ExitCode, CliError> {
    let pipeline = &settings.pipeline;
    let lost = match may_be_of_a_device(&error) {
        true => lost_devices(&pipeline.worker_devices()?, LIMIT),
        false => Vec::new(),
    };
    if lost.is_empty() {
        return Err(unfinished(error, &folder, OnDeviceLost::Continue.flag()));
    }
    let lost_names = names(&lost);
    let Some(pipeline) = without(pipeline, open.unwrap_or_default(), &lost)? else {
        let error = with_sources(&unfinished(error, &folder, OnDeviceLost::Continue.flag()));
        return Err(usage!("{error}\nno device is left without {lost_names}"));
    };
    if let Err(why) = pipeline.check(layers) {
        let error = with_sources(&unfinished(error, &folder, OnDeviceLost::Continue.flag()));
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
    let config = config(&settings, open.unwrap_or_default());
    let config = config.map_err(CliError::file(&folder.file(CONFIG)))?;
    folder.write(CONFIG, config.as_bytes())?;
    let folder = folder.leave();
    let mut out = OsString::from("--out=");
    out.push(&folder);
    let mut command = Command::new(program());
    command
        .args(["train", "--resume", FLAG, "continue"])
        .arg(out);
    if open.is_some() {
        command.args(["--memory", "auto"]);
    }
    started(&mut command).map_err(|error| {
        let to_go_on = resume_command(&folder, OnDeviceLost::Continue.flag());
        usage!("{FLAG}: the program could not be started again: {error}; to go on: {to_go_on}")
    })
}

/// Whether a step failed or hung, and not because of the loss or for want of memory, or what is saved could not be read.
fn may_be_of_a_device(error: &CliError) -> bool {
    let mut error = match error {
        CliError::Train(error) => error,
        CliError::Step(step) => return may_be_a_loss(step),
        _ => return false,
    };
    while let TrainError::NotSaved(cause) = error {
        error = cause;
    }
    match error {
        TrainError::Step(step) => may_be_a_loss(step),
        TrainError::NotFetched { .. } => true,
        _ => false,
    }
}

fn may_be_a_loss(step: &StepError) -> bool {
    !matches!(step, StepError::NotFinite { .. }) && !is_out_of_memory(&step.to_string())
}

/// Their names, each once.
fn names(devices: &[NamedDevice]) -> String {
    let names: BTreeSet<_> = devices.iter().map(|device| device.name.as_str()).collect();
    names.into_iter().collect::<Vec<_>>().join(", ")
}

/// The configuration without what is open.
fn config(settings: &Settings, open: Open) -> Result<String, toml::ser::Error> {
    let mut table = Table::try_from(settings)?;
    if let Some(pipeline) = table.get_mut("pipeline").and_then(Value::as_table_mut) {
        pipeline.retain(|key, _| !open.has(key));
    }
    portable(&table)
}

/// The settings for the devices that are left, if there are any.
fn without(
    settings: &PipelineSettings,
    open: Open,
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
    let default = PipelineSettings::default();
    // A file has the actions of each worker.
    let schedule = match &settings.schedule {
        ScheduleSetting::Rule(rule) if !open.schedule => ScheduleSetting::Rule(*rule),
        _ => default.schedule,
    };
    let recompute = match open.recompute {
        true => default.recompute,
        false => settings.recompute.clone(),
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
        recompute,
        ..settings.clone()
    }))
}

/// This program, also if its file was replaced since it was started.
fn program() -> PathBuf {
    match cfg!(target_os = "linux") {
        true => PathBuf::from("/proc/self/exe"),
        false => env::current_exe().unwrap_or_default(),
    }
}

/// This process becomes the other program.
#[cfg(unix)]
fn started(command: &mut Command) -> io::Result<ExitCode> {
    use std::os::unix::process::CommandExt;

    // Its own name, not that of the link.
    if let Some(name) = env::args_os().next() {
        command.arg0(name);
    }
    Err(command.exec())
}

#[cfg(not(unix))]
fn started(command: &mut Command) -> io::Result<ExitCode> {
    let code = command.status()?.code();
    let code = code.and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use stovepipe::{pipeline::Recompute, schedule::Rule, train::settings::RecomputeSetting};

    use super::*;

    fn settings(devices: &[&str], more: PipelineSettings) -> PipelineSettings {
        PipelineSettings {
            devices: devices.iter().map(|&name| name.to_owned()).collect(),
            ..more
        }
    }

    /// The settings without the devices of this name.
    fn left(settings: &PipelineSettings, name: &str) -> Option<PipelineSettings> {
        without(settings, Open::default(), &[name.parse().unwrap()]).unwrap()
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

    /// What was chosen for the devices that were there is chosen again, and what was asked for is not.
    #[test]
    fn what_was_open_is_open_again() {
        let [one, two] = ["cpu:threads=1", "cpu:threads=2"];
        let chosen = settings(
            &[one, two],
            PipelineSettings {
                stages: 2,
                schedule: ScheduleSetting::Rule(Rule::GPipe),
                recompute: RecomputeSetting::Fixed(Recompute::Always),
                ..PipelineSettings::default()
            },
        );
        let flags = || super::super::command().get_matches_from(["train"]);
        let mut run = Settings::read(None, None, None, &flags()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = |schedule, recompute| Open {
            schedule,
            recompute,
        };
        for own in [
            open(false, false),
            open(false, true),
            open(true, false),
            Open::ALL,
        ] {
            let left = without(&chosen, own, &[two.parse().unwrap()]).unwrap();
            run.pipeline = left.unwrap();
            std::fs::write(file.path(), config(&run, own).unwrap()).unwrap();
            assert_eq!(Open::of(&flags(), (Some(file.path()), None)), own);
            let found = Settings::load(file.path()).unwrap().pipeline;
            let default = PipelineSettings::default();
            let [schedule, recompute] =
                [own.schedule, own.recompute].map(|is_open| match is_open {
                    true => &default,
                    false => &chosen,
                });
            assert_eq!(found.schedule, schedule.schedule);
            assert_eq!(found.recompute, recompute.recompute);
            assert_eq!((found.stages, found.devices), (1, vec![one.to_owned()]));
        }
    }

    #[test]
    fn only_errors_of_steps_may_be_of_a_device() {
        let of = |step| may_be_of_a_device(&CliError::Train(TrainError::Step(step)));
        assert!(of(StepError::Lost));
        assert!(!may_be_of_a_device(&CliError::NotOfText));
        let saving = |cause| CliError::Train(TrainError::NotSaved(Box::new(cause)));
        assert!(may_be_of_a_device(&saving(TrainError::NotFetched {
            path: "run".into(),
            cause: "lost".to_owned(),
        })));
        assert!(!may_be_of_a_device(&saving(TrainError::File {
            path: "run".into(),
            source: io::ErrorKind::StorageFull.into(),
        })));
    }
}
