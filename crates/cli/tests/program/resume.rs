//! Runs that are killed, and go on.

use std::{
    fs,
    path::Path,
    process::{Child, Command, Output, Stdio},
    thread,
    time::Duration,
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;
use tempfile::TempDir;

use crate::running::{command, stovepipe, text};

/// A small training with everything that has to be kept: an optimizer with states, averages, windows, running
/// statistics and random numbers.
const SMALL: [&str; 18] = [
    "--layers",
    "3",
    "--filters",
    "4",
    "--drop-path",
    "0.2",
    "--ema",
    "0.99",
    "--accumulate",
    "3",
    "--batch-size",
    "48",
    "--balance",
    "even",
    "--save-every",
    "2",
    "--keep-last",
    "3",
];

fn train(more: &[&str], directory: &Path) -> Command {
    let mut command = command(&["train"], directory);
    command.args(SMALL).args(more);
    if !more.contains(&"--epochs") {
        command.args(["--epochs", "2"]);
    }
    command
}

fn run(more: &[&str], directory: &Path) -> Output {
    train(more, directory).output().unwrap()
}

/// The models and the metrics of a run, without times.
fn left_by(run: &Path) -> (Vec<u8>, Vec<u8>, Vec<Value>) {
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

/// Killed at fifty random moments, under two, three and one stage in turn: nothing is lost but what came after the
/// last checkpoint, and what comes of it is what an unbroken run comes to.
#[test]
fn fifty_kills_change_no_bit() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let whole = run(&["--out", "whole"], path);
    assert!(whole.status.success(), "{}", text(&whole.stderr));

    let mut generator = ChaCha8Rng::seed_from_u64(1);
    let (mut kills, mut begun, mut number) = (0, 0, 0);
    while kills < 50 {
        // A run that has come to its end before its fifty kills is followed by another.
        let out = format!("broken-{number}");
        let stages = ["2", "3", "1"][kills % 3];
        let more = ["--out", &*out, "--resume", "--stages", stages];
        let mut command = train(&more, path);
        let mut child = command
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // From before the data are read to some checkpoints on, and anywhere between or within them.
        let checkpoints = path.join(format!("{out}.partial/checkpoints"));
        wait_for_checkpoints(&mut child, &checkpoints, generator.random_range(0..5));
        thread::sleep(Duration::from_millis(generator.random_range(0..100)));
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{}", text(&output.stderr));
            assert!(left_by(&path.join(&out)) == left_by(&path.join("whole")));
            number += 1;
            continue;
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !said.contains("panicked") && !said.contains("damaged"),
            "{said}"
        );
        begun += usize::from(said.contains("going on after"));
        kills += 1;
    }
    // Else it would have been another test.
    assert!(begun > 25, "only {begun} runs went on from a checkpoint");
    let out = format!("broken-{number}");
    let last = run(&["--out", &out, "--resume", "--stages", "2"], path);
    assert!(last.status.success(), "{}", text(&last.stderr));
    assert!(left_by(&path.join(&out)) == left_by(&path.join("whole")));
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

/// What a user sees: a run that is not there yet, one that goes on without its flags, one that is over, one under way.
#[test]
fn resuming_says_what_it_does() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let resume = |more: &[&str]| stovepipe(&[&["train", "--resume"], more].concat(), path);
    let error = resume(&[]);
    assert!(
        text(&error.stderr).contains("--out <DIR>"),
        "{}",
        text(&error.stderr)
    );

    let first = run(&["--out", "run", "--resume"], path);
    assert!(first.status.success(), "{}", text(&first.stderr));
    assert!(text(&first.stderr).contains("no checkpoint in run: beginning"));

    // Its settings are its own; flags go over them.
    let longer = resume(&["--out", "run", "--epochs", "3"]);
    let said = text(&longer.stderr);
    assert!(longer.status.success(), "{said}");
    assert!(
        said.contains("going on after 2 epochs and 0 mini-batches of the next, from epoch-0002"),
        "{said}"
    );
    let config = fs::read_to_string(path.join("run/config.toml")).unwrap();
    assert!(
        config.contains("filters = 4") && config.contains("epochs = 3"),
        "{config}"
    );
    assert_eq!(left_by(&path.join("run")).2.len(), 3);

    for (flags, expected) in [
        (["--filters", "8"], "other settings of the model"),
        (
            ["--seed", "4"],
            "the checkpoint was made with seed 0, not 4",
        ),
        (["--batch-size", "32"], "batch-size 48, not 32"),
        (["--ema", "0"], "ema more than 0, not 0"),
        (["--optimizer", "sgd"], "optimizer adamw, not sgd"),
    ] {
        let error = resume(&[&["--out", "run"], &flags[..]].concat());
        let said = text(&error.stderr);
        assert!(!error.status.success() && said.contains(expected), "{said}");
        assert!(path.join("run/summary.json").exists());
    }

    let eval = |more: &[&str]| stovepipe(&[&["eval", "run", "--json"], more].concat(), path);
    let newest = eval(&["--checkpoint", "newest"]);
    assert_eq!(text(&newest.stdout), text(&eval(&[]).stdout));
    assert!(
        eval(&["--checkpoint", "best", "--averaged"])
            .status
            .success()
    );
    let error = eval(&["--checkpoint", "epoch-9"]);
    let said = text(&error.stderr);
    assert!(
        said.contains("run has no checkpoint epoch-9: it has epoch-000"),
        "{said}"
    );
}

