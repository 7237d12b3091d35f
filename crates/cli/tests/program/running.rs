//! Ways to run the program.

use std::{
    path::Path,
    process::{Command, Output},
};

pub fn command(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stovepipe"));
    command.args(arguments).current_dir(directory);
    command.env("XDG_RUNTIME_DIR", directory); // graphics drivers ask for one
    command
}

/// The program as it is called by a line without quotes.
pub fn typed(line: &str, directory: &Path) -> Command {
    command(&line.split_whitespace().collect::<Vec<_>>(), directory)
}

pub fn stovepipe(arguments: &[&str], directory: &Path) -> Output {
    command(arguments, directory).output().unwrap()
}

/// Runs a line, which must succeed. Returns what it prints.
pub fn succeed(line: &str, directory: &Path) -> String {
    let output = typed(line, directory).output().unwrap();
    check_success(line, &output);
    text(&output.stdout)
}

pub fn check_success(line: &str, output: &Output) {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {error}");
    assert!(!error.contains("panicked"), "{line}: {error}");
}

/// The program must end with an error that says this, and not panic.
pub fn check_refused(mut command: Command, says: &str) {
    let output = command.output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{command:?} succeeded");
    assert!(error.contains(says), "{command:?}: {error}");
    assert!(!error.contains("panicked"), "{command:?}: {error}");
    assert!(!error.contains("error: error"), "{command:?}: {error}");
}

/// A subcommand with flags and their values, but for those that `more` has as well, and `more`.
pub fn over<'a>(arguments: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    let (subcommand, flags) = arguments.split_first().unwrap();
    let kept = flags.chunks(2).filter(|flag| !more.contains(&flag[0]));
    [
        &[*subcommand],
        &*kept.flatten().copied().collect::<Vec<_>>(),
        more,
    ]
    .concat()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
