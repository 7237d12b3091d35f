//! Signals that end a training: Ctrl-C, SIGTERM, and SIGHUP of a terminal that is closed.

use std::{
    fs, io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use signal_hook::{consts, flag};

use crate::output;

/// The exit status of an interrupted process: 128 and the number of the signal.
pub const INTERRUPTED: u8 = 130;

const INTERVAL: Duration = Duration::from_millis(50);

/// Calls `stop` at the first signal; of a process of a job also at SIGUSR1. A second Ctrl-C or SIGTERM ends the program.
pub fn on_stop(in_job: bool, stop: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [consts::SIGINT, consts::SIGTERM] {
        flag::register_conditional_shutdown(signal, INTERRUPTED.into(), Arc::clone(&asked))?;
        flag::register(signal, Arc::clone(&asked))?;
    }
    // mpirun passes this one on, where others end the job.
    #[cfg(unix)]
    if in_job {
        flag::register(consts::SIGUSR1, Arc::clone(&asked))?;
    }
    // A closed terminal may send more than one, and `nohup` wants none to count.
    #[cfg(unix)]
    if !is_ignored(consts::SIGHUP) {
        flag::register(consts::SIGHUP, Arc::clone(&asked))?;
    }
    thread::spawn(move || {
        while !asked.load(Ordering::SeqCst) {
            thread::sleep(INTERVAL);
        }
        stop();
        let what = "saving and testing what was trained (Ctrl-C again to end at once)";
        output::say(&format!("stopping after this step: {what}\n"));
    });
    Ok(())
}

/// Whether the program was started with this signal ignored; only Linux says so.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
