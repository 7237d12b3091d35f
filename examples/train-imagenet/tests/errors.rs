//! What goes wrong is said in words.
#![allow(clippy::unwrap_used, missing_docs)]

use std::process::Command;

#[test]
fn a_path_that_is_not_there_is_named() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_train-imagenet"));
    let output = command.arg("no-such-path").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(said.starts_with("error: no-such-path"), "{said}");
    assert!(!said.contains('{'), "{said}");
}
