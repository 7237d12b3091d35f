//! Ways to run the program.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

pub fn command(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stovepipe"));
    command.args(arguments).current_dir(directory);
    command.env("XDG_RUNTIME_DIR", directory); // graphics drivers ask for one
    command
}

/// The program as it is called by a line without quotes. Of a flag that is there twice, the last counts.
pub fn typed(line: &str, directory: &Path) -> Command {
    let mut flags: Vec<Vec<&str>> = vec![Vec::new()];
    for word in line.split_whitespace() {
        if word.starts_with("--") {
            flags.retain(|flag| flag.first() != Some(&word));
            flags.push(Vec::new());
        }
        flags.last_mut().unwrap().push(word);
    }
    command(&flags.concat(), directory)
}

/// What the program printed.
pub struct Printed {
    pub out: String,
    pub err: String,
}

impl Printed {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap()
    }
}

fn printed(output: Output) -> Printed {
    Printed {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// Runs a command, which must succeed.
pub fn succeeds(mut command: Command) -> Printed {
    let output = command.output().unwrap();
    let is_success = output.status.success();
    let printed = printed(output);
    assert!(is_success, "{command:?}: {}", printed.err);
    assert!(
        !printed.err.contains("panicked"),
        "{command:?}: {}",
        printed.err
    );
    printed
}

/// Runs a line, which must succeed.
pub fn run(line: &str, directory: &Path) -> Printed {
    succeeds(typed(line, directory))
}

/// Runs a line, which must succeed. Returns what it prints.
pub fn succeed(line: &str, directory: &Path) -> String {
    run(line, directory).out
}

/// The program must end with an error that says this, and not panic. Returns all of the error.
pub fn check_refused(mut command: Command, says: &str) -> String {
    let output = command.output().unwrap();
    let is_success = output.status.success();
    let error = printed(output).err;
    assert!(!is_success, "{command:?} succeeded");
    assert!(error.contains(says), "{command:?}: {error}");
    assert!(!error.contains("panicked"), "{command:?}: {error}");
    assert!(!error.contains("error: error"), "{command:?}: {error}");
    error
}

/// Runs a line, which must fail and say this.
pub fn refuse(line: &str, directory: &Path, says: &str) -> String {
    check_refused(typed(line, directory), says)
}

/// Runs a line in an empty folder, which must fail, say this, and leave nothing behind.
pub fn refuse_and_leave_nothing(line: &str, says: &str) {
    let directory = tempfile::tempdir().unwrap();
    refuse(line, directory.path(), says);
    let left = fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "{line} left files");
}

/// A table of cases, a line each: what is typed, ` => `, and what is expected.
pub fn cases(table: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.trim_start().split_once(" => ").unwrap())
}

pub fn json_file(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The summary of a run.
pub fn summary(directory: &Path, out: &str) -> Value {
    json_file(&directory.join(out).join("summary.json"))
}

/// The model of a run.
pub fn model(directory: &Path, out: &str) -> Vec<u8> {
    fs::read(directory.join(out).join("model.safetensors")).unwrap()
}

/// Each part must be in a text.
pub fn check_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}
