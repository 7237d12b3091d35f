//! What a program can do for its allocator.

/// Has [mimalloc](https://docs.rs/mimalloc) keep the memory that is freed, by starting the program
/// anew with `MIMALLOC_PURGE_DELAY=-1` if that is not set: call it first in `main`. Does nothing if
/// mimalloc is not the allocator, or elsewhere than on Unix.
///
/// ```no_run
/// stovepipe_train::keep_freed_memory();
/// // and then whatever the program does
/// ```
///
/// A step allocates and frees the same tensors as the one before. By default mimalloc gives what
/// nobody used for a second back to the system, which clears it page by page when it is wanted again.
/// Where a step takes longer than that, it can take twice as long. mimalloc reads the setting before
/// `main` and has no safe way to change it later.
pub fn keep_freed_memory() {
    #[cfg(unix)]
    if std::env::var_os(PURGE_DELAY).is_none() {
        start_anew();
    }
}

#[cfg(unix)]
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// Replaces this process. Returns if that failed: the program then goes on, only slower.
#[cfg(unix)]
fn start_anew() {
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
