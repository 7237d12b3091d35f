//! `train` and `verify`, as a user runs them.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::running::{
    Printed, cases, check_contains, json_file, model, refuse, refuse_and_leave_nothing, run,
    succeed, summary, typed,
};

/// Runs `train`, which must fail, say so, and leave nothing behind.
fn check_error(flags: &str, expected: &str) {
    refuse_and_leave_nothing(&format!("train --out run {flags}"), expected);
}

#[test]
fn bad_input_is_an_error_that_leaves_nothing_behind() {
    for (flags, expected) in cases(
        "
        --stages 10 => 10 stages are more than the model's 9 layers
        --balance 5,5 => adds up to 10 layers, but the model has 9
        --balance 3,3,3 => is for 3 stages, but there are 2
        --balance 9,0 => gives stage 1 no layer
        --balance 5;4 => such as 5,4
        --balance fast => auto, time, size or even
        --devices tpu:0 => unknown device `tpu:0`
        --devices cpu:threads=0,cpu => device `cpu:threads=0` needs at least 1 thread
        --devices cpu,cpu,cpu => 3 devices were given for 2 stages
        --layers 4 => normal cells must be a multiple of 3 from 3 to 3000, not 4
        --layers 0 => normal cells must be a multiple of 3 from 3 to 3000, not 0
        --filters 0 => filters
        --drop-path 1 => drop-path must be at least 0 and less than 1, not 1
        --drop-path -0.1 => less than 1, not -0.1
        --schedule zigzag => use gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, or the path of a .csv file
        --schedule pipedream => use 1f1b
        --schedule nowhere.csv => nowhere.csv: No such file
        --chunks 0 => chunks is 0
        --schedule interleaved --chunks 5 => 10 stages are more than the model's 9 layers
        --schedule zb-v --balance 5,4 => is for 2 stages, but there are 4
        --recompute sometimes => use always, except-last or never
        --precision f64 => use f32, bf16 or f16
        --config nowhere.toml => nowhere.toml
        --lr -1 => lr is -1
        --lr nan => lr is NaN
        --momentum 1 => momentum is 1
        --decay-rate 2 => decay-rate is 2
        --weight-decay -0.1 => weight-decay is -0.1
        --model unet => invalid value 'unet'
        ",
    ) {
        check_error(flags, expected);
    }
    for name in [
        "stages",
        "micro-batches",
        "threads-per-stage",
        "epochs",
        "batch-size",
        "lr",
    ] {
        check_error(&format!("--{name} 0"), &format!("{name} is 0"));
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
        check_error(&format!("--{name} -1"), &format!("'-1' for '--{name}"));
    }
    for (flags, expected) in cases(
        "
        --stages 18446744073709551615 => are more than the model's 9 layers
        --balance 18446744073709551615,10 => but the model has 9
        --micro-batches 1000000000 => from 1 to 65536
        --threads-per-stage 1000000 => from 1 to 1024
        --filters 4000000000 => from 4 to 65536
        --layers 3000000000 => from 3 to 3000
        ",
    ) {
        check_error(flags, expected);
        check_error(&format!("{flags} --dry-run"), expected);
    }
}

#[test]
fn a_typo_suggests_the_right_word() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    fs::write(directory.join("profile.toml"), "").unwrap();
    for (line, expected) in cases(
        "
        trian => 'train'
        train --batch-sise 3 => '--batch-size'
        train --model vti => 'vit'
        train --data cifar-10 => 'cifar10'
        train --optimizer adam-w => 'adamw'
        train --schedule gpip => 'gpipe'
        train --balance evn => 'even'
        train --recompute alway => 'always'
        train --precision bf61 => 'bf16'
        train --freeze bdy => 'body'
        train --devices cpi => did you mean `cpu`?
        train --devices cpu,wpgu:0 => did you mean `wgpu`?
        devices --devices cdua:0 => did you mean `cuda`?
        plan --schedules gpipe,zbh1 => 'zb-h1'
        plan --recompute except-lst => 'except-last'
        plan --measure --devices cpui => did you mean `cpu`?
        simulate --schedule interleave => did you mean `interleaved`?
        verify --model u-net => 'unet'
        ",
    ) {
        refuse(line, directory, expected);
    }
}

