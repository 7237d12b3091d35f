//! Runs that are killed and resumed.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::Value;

use crate::{
    finetune::with_model,
    running::{Here, cases, check_contains, check_lacks, check_refused},
};

/// A small training with everything that has to be kept: an optimizer with states, averages, accumulated gradients, running
/// statistics and random numbers.
const SMALL: &str = "train --layers 3 --filters 4 --drop-path 0.2 --ema 0.99 --accumulate 3 --per-class 40 \
                     --batch-size 48 --balance even --save-every 2 --keep-last 3 --epochs 2";

pub fn small(more: &str) -> String {
    format!("{SMALL} {more}")
}

/// The models of a run, and its metrics by epoch and by step without what varies.
pub fn results(run: &Path) -> (Vec<u8>, Vec<u8>, Vec<Value>) {
    let read = |name: &str| fs::read_to_string(run.join(name)).unwrap();
    let without_times = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let varies = [
            "samples_per_second",
            "tokens_per_second",
            "bubble",
            "seconds",
            "memory",
        ];
        (line.as_object_mut().unwrap()).retain(|name, _| !varies.contains(&name.as_str()));
        line
    };
    let lines = read("metrics.jsonl") + &read("steps.jsonl");
    (
        fs::read(run.join("model.safetensors")).unwrap(),
        fs::read(run.join("averaged.safetensors")).unwrap(),
        lines.lines().map(without_times).collect(),
    )
}

/// Killed at thirty random moments, with two, three and one stage in turn: only what came after the last checkpoint is
/// trained again, and the result is that of an unbroken run. With an adapter, the weights below it are read again.
#[test]
fn thirty_kills_change_no_bit() {
    kills_change_no_bit(&Here::new(), SMALL, 20);
    let adapter = "train --from model --data chat --chat chat.jsonl --length 20 --batch-size 4 \
                   --lora-rank 2 --lora-dropout 0.2 --ema 0.99 --accumulate 3 --balance even \
                   --save-every 2 --keep-last 3 --epochs 8";
    kills_change_no_bit(&with_model("qwen2"), adapter, 10);
}

fn kills_change_no_bit(here: &Here, line: &str, most: usize) {
    here.run(&format!("{line} --out whole"));

    let mut generator = ChaCha8Rng::seed_from_u64(1);
    let (mut kills, mut resumed, mut number) = (0, 0, 0);
    // On a fast machine many runs end before they are killed, and the next one has no checkpoint to go on from.
    while kills < most || resumed <= most / 2 {
        assert!(kills < 4 * most, "only {resumed} runs resumed");
        // A run that ends before its last kill is followed by another.
        let out = format!("broken-{number}");
        let stages = ["2", "3", "1"][kills % 3];
        let mut command = here.typed(&format!("{line} --out {out} --resume --stages {stages}"));
        let mut child = (command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()).unwrap();
        // From before the data are read to some checkpoints later, and anywhere between or within them.
        let checkpoints = here.join(format!("{out}.partial/checkpoints"));
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
            assert!(results(&here.join(&out)) == results(&here.join("whole")));
            number += 1;
            continue;
        }
        check_lacks(&said, &["panicked", "damaged"]);
        resumed += usize::from(said.contains("resuming after"));
        kills += 1;
    }
    let out = format!("broken-{number}");
    here.run(&format!("{line} --out {out} --resume --stages 2"));
    assert!(results(&here.join(&out)) == results(&here.join("whole")));
}

/// Without a flush after synchronous training, and back: allowed, and said. A plan says what to expect.
#[test]
fn a_run_goes_on_without_a_flush_and_back() {
    let here = Here::new();
    let line = "train --layers 3 --filters 4 --per-class 40 --balance even --out run --resume";
    let first = here.run(&format!("{line} --epochs 1"));
    check_lacks(&first.err, &["experimental"]);
    let line = "train --out run --resume";
    let second = here.run(&format!("{line} --epochs 2 --schedule pipedream"));
    let expected = [
        "the schedule was 1f1b and is now pipedream: it goes on without waiting for updates",
        "this schedule is experimental",
        "gradients are late by up to 1, 0 updates",
    ];
    check_contains(&second.err, &expected);
    let third = here.run(&format!("{line} --epochs 3 --vertical-sync --window 4"));
    check_lacks(&third.err, &["the schedule was"]);
    check_contains(&third.err, &["late by up to 1, 1 updates"]);
    let fourth = format!("{line} --epochs 4 --schedule 1f1b");
    here.refuse(
        &fourth,
        "--window has no effect: it is for --schedule pipedream",
    );
    here.write(
        "run/config.toml",
        (here.read("run/config.toml"))
            .replace("window = 4\n", "")
            .replace("vertical-sync = true", "vertical-sync = false"),
    );
    let fourth = here.run(&fourth);
    check_contains(&fourth.err, &["the schedule was pipedream and is now 1f1b"]);
    assert_eq!(here.read("run/metrics.jsonl").lines().count(), 4);
}

