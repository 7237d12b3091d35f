//! `new` and `completions`.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::running::{Here, check_contains, root, succeeds};

/// Cargo in the project `first-model`.
fn cargo(here: &Here, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(line.split_whitespace())
        .current_dir(here.join("first-model"));
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

/// The new project is what cargo and rustfmt want, its test passes, and it trains. Here it is built as the workspace
/// is, so that Burn is not built again; so `STOVEPIPE_TEST_PROFILE` is the file of cargo's settings for these tests, if
/// they have one, and `STOVEPIPE_TEST_FEATURES` are those of the workspace that change what Burn is built from.
#[test]
fn a_new_project_trains() {
    let here = Here::new();
    let said = here.succeed("new first-model");
    check_contains(&said, &["cd first-model", "cargo run --release"]);
    succeeds(cargo(&here, "fmt --check"));

    let workspace = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let (_, profile) = workspace.split_once("\n[profile.release]\n").unwrap();
    let packages = "[profile.release.package]\n";
    let quick = format!("{packages}first-model = {{ opt-level = 0 }}\n");
    let profile = profile.replace(packages, &quick);
    let crates = root().join("crates").display().to_string();
    let manifest = here.read("first-model/Cargo.toml");
    let manifest = manifest.replace(
        "[dependencies]\n",
        &format!(
            "[workspace]\n\n[dependencies]\nworkspace-hack = {{ path = '{crates}/workspace-hack' }}\n\
             stovepipe-verify = {{ path = '{crates}/verify' }}\n"
        ),
    );
    assert!(manifest.contains("workspace-hack"));
    here.write(
        "first-model/Cargo.toml",
        format!("{manifest}\n[profile.release]\n{profile}"),
    );
    fs::copy(
        root().join("Cargo.lock"),
        here.join("first-model/Cargo.lock"),
    )
    .unwrap();
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
    let summary = here.summary("first-model/runs/train-1");
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
