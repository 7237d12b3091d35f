//! Keeps freed memory in the allocator.

/// Makes [mimalloc](https://docs.rs/mimalloc) keep freed memory: restarts the program with
/// `MIMALLOC_PURGE_DELAY=-1` unless that is set. Call it first in `main`. Does nothing without
/// mimalloc, or on systems other than Unix.
///
/// Each step allocates and frees the same tensors. By default, mimalloc returns memory to the system
/// after a second, and the system clears it page by page before the next use: long steps can take
/// twice as long. mimalloc reads the variable before `main` and has no safe way to change it later.
pub fn keep_freed_memory() {
    #[cfg(unix)]
    if std::env::var_os(PURGE_DELAY).is_none() {
        restart();
    }
}

#[cfg(unix)]
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// Replaces this process. Returns if that fails: the program then runs, only slower.
#[cfg(unix)]
fn restart() {
    use std::{os::unix::process::CommandExt, process::Command};

    let mut arguments = std::env::args_os();
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut command = Command::new(program);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    let _ = command.args(arguments).env(PURGE_DELAY, "-1").exec();
}
