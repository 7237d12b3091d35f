//! The example, run as a user would.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{path::Path, process::Command};

/// Runs the example and returns the lines that its bars leave.
fn learner(out: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_learner"));
    let command = command.args(arguments).arg("--bars").arg("--out").arg(out);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

/// The validation metric in the last line of an epoch.
fn valid(said: &str, metric: &str) -> f64 {
    let is_epoch = |line: &&str| line.starts_with("epoch ") && line.contains("| valid ");
    let line = said.lines().rfind(is_epoch);
    let text = line.unwrap().split("| valid ").nth(1).unwrap();
    let text = text.split(metric).nth(1).unwrap().trim_start();
    let number = text.split(' ').next().unwrap();
    number.parse().unwrap_or_else(|_| panic!("{said}"))
}

#[test]
fn two_stages_learn_what_one_device_learns() {
    let directory = tempfile::tempdir().unwrap();
    let (one, two) = (directory.path().join("one"), directory.path().join("two"));

    // A training of one device resumes in two stages as on one device, with weights and optimizer.
    let began = learner(&one, &["before", "--epochs", "2"]);
    copy(&one.join("checkpoint"), &two.join("checkpoint"));
    let before = learner(&one, &["before", "--epochs", "4", "--resume", "2"]);
    let after = learner(&two, &["after", "--epochs", "4", "--resume", "2"]);
    let loss = |said| valid(said, "Loss");
    assert!(loss(&after) < 0.8 * loss(&began), "{began}{after}");
    let apart = (loss(&after) - loss(&before)).abs();
    assert!(apart < 2e-3, "{before}{after}");

    assert!(valid(&after, "Accuracy") > 90.0, "{after}");
    for file in ["model-4.bpk", "optim-4.bpk", "scheduler-4.bpk"] {
        assert!(two.join("checkpoint").join(file).exists(), "{file}");
    }
    assert!(two.join("valid").exists(), "metrics are burn-train's files");
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for file in std::fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
}

#[test]
fn there_is_little_to_change() {
    let lines = |text: &'static str| text.lines().filter(|line| !line.trim().is_empty());
    let before: Vec<_> = lines(include_str!("../src/before.rs")).collect();
    let after: Vec<_> = lines(include_str!("../src/after.rs")).collect();
    let same = common(&before, &after);
    let (gone, new) = (before.len() - same, after.len() - same);
    assert!(gone <= 40, "{gone} lines are gone");
    assert!(new <= 35, "{new} lines are new");
}

/// The length of the longest common subsequence: the lines that `diff` does not show.
fn common(a: &[&str], b: &[&str]) -> usize {
    let mut row = vec![0; b.len() + 1];
    for x in a {
        let mut corner = 0;
        for (j, y) in b.iter().enumerate() {
            let above = row[j + 1];
            row[j + 1] = if x == y {
                corner + 1
            } else {
                above.max(row[j])
            };
            corner = above;
        }
    }
    row[b.len()]
}