#[test]
#[cfg(not(feature = "cuda"))]
fn a_device_whose_feature_is_missing_names_the_feature() {
    check_error("--devices cuda:0", "--features cuda");
    #[cfg(not(feature = "wgpu"))]
    check_error("--devices wgpu:0", "--features wgpu");
}

#[test]
fn what_is_wrong_in_a_configuration_is_named_with_its_line() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    for (content, expected) in [
        (
            "[training]\nepoch = 3\n",
            "line 2: unknown key `epoch` in [training]: did you mean `epochs`?",
        ),
        (
            "\n[model]\nfilter = 3\n",
            "line 3: unknown key `filter` in [model]: did you mean `filters`?",
        ),
        (
            "[data]\nlabel = \"fine\"\ndata = \"cifar100\"",
            "line 2: unknown key `label` in [data]: did you mean `labels`?",
        ),
        ("speed = 3\n", "line 1: unknown table `speed`"),
        (
            "[train]\n",
            "unknown table `train`: did you mean `training`?",
        ),
        ("data = 3\n", "line 1: `data` must be a table"),
        ("[training]\nepochs = -3\n", "line 2: epochs: "),
        ("[pipeline]\nrecompute = \"no\"\n", "unknown variant `no`"),
        (
            "[pipeline]\nrecompute = \"nevr\"\n",
            "did you mean `never`?",
        ),
        ("[pipeline]\nschedule = \"1f1g\"\n", "line 2: schedule: "),
        ("[pipeline]\nschedule = \"1f1g\"\n", "did you mean `1f1b`?"),
        ("[pipeline]\ndevices = [\"cpuu\"]\n", "did you mean `cpu`?"),
        (
            "[training]\noptimizer = \"rmspro\"\n",
            "did you mean `rmsprop`?",
        ),
        (
            "[model]\nmodel = \"vjt\"\n",
            "line 2: unknown model `vjt`, not one of amoebanet-d",
        ),
        ("[model]\nmodel = \"vjt\"\n", "did you mean `vit`?"),
        ("[model]\nmodel = \"unet\"\n", "unknown model `unet`"),
        ("[data]\ndata = \"digts\"\n", "did you mean `digits`?"),
        (
            "[model]\nmodel = \"vit\"\npatch = \"4\"\n",
            "line 3: patch: ",
        ),
        ("[training\n", "line 1"),
    ] {
        fs::write(directory.join("c.toml"), content).unwrap();
        let line = "train --config c.toml --out run";
        let error = refuse(line, directory, "c.toml");
        assert!(error.contains(expected), "{content}: {error}");
        assert!(!directory.join("run").exists());
    }
}

#[test]
fn a_dry_run_prints_stages_and_trains_nothing() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let line = "train --dry-run --balance 5,4 --layers 3 --filters 16";
    let stdout = succeed(line, directory);
    // The prediction comes after the table.
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
    let of_stage = rows[6][3].parse::<usize>().unwrap();
    assert_eq!((1..6).map(parameters).sum::<usize>(), of_stage);

    let with_b = succeed(&format!("{line} --model amoebanet-b"), directory);
    assert!(
        with_b.contains("stage 1") && !with_b.contains(rows[6][3]),
        "{with_b}"
    );
    for balance in ["auto", "time", "size", "even"] {
        let line = format!("train --dry-run --filters 4 --balance {balance}");
        let of = match balance {
            "size" => "of memory",
            "even" => "of parameters",
            _ => "of time",
        };
        let parts = ["stage 0", "stage 1", " ms", "activations ", of];
        check_contains(&succeed(&line, directory), &parts);
    }
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

/// The smallest model and one epoch.
const SMALL: &str = "train --filters 4 --epochs 1";

