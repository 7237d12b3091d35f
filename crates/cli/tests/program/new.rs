//! `new` and `completions`.

use std::{
    env, fs,
    os::unix::fs::symlink,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::running::{Here, check_contains, root, succeeds};

/// Cargo in the project.
fn cargo(here: &Here, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(line.split_whitespace())
        .current_dir(here.join("clone/first-model"));
    // Of the cargo that runs this test, and of `.ci/run`: Burn would be built again.
    for (name, _) in env::vars_os() {
        let is_of_test = |name: &str| {
            let others = [
                "RUSTC_BOOTSTRAP",
                "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER",
            ];
            name.starts_with("CARGO_PKG_") || others.contains(&name)
        };
        if name.to_str().is_some_and(is_of_test) {
            command.env_remove(name);
        }
    }
    command
}

/// Moves the project into a folder with all that is in the clone of Stovepipe, as one more package of its workspace:
/// so nothing is built again that was built for these tests.
fn join_workspace(here: &Here) {
    fs::create_dir(here.join("clone")).unwrap();
    for entry in fs::read_dir(root()).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let is_own = ["Cargo.lock", "Cargo.toml", "target"].contains(&&*name);
        if !is_own && !name.starts_with('.') {
            let original = entry.path().canonicalize().unwrap();
            symlink(original, here.join(format!("clone/{name}"))).unwrap();
        }
    }
    let original = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let packages = "[profile.release.package]\n";
    let quick = format!("{packages}first-model = {{ opt-level = 0 }}\n");
    let manifest =
        original("Cargo.toml").replace("\nmembers = [", "\nmembers = [\"first-model\", ");
    here.write("clone/Cargo.toml", manifest.replace(packages, &quick));
    here.write("clone/Cargo.lock", original("Cargo.lock"));
    fs::rename(here.join("first-model"), here.join("clone/first-model")).unwrap();

    // With what has Burn built as it was.
    let manifest = here.read("clone/first-model/Cargo.toml");
    let stovepipe = root().canonicalize().unwrap().join("crates/stovepipe");
    let more =
        "[dependencies]\nstovepipe-verify.workspace = true\nworkspace-hack.workspace = true\n";
    let manifest = manifest
        .replace(&stovepipe.display().to_string(), "../crates/stovepipe")
        .replace("[dependencies]\n", more);
    check_contains(&manifest, &["\"../crates/stovepipe\"", more]);
    here.write("clone/first-model/Cargo.toml", manifest);
}

/// The new project is what cargo and rustfmt want, its test passes, and it trains. `STOVEPIPE_TEST_PROFILE` is the file
/// of cargo's settings for these tests, if they have one, and `STOVEPIPE_TEST_FEATURES` are features of the workspace
/// that change what Burn is built from.
#[test]
fn a_new_project_trains() {
    let here = Here::new();
    let said = here.succeed("new first-model");
    check_contains(&said, &["cd first-model", "cargo run --release"]);
    join_workspace(&here);
    succeeds(cargo(&here, "fmt --check"));
    // <target>/release/deps/<this program>
    let own = env::current_exe().unwrap();
    let target: PathBuf = own.ancestors().nth(3).unwrap().to_owned();
    let mut flags = format!("--release --offline --target-dir {}", target.display());
    if cfg!(feature = "wgpu") {
        flags.push_str(" --features wgpu");
    }
    if let Ok(features) = env::var("STOVEPIPE_TEST_FEATURES") {
        flags.push_str(&format!(" --features {features}"));
    }
    if let Ok(profile) = env::var("STOVEPIPE_TEST_PROFILE") {
        let profile = root().canonicalize().unwrap().join(profile);
        flags.push_str(&format!(" --config {}", profile.display()));
    }
    let tested = succeeds(cargo(&here, &format!("test {flags}")));
    check_contains(&tested.out, &["it_learns_the_same_in_two_stages ... ok"]);
    let trained = succeeds(cargo(&here, &format!("run {flags} -- cpu cpu")));
    check_contains(&trained.out, &["accuracy", "see runs/train-1"]);
    let summary = here.summary("clone/first-model/runs/train-1");
    assert_eq!(summary["stages"].as_array().unwrap().len(), 2);
}

#[test]
fn projects_that_cannot_be_are_refused() {
    let here = Here::new();
    here.write("file", "");
    here.refuse_all(
        "new",
        "
        file => already exists: name a new folder
        1st => cannot start with a digit
        fn => keyword
        burn => burn is a crate that the project needs: take another name
        made --stovepipe . => . is no clone of Stovepipe: it has no crates/stovepipe
        ",
    );
    here.refuse("new", "<PATH>");
    let clone = root().canonicalize().unwrap();
    let inside = format!("new {}/made", clone.display());
    here.refuse(&inside, "made would be in the clone of Stovepipe");
    assert!(!clone.join("made").exists());
    assert!(!here.join("made").exists());
}

#[test]
fn shells_complete_commands_and_flags() {
    let here = Here::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = here.succeed(&format!("completions {shell}"));
        check_contains(&script, &["simulate", "micro-batches", "offload"]);
    }
    here.write("script", here.succeed("completions bash"));
    let ask = "source ./script && COMP_WORDS=(stovepipe train --micro) COMP_CWORD=2 && \
        _stovepipe stovepipe --micro train && echo \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", ask])
        .current_dir(here.path())
        .stdin(Stdio::null());
    assert_eq!(succeeds(bash).out.trim(), "--micro-batches");
    here.refuse("completions tcsh", "bash");
}
