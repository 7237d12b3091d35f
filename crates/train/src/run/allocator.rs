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
    {
        use std::{env, os::unix::process::CommandExt, process::Command};

        const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";
        let mut arguments = env::args_os();
        if let (None, Ok(program)) = (env::var_os(PURGE_DELAY), env::current_exe()) {
            let mut command = Command::new(program);
            if let Some(name) = arguments.next() {
                command.arg0(name);
            }
            // Replaces this process. If that fails, the program runs too, only slower.
            let _ = command.args(arguments).env(PURGE_DELAY, "-1").exec();
        }
    }
}
