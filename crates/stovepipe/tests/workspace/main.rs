//! How the workspace is put together: which crate may depend on which, that files do not import one
//! another in circles, and what each feature of the facade builds.

#![allow(clippy::unwrap_used)]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

mod circles;
mod edges;
mod features;
mod metadata;
mod published;

fn root() -> PathBuf {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    Path::new(root).canonicalize().unwrap()
}

/// What cargo prints. It asks no registry: all that a test needs has been fetched to build it.
fn cargo(arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    command.args(arguments).args(["--locked", "--offline"]);
    let output = command.current_dir(root()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {arguments:?}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}
