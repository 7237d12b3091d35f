//! The example, run as a user would.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

#[test]
fn it_learns_digits_and_leaves_a_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_custom-model"));
    let output = command.current_dir(directory.path()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let accuracy = said
        .split("accuracy ")
        .nth(1)
        .unwrap()
        .split(' ')
        .next()
        .unwrap();
    assert!(accuracy.parse::<f64>().unwrap() > 90.0, "{said}");
    assert!(
        directory
            .path()
            .join("runs/custom-model-1/model.safetensors")
            .exists()
    );
}

#[test]
fn it_is_short() {
    assert!(include_str!("../src/main.rs").lines().count() < 45);
}
