//! `--processes`: starts this program again, as the processes of a job.

use std::{
    env,
    ffi::{OsStr, OsString},
    io,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use clap::ArgMatches;
use signal_hook::{consts, flag};
use stovepipe::train::settings::cores;

use crate::{
    error::{CliError, usage},
    output, processes,
};

const FLAG: &str = "--processes";
const INTERVAL: Duration = Duration::from_millis(50);

/// The processes that the flag asks for.
pub fn asked(flags: &ArgMatches) -> Option<usize> {
    flags.try_get_one("processes").ok().flatten().copied()
}

/// Starts the job, waits for it, and passes signals on to it.
pub fn start(count: usize) -> Result<ExitCode, CliError> {
    if let Some(launcher) = stovepipe_comm_mpi::launcher() {
        return Err(usage!(
            "{FLAG} starts mpirun, but {launcher} has started this program: leave {FLAG} out"
        ));
    }
    if count == 0 {
        return Err(usage!("{FLAG} is 0: give 1 or more"));
    }
    processes::check_built()?;
    let mut line = command(count)?;
    output::say(&format!("{}\n", shown(&line)));
    // Ctrl-C reaches all processes of a terminal's group: mpirun would not wait for the checkpoint.
    #[cfg(unix)]
    std::os::unix::process::CommandExt::process_group(&mut line, 0);
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [consts::SIGINT, consts::SIGTERM] {
        flag::register(signal, asked.clone()).map_err(CliError::Signal)?;
    }
    let mut job = line.spawn().map_err(not_started)?;
    let mut interrupted = false;
    loop {
        if asked.swap(false, Ordering::SeqCst) {
            pass_on(&job, interrupted);
            interrupted = true;
        }
        if let Some(status) = job.try_wait().map_err(not_started)? {
            let code = status.code().and_then(|code| u8::try_from(code).ok());
            return Ok(match code {
                Some(0) => ExitCode::SUCCESS,
                _ if interrupted => ExitCode::from(crate::train::INTERRUPTED),
                code => ExitCode::from(code.unwrap_or(1)),
            });
        }
        thread::sleep(INTERVAL);
    }
}

/// The first signal ends the job after its step, the second at once. mpirun passes SIGUSR1 on; after SIGTERM it
/// gives its processes a second.
fn pass_on(job: &Child, again: bool) {
    let signal = if again { "-TERM" } else { "-USR1" };
    let mut kill = Command::new("kill");
    let _ = kill.args([signal, &job.id().to_string()]).status();
}

fn not_started(error: io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::NotFound => usage!(
            "{FLAG} needs mpirun, which was not found: install an MPI library (on Debian: openmpi-bin)"
        ),
        _ => usage!("mpirun could not be started: {error}"),
    }
}

/// `mpirun`, this program and its arguments, but for the flag.
fn command(count: usize) -> Result<Command, CliError> {
    if count > cores() {
        let turns = "more processes than cores: they take turns";
        output::say(&format!(
            "warning: {count} processes on {}: {turns}\n",
            cores()
        ));
    }
    let mut line = stovepipe_comm_mpi::mpirun(count).map_err(not_started)?;
    let program = env::current_exe().map_err(not_started)?;
    line.arg(program)
        .args(arguments_without(|flag| flag == FLAG));
    line.stdin(Stdio::null());
    Ok(line)
}

/// The arguments of this program without some flags and their values.
pub fn arguments_without(is_dropped: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut arguments = env::args_os().skip(1);
    let mut kept = Vec::new();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        let (flag, value) = match text.split_once('=') {
            Some((flag, value)) => (flag, Some(value)),
            None => (&*text, None),
        };
        if !is_dropped(flag) {
            kept.push(argument);
        } else if value.is_none() {
            arguments.next();
        }
    }
    kept
}

/// Words as a shell would take them.
pub fn quoted(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    let words = words.into_iter();
    let words: Vec<_> = words
        .map(|word| word.as_ref().to_string_lossy().into_owned())
        .collect();
    let all = words.iter().map(String::as_str);
    shlex::try_join(all).unwrap_or_else(|_| words.join(" "))
}

/// The line as a shell would take it.
fn shown(command: &Command) -> String {
    let words = [command.get_program()]
        .into_iter()
        .chain(command.get_args());
    quoted(words)
}
