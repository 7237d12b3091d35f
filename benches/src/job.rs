//! A pipeline in several processes, which `mpirun` starts.
//!
//! Process 0 is asked for turns. Before each step it tells the others to make it, too.

use std::{env, process::Command, sync::Arc};

use stovepipe::train::Processes;
use stovepipe_comm::Communicator;

use crate::Failure;

const BUILD: &str = "pipelines in several processes need a build with `--features mpi`";

/// The command that starts this program with these processes, on this machine.
pub fn command(count: usize) -> Result<Command, Failure> {
    let program = env::current_exe()?;
    if count == 1 {
        return Ok(Command::new(program));
    }
    if cfg!(not(feature = "mpi")) {
        return Err(BUILD.into());
    }
    let mut command = stovepipe_comm_mpi::mpirun(count)?;
    command.arg(program);
    Ok(command)
}

/// The communicator of this process's job.
#[cfg(feature = "mpi")]
pub fn join() -> Result<Arc<Communicator>, Failure> {
    Ok(stovepipe_comm_mpi::init(None)?.into())
}

#[cfg(not(feature = "mpi"))]
pub fn join() -> Result<Arc<Communicator>, Failure> {
    Err(BUILD.into())
}

/// What a process of a job does in its turns; nothing in a process by itself.
#[derive(Default)]
pub struct Job(Processes);

impl Job {
    pub fn new(communicator: Option<Arc<Communicator>>) -> Self {
        Self(Processes::new(communicator))
    }

    /// All make a step, if the first one does.
    pub fn begin_step(&self) -> Result<(), Failure> {
        match self.0.size() == 1 || self.0.of_first(true)? {
            true => Ok(()),
            false => Err("the first process is done".into()),
        }
    }

    /// Bytes that this process has sent to others.
    pub fn bytes_sent(&self) -> u64 {
        (self.0.communicator()).map_or(0, |communicator| communicator.bytes_sent())
    }
}

impl Drop for Job {
    /// The others end.
    fn drop(&mut self) {
        if self.0.size() > 1 && self.0.is_first() {
            let _ = self.0.of_first(false);
        }
    }
}