/// Waits until so many checkpoints have been made, or the program is over.
fn wait_for_checkpoints(child: &mut Child, folder: &Path, count: usize) {
    let newest = || {
        let names = fs::read_dir(folder).ok()?;
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.contains('.')).max()
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
    let here = Here::new();
    let none = "there is no run in runs to resume: name one with --out";
    here.refuse("train --resume", none);
    let first = here.run(&small("--out run --resume"));
    let expected = "no checkpoint in run: starting from the beginning";
    check_contains(&first.err, &[expected]);

    // It has its own settings; flags change them.
    let longer = here.run("train --resume --out run --epochs 3");
    let expected = "resuming after 2 epochs and 0 mini-batches of the next, from epoch-0002";
    check_contains(&longer.err, &[expected]);
    let config = here.read("run/config.toml");
    check_contains(&config, &["filters = 4", "epochs = 3"]);
    assert_eq!(here.read("run/metrics.jsonl").lines().count(), 3);

    here.refuse_all(
        "train --resume --out run",
        "
        --filters 8 => other settings: filters was 4 and is now 8
        --seed 4 => the checkpoint was made with seed 0, not 4
        --batch-size 32 => batch-size 48, not 32
        --ema 0 => ema more than 0, not 0
        --optimizer sgd => optimizer adamw, not sgd
        --per-class 9 => other settings: per-class was 40 and is now 9
        ",
    );
    assert!(here.join("run/summary.json").exists());
    let over = here.run("train --resume --out run");
    let expected = "nothing to do: run has reached --epochs 3: raise it to train further";
    check_contains(&over.err, &[expected]);

    let eval = |more: &str| here.succeed(&format!("eval run --json {more}"));
    assert_eq!(eval("--checkpoint newest"), eval(""));
    eval("--checkpoint best --averaged");
    let unknown = "run has no checkpoint epoch-9: it has epoch-000";
    here.refuse("eval run --checkpoint epoch-9", unknown);
    here.refuse("eval run --checkpoint newst", "did you mean `newest`?");
}

/// One run to a folder, and a killed one is not written over by mistake.
#[test]
fn a_folder_is_of_one_run() {
    let here = Here::new();
    let mut command = here.typed(&small("--out run --epochs 1000"));
    let mut child = (command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()).unwrap();
    while !here.join("run.partial/checkpoints").exists() {
        assert!(child.try_wait().unwrap().is_none());
        thread::sleep(Duration::from_millis(20));
    }
    for out in ["run", "run --resume", "run.partial --resume"] {
        let line = small(&format!("--out {out}"));
        here.refuse(&line, "another run is using run.partial");
    }
    assert!(here.join("run.partial/config.toml").is_file());
    assert!(child.try_wait().unwrap().is_none());
    child.kill().unwrap();
    child.wait().unwrap();
    let expected = "of a run that was killed: resume it with --resume";
    here.refuse(&small("--out run"), expected);
}

/// Files may not grow beyond some size, as on a full disk: the checkpoint before stays as it was, and the training continues
/// or fails as it was told to.
#[test]
fn a_full_disk_leaves_the_last_good_checkpoint() {
    let here = Here::new();
    here.run(&small("--out run --epochs 1"));
    let size = here.model("run").len();
    for (on_error, expected) in cases(
        "
        stop => error: the checkpoint cannot be written, the previous one is unchanged
        continue => warning: the checkpoint cannot be written, the previous one is unchanged
        ",
    ) {
        // Blocks of 1024 bytes; the signal that would end the program is ignored.
        let blocks = size / 2048;
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = Command::new("bash");
        command
            .args(["-c", &script, env!("CARGO_BIN_EXE_stovepipe")])
            .args("train --resume --out run --epochs 2 --on-save-error".split(' '))
            .arg(on_error)
            .current_dir(here.path());
        let said = check_refused(command, expected);
        let command = "is kept; to go on from it: stovepipe train --resume --out run\n";
        assert!(said.ends_with(command), "{said}");
        // The complete run is as it was.
        assert_eq!(here.summary("run")["epochs"], 1);
    }
    let last = here.run(&small("--out run --resume"));
    check_contains(&last.err, &["resuming after 1 epoch "]);
    // The first epoch's rate was that of a training of one epoch.
    assert_eq!(here.read("run/metrics.jsonl").lines().count(), 2);
}