#[test]
fn a_run_writes_its_files_and_its_configuration_makes_it_again() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let Printed { err: stderr, .. } = run(&format!("{SMALL} --out a --balance 5,4"), directory);
    let file = |name: &str| fs::read(directory.join("a").join(name)).unwrap();
    let text = |name: &str| String::from_utf8(file(name)).unwrap();

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
    let parameters = stages
        .iter()
        .map(|stage| stage["parameters"].as_u64().unwrap());
    assert_eq!(summary["parameters"].as_u64(), Some(parameters.sum()));
    assert_eq!(stages[0]["layers"].as_array().unwrap().len(), 5);

    let metrics: Vec<Value> = text("metrics.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(metrics.len(), 1);
    assert_eq!(metrics[0]["test"], summary["test"]);
    let trace = json_file(&directory.join("a/timeline.json"));
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert!(text("timeline.svg").starts_with("<svg"));
    let page = text("report.html");
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    let parts = ["amoebanet-d", "timeline.svg", "Stages", "Settings", "Loss"];
    check_contains(&page, &parts);
    // Plain lines, since this is no terminal.
    assert!(
        stderr.contains("epoch 1/1: train loss") && !stderr.contains('\u{1b}'),
        "{stderr}"
    );

    // Names know layers, not stages.
    let weights = file("model.safetensors");
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let names = tensors.names();
    assert!(names.iter().all(|name| name.starts_with("layers.")));
    assert!(names.iter().any(|name| name.starts_with("layers.8.")));

    // The same settings, read from the run's file.
    run("train --config a/config.toml --out b", directory);
    assert_eq!(model(directory, "b"), weights);
    assert_eq!(
        fs::read(directory.join("b/config.toml")).unwrap(),
        file("config.toml")
    );

    // A folder is not written over.
    refuse(
        &format!("{SMALL} --out a"),
        directory,
        "a holds another run",
    );
    assert_eq!(file("model.safetensors"), weights);
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_stages() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let train = |member: &str, out: &str, more: &str| {
        let out = format!("{member}-{out}");
        let always = format!("--model {member} --auxiliary true --drop-path 0.3");
        run(&format!("{SMALL} --out {out} {always} {more}"), directory);
        model(directory, &out)
    };
    for member in ["amoebanet-d", "amoebanet-b"] {
        let one = train(
            member,
            "one",
            "--stages 1 --recompute never --schedule gpipe",
        );
        let three = train(member, "three", "--stages 3 --recompute always");
        assert!(one == three, "{member}");
    }
    let one = model(directory, "amoebanet-d-one");
    let nine = "--stages 9 --schedule gpipe";
    assert!(one == train("amoebanet-d", "nine", nine));
    assert!(one != train("amoebanet-d", "seed", "--seed 1"));

    let whole = format!("{SMALL} --out nothing-dropped --auxiliary true");
    run(&whole, directory);
    assert!(one != model(directory, "nothing-dropped"));
}

/// Two workers with two stages each.
const CUSTOM: &str = "\
0F0,0F1,2F0,2F1,0F2,2F2,0F3,2F3,2I0,0I0,2I1,0I1,2W0,0W0,2W1,0W1,2B2,0B2,2B3,0B3\n\
1F0,1F1,3F0,3B0,1F2,1F3,3F1,1B0,3B1,1B1,3F2,3I2,3W2,1B2,3F3,3B3,1B3,,,\n";

