//! Runs that are killed and resumed.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{check_contains, check_refused, model, refuse, run, succeed, typed};

/// A small training with everything that has to be kept: an optimizer with states, averages, accumulated gradients, running
/// statistics and random numbers.
const SMALL: &str = "train --layers 3 --filters 4 --drop-path 0.2 --ema 0.99 --accumulate 3 --batch-size 48 \
                     --balance even --save-every 2 --keep-last 3 --epochs 2";

fn small(more: &str) -> String {
    format!("{SMALL} {more}")
}

/// The models and the metrics of a run, without times.
fn results(run: &Path) -> (Vec<u8>, Vec<u8>, Vec<Value>) {
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let without_times = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let fields = line.as_object_mut().unwrap();
        for time in ["samples_per_second", "bubble", "seconds"] {
            fields.remove(time).unwrap();
        }
        line
    };
    (
        fs::read(run.join("model.safetensors")).unwrap(),
        fs::read(run.join("averaged.safetensors")).unwrap(),
        metrics.lines().map(without_times).collect(),
    )
}

/// Killed at fifty random moments, with two, three and one stage in turn: only what came after the last checkpoint is
/// trained again, and the result is that of an unbroken run.
#[test]
fn fifty_kills_change_no_bit() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    run(&small("--out whole"), path);

    let mut generator = ChaCha8Rng::seed_from_u64(1);
    let (mut kills, mut resumed, mut number) = (0, 0, 0);
    while kills < 50 {
        // A run that ends before its fifty kills is followed by another.
        let out = format!("broken-{number}");
        let stages = ["2", "3", "1"][kills % 3];
        let line = small(&format!("--out {out} --resume --stages {stages}"));
        let mut child = typed(&line, path)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // From before the data are read to some checkpoints later, and anywhere between or within them.
        let checkpoints = path.join(format!("{out}.partial/checkpoints"));
        wait_for_checkpoints(&mut child, &checkpoints, generator.random_range(0..5));
        thread::sleep(Duration::from_millis(generator.random_range(0..100)));
        let is_over = child.try_wait().unwrap().is_some();
        if !is_over {
            child.kill().unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if is_over {
            assert!(output.status.success(), "{said}");
            assert!(results(&path.join(&out)) == results(&path.join("whole")));
            number += 1;
            continue;
        }
        assert!(
            !said.contains("panicked") && !said.contains("damaged"),
            "{said}"
        );
        resumed += usize::from(said.contains("resuming after"));
        kills += 1;
    }
    // Else it would have been another test.
    assert!(
        resumed > 25,
        "only {resumed} runs resumed from a checkpoint"
    );
    let out = format!("broken-{number}");
    run(&small(&format!("--out {out} --resume --stages 2")), path);
    assert!(results(&path.join(&out)) == results(&path.join("whole")));
}

/// Waits until so many checkpoints have been made, or the program is over.
fn wait_for_checkpoints(child: &mut Child, folder: &Path, count: usize) {
    let newest = || {
        let names = fs::read_dir(folder)
            .ok()?
            .map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| !name.to_string_lossy().contains('.'))
            .max()
    };
    let (mut made, mut last) = (0, newest());
    while made < count && child.try_wait().unwrap().is_none() {
        let now = newest();
        made += usize::from(now > last);
        last = now.max(last);
        thread::sleep(Duration::from_millis(1));
    }
}