/// A link to `/dev/full` is a disk that is full until something is removed.
#[test]
#[cfg(target_os = "linux")]
fn old_checkpoints_make_room_for_the_results() {
    let here = Here::new();
    here.run(&small("--out run --keep-last 3"));
    let full = |name: &str| {
        std::os::unix::fs::symlink("/dev/full", here.join(format!("run.partial/{name}.new")))
    };
    let checkpoints = || fs::read_dir(here.join("run/checkpoints")).unwrap().count();
    assert_eq!(checkpoints(), 3);
    let model = here.model("run");
    fs::rename(here.join("run"), here.join("run.partial")).unwrap();
    full("summary.json").unwrap();
    let said = here.run("train --resume --out run").err;
    check_contains(
        &said,
        &["warning: the disk is full: the checkpoint epoch-0001-batch-"],
    );
    assert_eq!(checkpoints(), 2);
    fs::rename(here.join("run"), here.join("run.partial")).unwrap();
    full("report.html").unwrap();
    let said = here.run("train --resume --out run").err;
    let removed = "warning: the disk is full: the checkpoint epoch-0001-batch-0000009 was removed";
    check_contains(&said, &[removed]);
    assert!(checkpoints() == 1 && here.model("run") == model);

    // What cannot have room is an error that says how to go on.
    fs::rename(here.join("run"), here.join("run.partial")).unwrap();
    full("mistakes.json").unwrap();
    let said = here.refuse("train --resume --out run", "No space left on device");
    assert!(said.ends_with("to go on from it: stovepipe train --resume --out run\n"));
    here.run("train --resume --out run");
    assert!(here.model("run") == model && here.join("run/report.html").exists());
}

/// Without `--out`, runs get numbers, also those that start together; the one that started last is resumed.
#[test]
fn runs_without_a_name_get_one_each() {
    let here = Here::new();
    let line = small("--epochs 1");
    let start = |_| {
        (here
            .typed(&line)
            .stdout(Stdio::null())
            .stderr(Stdio::null()))
        .spawn()
    };
    let runs: Vec<Child> = (0..3).map(|run| start(run).unwrap()).collect();
    for mut run in runs {
        assert!(run.wait().unwrap().success());
    }
    for number in 1..=3 {
        assert!(
            here.join(format!("runs/train-{number}/summary.json"))
                .exists()
        );
    }
    let config = |run: &str| fs::File::options().append(true).open(here.join(run));
    let later = SystemTime::now() + Duration::from_secs(60);
    (config("runs/train-2/config.toml")
        .unwrap()
        .set_modified(later))
    .unwrap();
    let said = here.run("train --resume --epochs 2").err;
    check_contains(&said, &["runs/train-2"]);
    assert_eq!(here.summary("runs/train-2")["epochs"], 2);
}

/// Nothing is left of a run that is killed before it trains, and a complete run stays as it was.
#[test]
fn a_run_that_never_began_leaves_nothing() {
    let here = Here::new();
    here.run(&small("--out run --epochs 1"));
    let model = here.model("run");
    for line in [
        "train --filters 64",
        "train --filters 64 --out deep/run",
        "train --resume --out run --epochs 2 --balance time --remeasure",
    ] {
        let mut command = here.typed(line);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut said = said.map_while(Result::ok);
        assert!(said.any(|line| line.contains("measuring")));
        child.kill().unwrap();
        child.wait().unwrap();
        let left: Vec<_> = fs::read_dir(here.path()).unwrap().collect();
        assert_eq!(left.len(), 1, "{line}: {left:?}");
        assert!(here.model("run") == model);
    }
}

/// Links are followed, and what cannot become the run's folder is found before data are read.
#[test]
fn a_folder_that_cannot_be_used_is_found_before_training() {
    let here = Here::new();
    let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, here.join(name)).unwrap();
    here.write("file", "");
    link("nowhere", "lost");
    link("file", "linked-file");
    fs::create_dir_all(here.join("disk/runs")).unwrap();
    link("disk/runs", "linked");
    here.refuse_all(
        "train --data imagenet --data-dir nowhere --out",
        "
        file => file holds another run or other files
        lost => lost is a link to nothing
        linked-file => file holds another run or other files
        file/run => file: 
        ",
    );
    here.run(&small("--out linked --epochs 1"));
    assert!(here.join("linked").is_symlink() && here.join("disk/runs/summary.json").exists());
}

#[test]
fn a_damaged_checkpoint_is_neither_scored_nor_trained_from() {
    let here = Here::new();
    here.run(&small("--out run --epochs 1"));
    let checkpoints = here.join("run/checkpoints");
    // A folder that someone else made is no checkpoint.
    fs::create_dir(checkpoints.join("my-backup")).unwrap();
    let names = fs::read_dir(&checkpoints).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let newest = names.filter(|name| name.starts_with("epoch-")).max();
    let newest = newest.unwrap();
    let model = checkpoints.join(&newest).join("model.safetensors");
    let mut bytes = fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 0x40;
    fs::write(&model, bytes).unwrap();

    let expected = format!("{newest}: the checkpoint is damaged: model.safetensors is damaged");
    here.refuse("eval run --checkpoint newest", &expected);
    let from = small(&format!("--from run/checkpoints/{newest} --out other"));
    here.refuse(&from, &expected);
    let resumed = here.run(&small("--out run --resume --epochs 1"));
    check_contains(&resumed.err, &["was moved to", "from epoch-"]);
}
