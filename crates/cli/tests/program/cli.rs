//! The program, as a user runs it.

use std::{
    fs,
    path::Path,
    process::{Command, Output, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::running::{command, stovepipe, text};

/// Runs `train` with `arguments`, which must fail, say so, and leave nothing behind.
fn check_error(arguments: &[&str], expected: &str) {
    let directory = TempDir::new().unwrap();
    let arguments: Vec<_> = ["train", "--out", "run"]
        .iter()
        .chain(arguments)
        .copied()
        .collect();
    let output = stovepipe(&arguments, directory.path());
    let stderr = text(&output.stderr);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
    assert!(!directory.path().join("run").exists());
    assert_eq!(
        fs::read_dir(directory.path()).unwrap().count(),
        0,
        "{arguments:?} left files"
    );
}

#[test]
fn bad_input_is_an_error_that_leaves_nothing_behind() {
    check_error(
        &["--stages", "10"],
        "10 stages are more than the model's 9 layers",
    );
    check_error(
        &["--balance", "5,5"],
        "adds up to 10 layers, but the model has 9",
    );
    check_error(&["--balance", "3,3,3"], "is for 3 stages, but there are 2");
    check_error(&["--balance", "9,0"], "gives stage 1 no layer");
    check_error(&["--balance", "5;4"], "such as 5,4");
    check_error(&["--balance", "fast"], "auto, time, size or even");
    check_error(&["--devices", "tpu:0"], "unknown device `tpu:0`");
    check_error(
        &["--devices", "cpu:threads=0,cpu"],
        "device `cpu:threads=0` needs at least 1 thread",
    );
    check_error(
        &["--devices", "cpu,cpu,cpu"],
        "3 devices were given for 2 stages",
    );
    check_error(
        &["--layers", "4"],
        "normal cells must be a multiple of 3 from 3 to 3000, not 4",
    );
    check_error(
        &["--layers", "0"],
        "normal cells must be a multiple of 3 from 3 to 3000, not 0",
    );
    check_error(&["--filters", "0"], "filters");
    check_error(
        &["--drop-path", "1"],
        "drop-path must be at least 0 and less than 1, not 1",
    );
    check_error(&["--drop-path", "-0.1"], "less than 1, not -0.1");
    check_error(
        &["--schedule", "zigzag"],
        "use gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, or the path of a .csv file",
    );
    check_error(&["--schedule", "pipedream"], "use 1f1b");
    check_error(&["--schedule", "nowhere.csv"], "nowhere.csv: No such file");
    check_error(&["--chunks", "0"], "chunks is 0");
    check_error(
        &["--schedule", "interleaved", "--chunks", "5"],
        "10 stages are more than the model's 9 layers",
    );
    check_error(
        &["--schedule", "zb-v", "--balance", "5,4"],
        "is for 2 stages, but there are 4",
    );
    check_error(
        &["--recompute", "sometimes"],
        "use always, except-last or never",
    );
    check_error(&["--precision", "f64"], "write f32, bf16 or f16");
    check_error(&["--config", "nowhere.toml"], "nowhere.toml");
    for name in [
        "stages",
        "micro-batches",
        "threads-per-stage",
        "epochs",
        "batch-size",
        "lr",
    ] {
        check_error(&[&format!("--{name}"), "0"], &format!("{name} is 0"));
    }
    for name in [
        "stages",
        "micro-batches",
        "epochs",
        "batch-size",
        "layers",
        "filters",
        "seed",
    ] {
        check_error(
            &[&format!("--{name}"), "-1"],
            &format!("'-1' for '--{name}"),
        );
    }
    check_error(&["--lr", "-1"], "lr is -1");
    for more in [&[] as &[&str], &["--dry-run"]] {
        let huge = |flag: &str, value: &str, expected: &str| {
            check_error(&[&[flag, value], more].concat(), expected);
        };
        huge(
            "--stages",
            "18446744073709551615",
            "are more than the model's 9 layers",
        );
        huge(
            "--balance",
            "18446744073709551615,10",
            "but the model has 9",
        );
        huge("--micro-batches", "1000000000", "from 1 to 65536");
        huge("--threads-per-stage", "1000000", "from 1 to 1024");
        huge("--filters", "4000000000", "from 4 to 65536");
        huge("--layers", "3000000000", "from 3 to 3000");
    }
    check_error(&["--lr", "nan"], "lr is NaN");
    check_error(&["--momentum", "1"], "momentum is 1");
    check_error(&["--decay-rate", "2"], "decay-rate is 2");
    check_error(&["--weight-decay", "-0.1"], "weight-decay is -0.1");
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_device_whose_feature_is_missing_names_the_feature() {
    check_error(&["--devices", "cuda:0"], "--features cuda");
    #[cfg(not(feature = "wgpu"))]
    check_error(&["--devices", "wgpu:0"], "--features wgpu");
}

#[test]
fn a_configuration_with_an_unknown_key_is_refused_by_name() {
    let directory = TempDir::new().unwrap();
    let check = |content: &str, expected: &str| {
        fs::write(directory.path().join("c.toml"), content).unwrap();
        let arguments = ["train", "--config", "c.toml", "--out", "run"];
        let output = stovepipe(&arguments, directory.path());
        let stderr = text(&output.stderr);
        assert!(!output.status.success());
        assert!(
            stderr.contains("c.toml") && stderr.contains(expected),
            "{stderr}"
        );
        assert!(!directory.path().join("run").exists());
    };
    check("[training]\nepoch = 3\n", "unknown field `epoch`");
    check("speed = 3\n", "unknown field `speed`");
    check("[training]\nepochs = -3\n", "line 2");
    check("[pipeline]\nrecompute = \"no\"\n", "unknown variant `no`");
    check("[training\n", "line 1");
}

#[test]
fn a_dry_run_prints_stages_and_trains_nothing() {
    let directory = TempDir::new().unwrap();
    let arguments = [
        "train",
        "--dry-run",
        "--balance",
        "5,4",
        "--layers",
        "3",
        "--filters",
        "16",
    ];
    let output = stovepipe(&arguments, directory.path());
    assert!(output.status.success());
    let stdout = text(&output.stdout);
    // What is foretold of the whole comes after the table.
    let rows: Vec<Vec<_>> = stdout
        .lines()
        .take_while(|row| !row.is_empty())
        .map(|row| row.split_whitespace().collect())
        .collect();
    let kinds: Vec<_> = rows.iter().map(|row| row[..2].join(" ")).collect();
    assert_eq!(kinds[1], "0 Stem");
    assert_eq!((&kinds[6][..], &kinds[11][..]), ("stage 0", "stage 1"));
    assert_eq!(rows.len(), 13, "a header, 9 layers, 2 stages and the whole");
    // What is measured differs from run to run, but shares add up.
    let share = |row: usize| rows[row][rows[row].len() - 2].parse::<f64>().unwrap();
    assert!((share(6) + share(11) - 100.0).abs() < 0.2, "{stdout}");
    let layers: f64 = (1..6).map(share).sum();
    assert!((layers - share(6)).abs() < 0.5, "{stdout}");
    let parameters = |row: usize| rows[row][2].parse::<usize>().unwrap();
    assert_eq!(
        (1..6).map(parameters).sum::<usize>(),
        rows[6][3].parse::<usize>().unwrap()
    );

    let with_b = [&arguments[..], &["--model", "amoebanet-b"]].concat();
    let with_b = text(&stovepipe(&with_b, directory.path()).stdout);
    assert!(
        with_b.contains("stage 1") && !with_b.contains(rows[6][3]),
        "{with_b}"
    );
    for balance in ["auto", "time", "size", "even"] {
        let arguments = ["train", "--dry-run", "--filters", "4", "--balance", balance];
        let output = stovepipe(&arguments, directory.path());
        assert!(output.status.success(), "{}", text(&output.stderr));
        let stdout = text(&output.stdout);
        assert!(
            stdout.contains("stage 0") && stdout.contains("stage 1"),
            "{stdout}"
        );
        assert!(
            stdout.contains(" ms") && stdout.contains("activations "),
            "{stdout}"
        );
        let of = match balance {
            "size" => "of memory",
            "even" => "of parameters",
            _ => "of time",
        };
        assert!(stdout.contains(of), "{stdout}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

/// The smallest model and one epoch.
const SMALL: [&str; 5] = ["train", "--filters", "4", "--epochs", "1"];

fn train(directory: &Path, out: &str, more: &[&str]) -> Output {
    let arguments: Vec<_> = SMALL
        .iter()
        .chain(&["--out", out])
        .chain(more)
        .copied()
        .collect();
    stovepipe(&arguments, directory)
}

fn summary(directory: &Path, out: &str) -> Value {
    let file = directory.join(out).join("summary.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

#[test]
fn a_run_leaves_its_files_and_its_configuration_makes_it_again() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let output = train(directory, "a", &["--balance", "5,4"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let file = |name: &str| fs::read(directory.join("a").join(name)).unwrap();

    let summary = summary(directory, "a");
    let number = |key: &str| summary.pointer(key).and_then(Value::as_f64).unwrap();
    for key in [
        "/train_loss",
        "/test/loss",
        "/samples_per_second",
        "/seconds",
    ] {
        assert!(number(key) > 0.0, "{key}");
    }
    for key in ["/test/accuracy", "/test/top5", "/bubble"] {
        assert!((0.0..=1.0).contains(&number(key)), "{key}");
    }
    assert!(number("/test/top5") >= number("/test/accuracy"));
    let stages = summary["stages"].as_array().unwrap();
    let parameters: u64 = stages
        .iter()
        .map(|stage| stage["parameters"].as_u64().unwrap())
        .sum();
    assert_eq!(summary["parameters"].as_u64(), Some(parameters));
    assert_eq!(stages[0]["layers"].as_array().unwrap().len(), 5);

    let metrics = text(&file("metrics.jsonl"));
    let metrics: Vec<Value> = metrics
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(metrics.len(), 1);
    assert_eq!(metrics[0]["test"], summary["test"]);
    let trace: Value = serde_json::from_slice(&file("timeline.json")).unwrap();
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert!(text(&file("timeline.svg")).starts_with("<svg"));
    let page = text(&file("report.html"));
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    for part in ["amoebanet-d", "timeline.svg", "Stages", "Settings", "Loss"] {
        assert!(page.contains(part), "no {part}: {page}");
    }
    // Plain lines, since this is no terminal.
    let stderr = text(&output.stderr);
    assert!(
        stderr.contains("epoch 1/1: train loss") && !stderr.contains('\u{1b}'),
        "{stderr}"
    );

    // Names know layers, not stages.
    let model = file("model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&model).unwrap();
    assert!(
        tensors
            .names()
            .iter()
            .all(|name| name.starts_with("layers."))
    );
    assert!(
        tensors
            .names()
            .iter()
            .any(|name| name.starts_with("layers.8."))
    );

    // The same settings, read from the file that the run left.
    let config = ["train", "--config", "a/config.toml", "--out", "b"];
    assert!(stovepipe(&config, directory).status.success());
    assert_eq!(
        fs::read(directory.join("b/model.safetensors")).unwrap(),
        model
    );
    assert_eq!(
        fs::read(directory.join("b/config.toml")).unwrap(),
        file("config.toml")
    );

    // A folder is not written over.
    let again = train(directory, "a", &[]);
    assert!(!again.status.success());
    assert!(text(&again.stderr).contains("a holds another run"));
    assert_eq!(file("model.safetensors"), model);
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_stages() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let model = |member: &str, out: &str, more: &[&str]| {
        let out = format!("{member}-{out}");
        let always = [
            "--model",
            member,
            "--auxiliary",
            "true",
            "--drop-path",
            "0.3",
        ];
        let output = train(directory, &out, &[more, &always].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::read(directory.join(out).join("model.safetensors")).unwrap()
    };
    let plain = [
        "--stages",
        "1",
        "--recompute",
        "never",
        "--schedule",
        "gpipe",
    ];
    let three = ["--stages", "3", "--recompute", "always"];
    for member in ["amoebanet-d", "amoebanet-b"] {
        let one = model(member, "one", &plain);
        assert!(one == model(member, "three", &three), "{member}");
    }
    let one = fs::read(directory.join("amoebanet-d-one/model.safetensors")).unwrap();
    let nine = ["--stages", "9", "--schedule", "gpipe"];
    assert!(one == model("amoebanet-d", "nine", &nine));
    assert!(one != model("amoebanet-d", "seed", &["--seed", "1"]));

    let whole = train(directory, "nothing-dropped", &["--auxiliary", "true"]);
    assert!(whole.status.success(), "{}", text(&whole.stderr));
    assert!(one != fs::read(directory.join("nothing-dropped/model.safetensors")).unwrap());
}

/// Two workers with two stages each.
const BY_HAND: &str = "\
0F0,0F1,2F0,2F1,0F2,2F2,0F3,2F3,2I0,0I0,2I1,0I1,2W0,0W0,2W1,0W1,2B2,0B2,2B3,0B3\n\
1F0,1F1,3F0,3B0,1F2,1F3,3F1,1B0,3B1,1B1,3F2,3I2,3W2,1B2,3F3,3B3,1B3,,,\n";

#[test]
fn the_model_is_the_same_file_under_any_schedule() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    fs::write(directory.join("by-hand.csv"), BY_HAND).unwrap();
    let train = |out: &str, more: &[&str]| {
        let output = train(directory, out, &[more, &["--auxiliary", "true"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        fs::read(directory.join(out).join("model.safetensors")).unwrap()
    };
    let one = train("one", &["--stages", "1", "--schedule", "1f1b"]);
    for (schedule, stages) in [
        ("interleaved", 4),
        ("zb-h1", 2),
        ("zb-v", 4),
        ("by-hand.csv", 4),
    ] {
        assert!(
            one == train(&format!("run-{schedule}"), &["--schedule", schedule]),
            "{schedule}"
        );
        let found = summary(directory, &format!("run-{schedule}"));
        assert_eq!(
            found["stages"].as_array().unwrap().len(),
            stages,
            "{schedule}"
        );
    }
    let three = [
        "--schedule",
        "interleaved",
        "--chunks",
        "3",
        "--balance",
        "2,2,2,1,1,1",
    ];
    assert!(one == train("three", &three));
    let found = summary(directory, "three");
    let of_stage = |key: &str| -> Vec<Value> {
        let stages = found["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage[key].clone()).collect()
    };
    assert_eq!(of_stage("worker"), [0, 1, 0, 1, 0, 1]);
    let layers: Vec<_> = of_stage("layers")
        .iter()
        .map(|l| l.as_array().unwrap().len())
        .collect();
    assert_eq!(layers, [2, 2, 2, 1, 1, 1]);

    // A row of the picture for each worker, which says what it has.
    let picture = fs::read_to_string(directory.join("three/timeline.svg")).unwrap();
    assert!(picture.contains("stages 1, 3, 5 · cpu"));

    // The path is kept as it was given, and the configuration makes the run again.
    let config = fs::read_to_string(directory.join("run-by-hand.csv/config.toml")).unwrap();
    assert!(config.contains("schedule = \"by-hand.csv\""), "{config}");
    let config = [
        "train",
        "--config",
        "run-by-hand.csv/config.toml",
        "--out",
        "again",
    ];
    assert!(stovepipe(&config, directory).status.success());
    assert!(one == fs::read(directory.join("again/model.safetensors")).unwrap());
}

#[test]
fn a_schedule_file_that_does_not_do_names_file_and_line() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let check = |content: &str, more: &[&str], expected: &str| {
        fs::write(directory.join("own.csv"), content).unwrap();
        for last in [&["--out", "run"] as &[&str], &["--dry-run"]] {
            let arguments = [&["train", "--schedule", "own.csv"], more, last].concat();
            let output = stovepipe(&arguments, directory);
            let stderr = text(&output.stderr);
            assert!(!output.status.success(), "{content} succeeded");
            assert!(stderr.contains("own.csv"), "{stderr}");
            assert!(stderr.contains(expected), "{stderr}");
            assert!(!stderr.contains("panicked"), "{stderr}");
            assert!(!directory.join("run").exists());
        }
    };
    check("0F0,0B0\n1F0,1X0\n", &[], "line 2: `1X0` is not an action");
    check("0F0,0B0\n1F0\n", &[], "line 2: has 1 cells");
    check("", &[], "needs at least one worker");
    check("0F0,0B0\n1B0,1F0\n", &[], "worker 1 has 1B0 before 1F0");
    check(
        "0F0,0B0\n1F0,1B0\n",
        &[],
        "set --stages 2 and --micro-batches 1",
    );
    check(
        BY_HAND,
        &["--stages", "3"],
        "set --stages 2 and --micro-batches 4",
    );
    let one = ["--micro-batches", "1"];
    check("0F0\n1F0\n", &one, "without backward passes");
    check(
        "0F0,0B0,0U0\n1F0,1B0,1U0\n",
        &one,
        "use a schedule without updates",
    );
    let two = ["--micro-batches", "2"];
    check("0F0,0B0\n0F1,0B1\n", &two, "stage 0 has 2 replicas");
}

/// 1437 samples in batches of 1434 leave three, which four micro-batches cannot share.
#[test]
fn a_last_batch_that_is_too_small_for_a_schedule_file_is_found_before_training() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    fs::write(directory.join("by-hand.csv"), BY_HAND).unwrap();
    let arguments = ["--schedule", "by-hand.csv", "--batch-size", "1434"];
    let output = train(directory, "run", &arguments);
    let stderr = text(&output.stderr);
    assert!(!output.status.success());
    let expected = "the last mini-batch of an epoch has 3 samples: no schedule: this schedule is \
                    for 4 stages and 4 micro-batches, not 4 and 3";
    assert!(stderr.contains(expected), "{stderr}");
    assert!(!stderr.contains("epoch 1"), "{stderr}");
    assert!(!directory.join("run").exists());
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let directory = TempDir::new().unwrap();
    let more = [
        "--optimizer",
        "sgd",
        "--lr",
        "1e30",
        "--clip",
        "0",
        "--warmup-epochs",
        "0",
    ];
    let output = train(directory.path(), "run", &more);
    let stderr = text(&output.stderr);
    assert!(!output.status.success());
    assert!(
        stderr.contains("error: the training diverged in epoch 1, batch"),
        "{stderr}"
    );
    // And where that began.
    assert!(stderr.contains("not finite: stage "), "{stderr}");
    assert!(!stderr.contains("panicked"), "{stderr}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
#[cfg(unix)]
fn an_interrupt_saves_what_was_trained() {
    use std::io::{BufRead, BufReader};
    let directory = TempDir::new().unwrap();
    let arguments = [
        "train",
        "--filters",
        "4",
        "--epochs",
        "1000",
        "--out",
        "run",
    ];
    let mut command = command(&arguments, directory.path());
    let mut child = command
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first_epoch = lines
        .by_ref()
        .find(|line| line.as_ref().unwrap().contains("epoch 1/1000"));
    assert!(first_epoch.is_some());
    let signal = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(signal.success());
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let summary = summary(directory.path(), "run");
    assert_eq!(summary["stopped"], Value::Bool(true));
    assert!(summary["epochs"].as_u64().unwrap() >= 1);
    assert!(directory.path().join("run/model.safetensors").exists());
}

#[test]
fn verify_prints_what_it_compared_and_succeeds_if_all_holds() {
    let directory = TempDir::new().unwrap();
    let small = [
        "verify",
        "--stages",
        "2",
        "--micro-batches",
        "1,2",
        "--samples",
        "3",
    ];
    for model in [
        &["--model", "unet"][..],
        &["--filters", "4", "--drop-path", "0.3"],
        &["--model", "vit", "--layers", "1"],
        &["--model", "transformer-lm", "--layers", "1"],
    ] {
        let arguments: Vec<_> = small.iter().chain(model).copied().collect();
        let output = stovepipe(&arguments, directory.path());
        let stdout = text(&output.stdout);
        assert!(output.status.success(), "{stdout}{}", text(&output.stderr));
        for check in [
            "repeatable",
            "same bits",
            "whole mini-batch",
            "evaluation",
            "mishap",
            "memory",
        ] {
            let line = stdout.lines().find(|line| line.starts_with(check));
            assert!(line.is_some_and(|line| line.ends_with("holds")), "{stdout}");
        }
        assert!(stdout.ends_with("all holds\n"), "{stdout}");
    }
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn verify_says_what_is_wrong_with_its_arguments() {
    let directory = TempDir::new().unwrap();
    for (arguments, expected) in [
        (
            &["--samples", "0"][..],
            "--samples is 0: give a number from 1 to 64",
        ),
        (
            &["--stages", "65"],
            "--stages is 65: give a number from 1 to 64",
        ),
        (&["--micro-batches", "3,0"], "--micro-batches is 0"),
        (&["--layers", "4"], "must be a multiple of 3"),
        (&["--drop-path", "1.5"], "1.5"),
        (&["--model", "unet", "--layers", "0"], "0"),
        (&["--model", "unet", "--drop-path", "-1"], "-1"),
        (&["--data", "cifar10"], "--data-dir"),
        (&["--micro-batches", "x"], "--micro-batches"),
        (
            &["--model", "unet", "--auxiliary", "true"],
            "auxiliary is for AmoebaNet, not for unet",
        ),
        (
            &["--data", "cifar10", "--flip", "true"],
            "flip is for training, not for verify",
        ),
        (&["--model", "vgg"], "--model"),
        (
            &["--data", "imagenet"],
            "verify takes its images from digits, cifar10 or cifar100",
        ),
        (&["--model", "vit", "--width", "6"], "6"),
        (
            &["--model", "vit", "--filters", "8"],
            "filters is for AmoebaNet and unet, not for vit",
        ),
        (
            &["--width", "8"],
            "width is for vit and transformer-lm, not for amoebanet-d",
        ),
        (
            &["--model", "transformer-lm", "--data", "cifar10"],
            "data is for models of images",
        ),
    ] {
        let arguments: Vec<_> = ["verify"].iter().chain(arguments).copied().collect();
        let output = stovepipe(&arguments, directory.path());
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(
            stderr.contains(expected) && !stderr.contains("panicked"),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn help_says_which_model_a_default_is_of() {
    let directory = TempDir::new().unwrap();
    let help = |arguments: &[&str]| {
        let output = stovepipe(arguments, directory.path());
        let words = text(&output.stdout);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let of_train = help(&["train", "--help"]);
    for expected in [
        "Data set [default: digits, or text for transformer-lm]",
        "Model [default: amoebanet-d, or transformer-lm for text]",
        "Passes over the training set [default: 8, 30 for vit, 12 for transformer-lm]",
        "Highest learning rate [default: 0.004, 0.001 for vit, 0.003 for transformer-lm]",
        "Filters of AmoebaNet (its D), divisible by 4 [default: 16]",
    ] {
        assert!(of_train.contains(expected), "{expected}: {of_train}");
    }
    // The run's settings are the defaults there, and nothing is trained.
    let of_eval = help(&["eval", "--help"]);
    assert!(of_eval.contains("--batch-size"), "{of_eval}");
    for unexpected in ["[default: 8", "for vit", "--epochs", "--lr "] {
        assert!(!of_eval.contains(unexpected), "{unexpected}: {of_eval}");
    }
}

#[test]
fn eval_needs_the_names_of_the_classes_and_says_what_is_configured() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let output = stovepipe(&[&SMALL[..], &["--out", "a"]].concat(), directory);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let check = |arguments: &[&str], expected: &str| {
        let output = stovepipe(arguments, directory);
        let stderr = text(&output.stderr);
        assert!(!output.status.success(), "{arguments:?}");
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    };
    check(
        &["train", "--config", "a/config.toml", "--model", "vit"],
        "a/config.toml has filters, which is for amoebanet-d and amoebanet-b, not for vit: take it out there",
    );
    check(
        &["eval", "a", "--width", "8"],
        "width is for vit and transformer-lm, not for amoebanet-d: leave it out",
    );
    fs::write(directory.join("a/classes.txt"), "").unwrap();
    check(&["eval", "a"], "classes.txt names no class");
    fs::remove_file(directory.join("a/classes.txt")).unwrap();
    check(&["eval", "a"], "classes.txt: ");
    check(
        &["eval", "a", "--predict", "x.png"],
        "eval needs it for the names of the classes",
    );
}