/// What a user sees of a run that does not exist yet, is resumed without its flags, or is over.
#[test]
fn resuming_says_what_it_does() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    refuse("train --resume", path, "--out <DIR>");
    let first = run(&small("--out run --resume"), path);
    let expected = "no checkpoint in run: starting from the beginning";
    assert!(first.err.contains(expected), "{}", first.err);

    // It has its own settings; flags change them.
    let longer = run("train --resume --out run --epochs 3", path);
    let expected = "resuming after 2 epochs and 0 mini-batches of the next, from epoch-0002";
    assert!(longer.err.contains(expected), "{}", longer.err);
    let config = fs::read_to_string(path.join("run/config.toml")).unwrap();
    check_contains(&config, &["filters = 4", "epochs = 3"]);
    assert_eq!(results(&path.join("run")).2.len(), 3);

    for (flags, expected) in [
        ("--filters 8", "other settings of the model"),
        ("--seed 4", "the checkpoint was made with seed 0, not 4"),
        ("--batch-size 32", "batch-size 48, not 32"),
        ("--ema 0", "ema more than 0, not 0"),
        ("--optimizer sgd", "optimizer adamw, not sgd"),
        ("--per-class 9", "other settings of the data"),
    ] {
        refuse(&format!("train --resume --out run {flags}"), path, expected);
        assert!(path.join("run/summary.json").exists());
    }

    let eval = |more: &str| succeed(&format!("eval run --json {more}"), path);
    assert_eq!(eval("--checkpoint newest"), eval(""));
    eval("--checkpoint best --averaged");
    let expected = "run has no checkpoint epoch-9: it has epoch-000";
    refuse("eval run --checkpoint epoch-9", path, expected);
    let expected = "did you mean `newest`?";
    refuse("eval run --checkpoint newst", path, expected);
}

/// One run to a folder, and a killed one is not written over by mistake.
#[test]
fn a_folder_is_of_one_run() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let mut child = typed(&small("--out run --epochs 1000"), path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !path.join("run.partial/checkpoints").exists() {
        assert!(child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(20));
    }
    for more in [
        "--out run",
        "--out run --resume",
        "--out run.partial --resume",
    ] {
        refuse(&small(more), path, "another run is using run.partial");
    }
    assert!(path.join("run.partial/config.toml").is_file());
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let expected = "of a run that was killed: resume it with --resume";
    refuse(&small("--out run"), path, expected);
}

/// Files may not grow beyond some size, as on a full disk: the checkpoint before stays as it was, and the training continues
/// or fails as it was told to.
#[test]
fn a_full_disk_leaves_the_last_good_checkpoint() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    run(&small("--out run --epochs 1"), path);
    let size = model(path, "run").len();
    for (on_error, expected) in [
        (
            "stop",
            "error: the checkpoint cannot be written, the previous one is unchanged",
        ),
        (
            "continue",
            "warning: the checkpoint cannot be written, training continues",
        ),
    ] {
        // Blocks of 1024 bytes; the signal that would end the program is ignored.
        let script = format!(
            "trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"",
            size / 2048
        );
        let mut command = Command::new("bash");
        command
            .args(["-c", &script, env!("CARGO_BIN_EXE_stovepipe")])
            .args("train --resume --out run --epochs 2 --on-save-error".split(' '))
            .arg(on_error)
            .current_dir(path);
        let said = check_refused(command, expected);
        let expected = "is kept: resume from it with --resume --out run";
        assert!(said.contains(expected), "{said}");
    }
    let last = run(&small("--out run --resume"), path);
    assert!(last.err.contains("resuming after 1 epochs"), "{}", last.err);
    // The first epoch's rate was that of a training of one epoch.
    assert_eq!(results(&path.join("run")).2.len(), 2);
}

#[test]
fn a_damaged_checkpoint_is_neither_scored_nor_trained_from() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    run(&small("--out run --epochs 1"), path);
    let checkpoints = path.join("run/checkpoints");
    // A folder that someone else made is no checkpoint.
    fs::create_dir(checkpoints.join("my-backup")).unwrap();
    let names = fs::read_dir(&checkpoints).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names
        .filter(|name| name.starts_with("epoch-"))
        .max()
        .unwrap();
    let model = checkpoints.join(&newest).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 0x40;
    fs::write(&model, bytes).unwrap();

    let expected = format!("{newest}: the checkpoint is damaged: model.safetensors is damaged");
    refuse("eval run --checkpoint newest", path, &expected);
    let from = small(&format!("--from run/checkpoints/{newest} --out other"));
    refuse(&from, path, &expected);
    let resumed = run(&small("--out run --resume --epochs 1"), path);
    check_contains(&resumed.err, &["was moved to", "from epoch-"]);
}
