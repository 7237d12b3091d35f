//! When a run measures, tests and ends, and what it keeps.

use std::fs;

use crate::running::{Here, check_contains, check_lacks, check_refused, succeeds};

/// A run of a few seconds, with batch norms.
const SMALL: &str = "train --layers 3 --filters 4 --per-class 40 --digits 0-3 --batch-size 32";

/// The first test of a default run is as good as its training: statistics do not lag behind.
#[test]
fn the_first_epoch_looks_as_good_as_it_is() {
    let here = Here::new();
    let said = here
        .run("train --epochs 1 --warmup-epochs 1 --balance 3,6 --out run")
        .err;
    assert!(here.accuracy("run") > 0.6, "{said}");
    here.run("train --epochs 1 --warmup-epochs 1 --balance 3,6 --recalibrate 0 --out lagging");
    assert!(here.accuracy("lagging") < here.accuracy("run") - 0.2);
    // `eval` finds what the run found.
    let found = here.json_of("eval run")["test"]["accuracy"].as_f64();
    assert_eq!(found, Some(here.accuracy("run")));
    let report = here.read("run/report.html");
    check_contains(&report, &["Step by step", "Gradient norm", "by step"]);
    assert_eq!(here.read("run/steps.jsonl").lines().count(), 23);
}

#[test]
fn a_quick_check_tries_everything_and_leaves_nothing() {
    let here = Here::new();
    for more in [
        "",
        "--ema 0.9 --epochs 7",
        "--model transformer-lm --width 16 --layers 1 --heads 1",
    ] {
        let printed = here.run(&format!("train --quick-check --balance even {more}"));
        check_contains(&printed.out, &["quick check passed"]);
        check_contains(&printed.err, &["epoch 1/1: train loss"]);
        assert!(!here.join("runs").exists(), "{more}");
    }
    here.refuse(
        "train --quick-check --resume --out run",
        "cannot be used with",
    );
}

#[test]
fn a_run_ends_at_a_limit_and_keeps_its_best_model() {
    let here = Here::new();
    let line = format!("{SMALL} --balance even --epochs 3 --max-steps 7 --test-every 2 --out run");
    here.run(&line);
    assert_eq!(here.read("run/steps.jsonl").lines().count(), 7);
    assert_eq!(here.summary("run")["stopped"], false);
    here.run(&format!("{line} --max-steps 0 --resume"));
    let best = here.summary("run")["best"].clone();
    assert!(best["epoch"] == 2 || best["epoch"] == 3, "{best}");
    assert_eq!(here.json_of("eval run --best")["test"], best["test"]);
    let metrics = here.read("run/metrics.jsonl");
    let tested: Vec<_> = metrics
        .lines()
        .map(|line| line.contains("\"test\":"))
        .collect();
    assert_eq!(tested, [false, true, true]);
    here.refuse("eval run --best --averaged", "cannot be used with");
}

/// Layers are measured once, and only if the cut depends on it.
#[test]
fn measurements_are_kept() {
    let here = Here::new();
    let run = |number: usize, more: &str| {
        let out = format!("--epochs 1 --max-steps 1 --out {number} {more}");
        let mut command = here.typed(&format!("{SMALL} {out}"));
        command.env("XDG_CACHE_HOME", here.join("caches"));
        succeeds(command).err
    };
    let (measures, knows) = (
        "measuring",
        "measured before (--remeasure measures it again)",
    );
    for (number, (more, says, lacks)) in [
        ("--balance even", "worker 0 keeps", "measur"),
        ("--balance 3,6", "worker 0 keeps", "measur"),
        ("--stages 1", "worker 0 keeps", "measur"),
        ("", measures, knows),
        ("--balance time", knows, measures),
        ("--remeasure", measures, knows),
        ("--batch-size 16", measures, knows),
        ("--filters 8", measures, knows),
        ("--precision bf16", measures, knows),
        ("--threads-per-stage 2", measures, knows),
        ("", knows, measures),
    ]
    .into_iter()
    .enumerate()
    {
        let said = run(number, more);
        assert!(
            said.contains(says) && !said.contains(lacks),
            "{more}: {said}"
        );
    }
    // One that is damaged is measured again.
    for file in fs::read_dir(here.join("caches/stovepipe/measurements")).unwrap() {
        fs::write(file.unwrap().path(), "samples = 1").unwrap();
    }
    check_contains(&run(20, ""), &[measures]);
}

/// Nothing is measured for a run that cannot begin.
#[test]
fn what_fails_without_measuring_fails_before() {
    let here = Here::new();
    here.refuse("train --balance even --remeasure", "nothing is measured");
    here.run(&format!("{SMALL} --epochs 1 --max-steps 2 --out run"));
    here.run(&format!(
        "{SMALL} --epochs 1 --max-steps 2 --filters 8 --out wide"
    ));
    here.write("two.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    for (more, says) in [
        ("--from wide", "is of another model"),
        (
            "--resume --out run --seed 9",
            "the checkpoint was made with seed 0, not 9",
        ),
        (
            "--resume --out run --optimizer sgd",
            "made with optimizer adamw",
        ),
        (
            "--resume --out run --per-class 30",
            "per-class was 40 and is now 30",
        ),
        ("--batch-size 200", "choose a --batch-size"),
        (
            "--schedule two.csv --micro-batches 2 --batch-size 159",
            "the last mini-batch of an epoch has 1 sample:",
        ),
    ] {
        let mut command = here.typed(&format!("{SMALL} --max-steps 2 --remeasure {more}"));
        command.env("XDG_CACHE_HOME", here.join("caches"));
        check_lacks(&check_refused(command, says), &["measuring", "measured"]);
    }
}
