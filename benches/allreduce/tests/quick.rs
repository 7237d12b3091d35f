//! The benchmark runs from end to end on small tensors. Its values are not tested.
#![allow(clippy::unwrap_used, missing_docs)]

use std::{fs, process::Command};

#[test]
fn all_sides_that_are_there() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_stovepipe-allreduce"));
    command.args(["--quick", "--out"]).arg(folder.path());
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = fs::read_to_string(folder.path().join("allreduce.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = results["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3);
    let sides = if cfg!(feature = "mpi") {
        &["threads", "ring over MPI", "group by MPI", "MPI_Allreduce"][..]
    } else {
        &["threads"]
    };
    for side in sides {
        assert!(
            rows.iter()
                .all(|row| row[side]["gb_per_s"].as_f64().unwrap() > 0.0)
        );
    }
}
