//! The processes of a job: those that `mpirun` or `srun` started together.

use std::{
    thread,
    time::{Duration, Instant},
};

use clap::ArgMatches;
use stovepipe::{
    pipeline::{BuildError, StepError, error::ProcessError},
    train::{PipelineSettings, Processes, TrainError},
    verify::VerifyError,
};

use crate::{
    error::{CliError, usage},
    output,
    rank::is_first,
};

/// What it takes to have MPI.
const BUILD: &str = "build it with `--features mpi`, which needs an MPI library and libclang (on Debian: \
                     openmpi-bin, libopenmpi-dev and libclang-dev)";

/// How long others may take to leave, and how often this is looked at.
const TO_LEAVE: Duration = Duration::from_secs(2);
const INTERVAL: Duration = Duration::from_millis(10);

/// Joins the job that this process is part of, if any.
pub fn join(subcommand: &str, flags: &ArgMatches) -> Result<Processes, CliError> {
    let Some(launcher) = stovepipe_comm_mpi::launcher() else {
        return Ok(Processes::default());
    };
    // Found and kept now: MPI may set the variables that say it.
    let _ = is_first();
    // Processes meet before they read a configuration.
    let mut usual = PipelineSettings::default();
    if let Ok(Some(seconds)) = flags.try_get_one("stall_timeout") {
        usual.stall_timeout = *seconds;
    }
    let processes = connect(launcher, usual.stall_limit())?;
    let in_several = ["train", "eval", "plan", "devices", "verify"];
    if processes.size() > 1 && !in_several.contains(&subcommand) {
        return Err(usage!(
            "`{subcommand}` runs in one process: start it without a launcher"
        ));
    }
    Ok(processes)
}

#[cfg(feature = "mpi")]
fn connect(_: &str, limit: Option<Duration>) -> Result<Processes, CliError> {
    let comm = stovepipe_comm_mpi::init(limit)?;
    let is_alone = comm.size() == 1;
    Ok(Processes::new((!is_alone).then(|| comm.into())))
}

#[cfg(not(feature = "mpi"))]
fn connect(launcher: &str, _: Option<Duration>) -> Result<Processes, CliError> {
    match stovepipe_comm_mpi::launched() {
        Some(1) => Ok(Processes::default()),
        _ => Err(usage!(
            "{launcher} started this program, which was built without MPI: {BUILD}"
        )),
    }
}

/// Checks that this program can start a job.
pub fn check_built() -> Result<(), CliError> {
    match cfg!(feature = "mpi") {
        true => Ok(()),
        false => Err(usage!(
            "--processes: this program was built without MPI: {BUILD}"
        )),
    }
}

/// Says why the program fails: the first process does, for all. The others tell it why and end. If the first
/// one is silent, those that notice say so.
pub fn report(processes: &Processes, error: &CliError, text: &str) {
    let process_error = process_error(error);
    let is_first_silent = || match process_error {
        Some(ProcessError::Communication(error)) => {
            error.silent().iter().any(|peer| peer.rank == 0)
        }
        _ => false,
    };
    let line = format!("error: {text}\n");
    if is_first_silent() {
        output::say_in_any(&line);
    } else {
        output::say(&line);
    }
    let (None, Some(comm)) = (process_error, processes.communicator()) else {
        return;
    };
    // Others that know of it leave, too. Those that do not may wait for this process.
    let began = Instant::now();
    while !comm.is_alone() {
        if began.elapsed() > TO_LEAVE {
            comm.abort(text);
            return;
        }
        thread::sleep(INTERVAL);
    }
}

/// What happened in another process, or between them.
fn process_error(error: &CliError) -> Option<&ProcessError> {
    match error {
        CliError::Processes(error)
        | CliError::Step(StepError::Processes(error))
        | CliError::Build(BuildError::Processes(error))
        | CliError::Verify(
            VerifyError::Processes(error) | VerifyError::Build(BuildError::Processes(error)),
        )
        | CliError::Train(
            TrainError::Processes(error)
            | TrainError::Step(StepError::Processes(error))
            | TrainError::Build(BuildError::Processes(error)),
        ) => Some(error),
        // A step that another process, or the lack of one, has ended.
        CliError::Step(StepError::Cancelled(reason))
        | CliError::Train(TrainError::Step(StepError::Cancelled(reason))) => reason.downcast_ref(),
        CliError::Unfinished { error, .. } => process_error(error),
        _ => None,
    }
}