#[test]
fn the_model_is_the_same_file_under_any_schedule() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    fs::write(directory.join("custom.csv"), CUSTOM).unwrap();
    let train = |out: &str, more: &str| {
        run(
            &format!("{SMALL} --out {out} --auxiliary true {more}"),
            directory,
        );
        model(directory, out)
    };
    let one = train("one", "--stages 1 --schedule 1f1b");
    for (schedule, stages) in [
        ("interleaved", 4),
        ("zb-h1", 2),
        ("zb-v", 4),
        ("custom.csv", 4),
    ] {
        let out = format!("run-{schedule}");
        let same = train(&out, &format!("--schedule {schedule}"));
        assert!(one == same, "{schedule}");
        let found = summary(directory, &out);
        let found = found["stages"].as_array().unwrap().len();
        assert_eq!(found, stages, "{schedule}");
    }
    let three = "--schedule interleaved --chunks 3 --balance 2,2,2,1,1,1";
    assert!(one == train("three", three));
    let found = summary(directory, "three");
    let of_stage = |key: &str| -> Vec<Value> {
        let stages = found["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage[key].clone()).collect()
    };
    assert_eq!(of_stage("worker"), [0, 1, 0, 1, 0, 1]);
    let layers: Vec<_> = of_stage("layers")
        .iter()
        .map(|layers| layers.as_array().unwrap().len())
        .collect();
    assert_eq!(layers, [2, 2, 2, 1, 1, 1]);

    // A row of the picture for each worker, which says what it has.
    let picture = fs::read_to_string(directory.join("three/timeline.svg")).unwrap();
    assert!(picture.contains("stages 1, 3, 5 · cpu"));

    // The path is kept as it was given, and the configuration makes the run again.
    let config = fs::read_to_string(directory.join("run-custom.csv/config.toml")).unwrap();
    assert!(config.contains("schedule = \"custom.csv\""), "{config}");
    run(
        "train --config run-custom.csv/config.toml --out again",
        directory,
    );
    assert!(one == model(directory, "again"));
}

#[test]
fn an_unfit_schedule_file_names_file_and_line() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    let (one, two) = ("--micro-batches 1", "--micro-batches 2");
    for (content, more, expected) in [
        ("0F0,0B0\n1F0,1X0\n", "", "line 2: `1X0` is not an action"),
        ("0F0,0B0\n1F0\n", "", "line 2: has 1 cells"),
        ("", "", "needs at least one worker"),
        ("0F0,0B0\n1B0,1F0\n", "", "worker 1 has 1B0 before 1F0"),
        (
            "0F0,0B0\n1F0,1B0\n",
            "",
            "set --stages 2 and --micro-batches 1",
        ),
        (CUSTOM, "--stages 3", "set --stages 2 and --micro-batches 4"),
        ("0F0\n1F0\n", one, "without backward passes"),
        (
            "0F0,0B0,0U0\n1F0,1B0,1U0\n",
            one,
            "use a schedule without updates",
        ),
        ("0F0,0B0\n0F1,0B1\n", two, "stage 0 has 2 replicas"),
    ] {
        fs::write(directory.join("own.csv"), content).unwrap();
        for last in ["--out run", "--dry-run"] {
            let line = format!("train --schedule own.csv {more} {last}");
            let error = refuse(&line, directory, expected);
            assert!(error.contains("own.csv"), "{error}");
            assert!(!directory.join("run").exists());
        }
    }
}

/// 1437 samples in batches of 1434 leave three, which four micro-batches cannot share.
#[test]
fn a_last_batch_that_is_too_small_for_a_schedule_file_is_found_before_training() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    fs::write(directory.join("custom.csv"), CUSTOM).unwrap();
    let line = format!("{SMALL} --out run --schedule custom.csv --batch-size 1434");
    let expected = "the last mini-batch of an epoch has 3 samples: no schedule: this schedule is \
                    for 4 stages and 4 micro-batches, not 4 and 3";
    let stderr = refuse(&line, directory, expected);
    assert!(!stderr.contains("epoch 1"), "{stderr}");
    assert!(!directory.join("run").exists());
}

