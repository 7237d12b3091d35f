//! The benchmark runs from end to end with a few steps. Its values are not tested.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{fs, process::Command};

#[test]
fn all_sides_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_stovepipe-agreeing"));
    command.args(["--quick", "--out"]).arg(folder.path());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = fs::read_to_string(folder.path().join("agreeing.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), if cfg!(feature = "mpi") { 4 } else { 2 });
    assert!(rows.iter().all(|row| row["us"].as_f64().unwrap() > 0.0));
}
