//! Ways to run the program.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::Value;
use tempfile::TempDir;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub fn command(arguments: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stovepipe"));
    command.args(arguments).current_dir(directory);
    command.env("XDG_RUNTIME_DIR", directory); // graphics drivers ask for one
    // What one test measures serves the others, and no cache of a user is changed.
    command.env(
        "XDG_CACHE_HOME",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/caches"),
    );
    command
}

/// A new folder, and ways to run the program in it.
pub struct Here(TempDir);

impl Here {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }

    pub fn is_empty(&self) -> bool {
        fs::read_dir(self.path()).unwrap().next().is_none()
    }

    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.join(name), content).unwrap();
    }

    pub fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.join(name)).unwrap()
    }

    pub fn read(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap()
    }

    pub fn json(&self, name: &str) -> Value {
        serde_json::from_slice(&self.bytes(name)).unwrap()
    }

    pub fn summary(&self, run: &str) -> Value {
        self.json(&format!("{run}/summary.json"))
    }

    pub fn accuracy(&self, run: &str) -> f64 {
        self.summary(run)["test"]["accuracy"].as_f64().unwrap()
    }

    pub fn model(&self, run: &str) -> Vec<u8> {
        self.bytes(&format!("{run}/model.safetensors"))
    }

    /// The program as it is called by a line without quotes.
    pub fn typed(&self, line: &str) -> Command {
        let words: Vec<_> = line.split_whitespace().collect();
        command(&words, self.path())
    }

    pub fn run(&self, line: &str) -> Printed {
        succeeds(self.typed(line))
    }

    /// Runs a line, which must succeed. Returns what it prints.
    pub fn succeed(&self, line: &str) -> String {
        self.run(line).out
    }

    /// Runs a line, which must succeed. Returns the JSON that it prints.
    pub fn json_of(&self, line: &str) -> Value {
        serde_json::from_str(&self.succeed(&format!("{line} --json"))).unwrap()
    }

    /// Runs a line, which must fail and say this.
    pub fn refuse(&self, line: &str, says: &str) -> String {
        check_refused(self.typed(line), says)
    }

    /// Runs the line of each case after `start`, which must fail as the case says.
    pub fn refuse_all(&self, start: &str, table: &str) {
        for (line, says) in cases(table) {
            self.refuse(&format!("{start} {line}"), says);
        }
    }
}

/// Runs a line in an empty folder, which must fail, say this, and leave nothing behind.
pub fn refuse_and_leave_nothing(line: &str, says: &str) {
    let here = Here::new();
    here.refuse(line, says);
    assert!(here.is_empty(), "{line} left files");
}

pub struct Printed {
    pub out: String,
    pub err: String,
}

fn printed(output: Output) -> Printed {
    Printed {
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

pub fn succeeds(mut command: Command) -> Printed {
    let output = command.output().unwrap();
    let is_success = output.status.success();
    let printed = printed(output);
    assert!(is_success, "{command:?}: {}", printed.err);
    check_lacks(&printed.err, &["panicked"]);
    printed
}

/// The program must end with an error that says this, and not panic. Returns all of the error.
pub fn check_refused(mut command: Command, says: &str) -> String {
    let output = command.output().unwrap();
    let is_success = output.status.success();
    let error = printed(output).err;
    assert!(!is_success, "{command:?} succeeded");
    assert!(error.contains(says), "{command:?}: {error}");
    check_lacks(&error, &["panicked", "error: error"]);
    error
}

/// A table of cases, a line each: what is typed, ` => `, and what is expected.
pub fn cases(table: &str) -> impl Iterator<Item = (&str, &str)> {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| line.trim_start().split_once(" => ").unwrap())
}

/// Each part must be in a text.
pub fn check_contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// None of the parts may be in a text.
pub fn check_lacks(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(!text.contains(part), "{part}: {text}");
    }
}