/// One run to a folder, and a killed one is not written over by mistake.
#[test]
fn a_folder_is_of_one_run() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let mut child = train(&["--out", "run", "--epochs", "1000"], path)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !path.join("run.partial/checkpoints").exists() {
        assert!(child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(20));
    }
    for more in [
        &["--out", "run"][..],
        &["--out", "run", "--resume"],
        &["--out", "run.partial", "--resume"],
    ] {
        let error = run(more, path);
        let said = text(&error.stderr);
        assert!(said.contains("another run is using run.partial"), "{said}");
    }
    assert!(path.join("run.partial/config.toml").is_file());
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let error = run(&["--out", "run"], path);
    let said = text(&error.stderr);
    assert!(
        said.contains("of a run that was killed: resume it with --resume"),
        "{said}"
    );
}

/// Files may not grow beyond some size, as on a full disk: the checkpoint before stays as it was, and the training goes on
/// or ends as it was told to.
#[test]
fn a_full_disk_leaves_the_last_good_checkpoint() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    let first = run(&["--out", "run", "--epochs", "1"], path);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let before = fs::metadata(path.join("run/model.safetensors"))
        .unwrap()
        .len();
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
            before / 2048
        );
        let output = Command::new("bash")
            .args(["-c", &script, env!("CARGO_BIN_EXE_stovepipe"), "train"])
            .args([
                "--resume",
                "--out",
                "run",
                "--epochs",
                "2",
                "--on-save-error",
                on_error,
            ])
            .current_dir(path)
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(expected),
            "{said}"
        );
        assert!(
            said.contains("is kept: go on with --resume --out run"),
            "{said}"
        );
    }
    let last = run(&["--out", "run", "--resume"], path);
    let said = text(&last.stderr);
    assert!(
        last.status.success() && said.contains("going on after 1 epochs"),
        "{said}"
    );
    let whole = run(&["--out", "whole"], path);
    assert!(whole.status.success());
    // The first epoch's rate was that of a training of one epoch.
    assert_eq!(left_by(&path.join("run")).2.len(), 2);
}

#[test]
fn a_damaged_checkpoint_is_neither_scored_nor_begun_with() {
    let directory = TempDir::new().unwrap();
    let path = directory.path();
    assert!(
        run(&["--out", "run", "--epochs", "1"], path)
            .status
            .success()
    );
    let checkpoints = path.join("run/checkpoints");
    // A folder of one's own is no checkpoint.
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
    let from = format!("run/checkpoints/{newest}");
    for output in [
        stovepipe(&["eval", "run", "--checkpoint", "newest"], path),
        run(&["--from", &from, "--out", "other"], path),
    ] {
        let said = text(&output.stderr);
        assert!(
            !output.status.success() && said.contains(&expected),
            "{said}"
        );
    }
    let resumed = run(&["--out", "run", "--resume", "--epochs", "1"], path);
    let said = text(&resumed.stderr);
    assert!(
        said.contains("put aside") && said.contains("from epoch-"),
        "{said}"
    );
}