#[test]
fn a_loss_that_is_nan_or_infinite_ends_the_run() {
    let directory = TempDir::new().unwrap();
    let more = "--optimizer sgd --lr 1e30 --clip 0 --warmup-epochs 0";
    let line = format!("{SMALL} --out run {more}");
    let expected = "error: the training diverged in epoch 1, batch";
    let stderr = refuse(&line, directory.path(), expected);
    // And where that began.
    assert!(stderr.contains("not finite: stage "), "{stderr}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
#[cfg(unix)]
fn an_interrupt_saves_what_was_trained() {
    let directory = TempDir::new().unwrap();
    let line = "train --filters 4 --epochs 1000 --out run";
    let mut child = typed(line, directory.path())
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
    let small = "verify --stages 2 --micro-batches 1,2 --samples 3";
    for model in [
        "--model unet",
        "--filters 4 --drop-path 0.3",
        "--model vit --layers 1",
        "--model transformer-lm --layers 1",
    ] {
        let stdout = succeed(&format!("{small} {model}"), directory.path());
        for check in [
            "repeatable",
            "same bits",
            "whole mini-batch",
            "evaluation",
            "failed step",
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
    for (flags, expected) in cases(
        "
        --samples 0 => --samples is 0: give a number from 1 to 64
        --stages 65 => --stages is 65: give a number from 1 to 64
        --micro-batches 3,0 => --micro-batches is 0
        --layers 4 => must be a multiple of 3
        --drop-path 1.5 => 1.5
        --model unet --layers 0 => 0
        --model unet --drop-path -1 => -1
        --data cifar10 => --data-dir
        --micro-batches x => --micro-batches
        --model unet --auxiliary true => auxiliary is for amoebanet-d and amoebanet-b, not for unet
        --data cifar10 --flip true => --flip is for training, not for verify
        --model vgg => --model
        --data imagenet => verify takes its images from digits, cifar10 or cifar100
        --model vit --width 6 => 6
        --model vit --filters 8 => filters is for amoebanet-d, amoebanet-b and unet, not for vit
        --width 8 => width is for vit and transformer-lm, not for amoebanet-d
        --model transformer-lm --data cifar10 => transformer-lm does not learn from cifar10: it learns from text
        ",
    ) {
        refuse(&format!("verify {flags}"), directory.path(), expected);
    }
}

#[test]
fn help_has_a_line_for_each_flag_and_says_which_model_a_default_is_of() {
    let directory = TempDir::new().unwrap();
    let help = |line: &str| {
        let words = succeed(line, directory.path());
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    check_contains(
        &help("train --help"),
        &[
            "Data set [default: digits, or text for transformer-lm]",
            "Model [default: amoebanet-d, or transformer-lm for text]",
            "Passes over the training set [default: 8, 30 for vit, 12 for transformer-lm]",
            "Highest learning rate [default: 0.004, 0.001 for vit, 0.003 for transformer-lm]",
            "Filters, divisible by 4 (amoebanet-d, amoebanet-b) [default: 16]",
            "Normal cells, divisible by 3 (amoebanet-d, amoebanet-b); blocks (vit, transformer-lm) \
             [default: 3, 4 for vit and transformer-lm]",
            "Images are mixed in pairs",
            "(text) [default: each byte is a token]",
        ],
    );
    // The settings of what is verified are smaller, and U-Net is among it.
    let parts = ["[default: 8, 4 for unet]", "unet: U-Net(B, C)"];
    check_contains(&help("verify --help"), &parts);
    // The run's settings are the defaults there, and nothing is trained.
    let of_eval = help("eval --help");
    assert!(of_eval.contains("--batch-size"), "{of_eval}");
    for unexpected in ["[default: 8", "for vit", "--epochs", "--lr "] {
        assert!(!of_eval.contains(unexpected), "{unexpected}: {of_eval}");
    }
    let commands = succeed("--help", directory.path());
    for name in ["train", "eval", "devices", "plan", "simulate", "verify"] {
        let line = commands
            .lines()
            .find(|line| line.trim_start().starts_with(name));
        assert!(line.is_some_and(|line| line.len() < 80), "{commands}");
    }
}

#[test]
fn eval_needs_the_names_of_the_classes_and_says_what_is_configured() {
    let directory = TempDir::new().unwrap();
    let directory = directory.path();
    run(&format!("{SMALL} --out a"), directory);
    refuse(
        "train --config a/config.toml --model vit",
        directory,
        "a/config.toml has filters, which is for amoebanet-d and amoebanet-b, not for vit: remove it there",
    );
    refuse(
        "eval a --width 8",
        directory,
        "width is for vit and transformer-lm, not for amoebanet-d: leave it out",
    );
    fs::write(directory.join("a/classes.txt"), "").unwrap();
    refuse("eval a", directory, "classes.txt names no class");
    fs::remove_file(directory.join("a/classes.txt")).unwrap();
    refuse("eval a", directory, "No such file");
    let expected = "eval needs a/classes.txt for the names of the classes";
    refuse("eval a --predict x.png", directory, expected);
}
