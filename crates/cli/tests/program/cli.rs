//! `train` and `verify`, as a user runs them.

use std::{
    fs,
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    docs::SUBCOMMANDS,
    running::{Here, Printed, cases, check_contains, check_lacks, refuse_and_leave_nothing},
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
        --devices cpu:threads=0,cpu => device `cpu:threads=0` can have from 1 to 1024 threads
        --devices cpu,cpu,cpu => 3 devices given for 2 workers
        --layers 4 => normal cells must be a multiple of 3 from 3 to 3000, not 4
        --layers 0 => normal cells must be a multiple of 3 from 3 to 3000, not 0
        --filters 0 => filters
        --drop-path 1 => drop-path must be at least 0 and less than 1, not 1
        --drop-path -0.1 => less than 1, not -0.1
        --schedule zigzag => use gpipe, 1f1b, interleaved, zb-h1, zb-h2, zb-v, v-min, v-half, v-1f1b, pipedream, or the path of a .csv file
        --schedule pipedream --accumulate 2 => --accumulate does not work with --schedule pipedream
        --schedule pipedream --ema 0.9 => --ema does not work with --schedule pipedream
        --schedule pipedream --precision f16 => --precision f16 does not work with --schedule pipedream
        --schedule pipedream --window 0 => window is 0
        --schedule pipedream --window 24 => window is 24, but an epoch has 23 mini-batches
        --schedule pipedream --replicas 2 => the schedule pipedream has no such replicas
        --schedule pipedream --micro-batches 30 => 29 micro-batches cannot be divided into updates of 30
        --window 2 => --window has no effect: it is for --schedule pipedream
        --vertical-sync => --vertical-sync has no effect: it is for --schedule pipedream
        --schedule nowhere.csv => nowhere.csv: No such file
        --schedule interleaved --chunks 0 => chunks is 0
        --schedule interleaved --chunks 5 => 10 stages are more than the model's 9 layers
        --schedule zb-v --balance 5,4 => is for 2 stages, but there are 4
        --recompute sometimes => use always, except-last, never, by-layer or layers, as in 0-3,7-9
        --precision f64 => use f32, bf16 or f16
        --config nowhere.toml => nowhere.toml
        --lr -1 => lr is -1
        --lr nan => lr is NaN
        --optimizer sgd --momentum 1 => momentum is 1
        --decay exponential --decay-rate 2 => decay-rate is 2
        --lr 1e308 --momentum 0 => --momentum has no effect with --optimizer adam or adamw: leave it out
        --weight-decay -1e308 => weight-decay is -1e308, but
        --beta2 1 => beta2 is 1, but must be at least 0 and less than 1
        --beta2 0.9 --optimizer sgd => --beta2 has no effect with --optimizer sgd or rmsprop: leave it out
        --weight-decay-of matrices --weight-decay 0 => --weight-decay-of has no effect with --weight-decay 0: leave it out
        --weight-decay-of norms => matrices
        --weight-decay -0.1 => weight-decay is -0.1
        --model unet => invalid value 'unet'
        ",
    ) {
        check_error(flags, expected);
    }
    let zeros = "stages micro-batches threads-per-stage epochs batch-size lr";
    for name in zeros.split(' ') {
        check_error(&format!("--{name} 0"), &format!("{name} is 0"));
    }
    let negatives = "stages micro-batches epochs batch-size layers filters seed";
    for name in negatives.split(' ') {
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

/// Memory is counted before it is allocated, and before the data are read.
#[test]
fn what_no_machine_holds_is_refused_before_it_is_allocated() {
    for (flags, expected) in cases(
        "
        --model vit --layers 16777216 => 16777216 layers without their parameters take about
        --data text --model transformer-lm --layers 16777216 => of memory, but only
        --data imagenet --image-size 16384 --batch-size 65536 --dry-run => a micro-batch of 16384 samples takes at least 96.0 TiB of memory, but only
        --data imagenet --data-dir nowhere --threads-per-stage 1025 => from 1 to 1024
        --data imagenet --data-dir nowhere --devices cpu:threads=1025 => `cpu:threads=1025` can have from 1 to 1024
        ",
    ) {
        check_error(flags, expected);
    }
}

#[test]
fn more_threads_than_cores_are_said() {
    let here = Here::new();
    for (flags, expected) in [
        (
            "--threads-per-stage 1024",
            "warning: 2048 CPU threads share",
        ),
        (
            "--devices cpu:threads=1024,cpu",
            "warning: 1025 CPU threads share",
        ),
    ] {
        let line = format!("train --data imagenet --data-dir nowhere {flags}");
        let error = here.refuse(&line, expected);
        check_contains(&error, &["nowhere"]);
    }
}

#[test]
fn a_typo_suggests_the_right_word() {
    let here = Here::new();
    here.write("profile.toml", "");
    here.refuse_all(
        "",
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
        plan --schedules gpipe,zb-vv => 'zb-v'
        plan --recompute except-lst => 'except-last'
        plan --measure --devices cpui => did you mean `cpu`?
        simulate --schedule interleave => did you mean `interleaved`?
        verify --model u-net => 'unet'
        ",
    );
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
    let here = Here::new();
    for (content, expected) in cases(
        r#"
        [training]; epoch = 3 => line 2: unknown key `epoch` in [training]: did you mean `epochs`?
        ; [model]; filter = 3 => line 3: unknown key `filter` in [model]: did you mean `filters`?
        [data]; label = "fine"; data = "cifar100" => line 2: unknown key `label` in [data]: did you mean `labels`?
        speed = 3 => line 1: unknown table `speed`
        [train] => unknown table `train`: did you mean `training`?
        data = 3 => line 1: `data` must be a table
        [training]; epochs = -3 => line 2: epochs: 
        [pipeline]; recompute = "no" => recompute: `no` is not a recompute mode: use always, except-last
        [pipeline]; recompute = "nevr" => did you mean `never`?
        [pipeline]; schedule = "1f1g" => line 2: schedule: 
        [pipeline]; schedule = "1f1g" => did you mean `1f1b`?
        [pipeline]; devices = ["cpuu"] => did you mean `cpu`?
        [training]; optimizer = "rmspro" => did you mean `rmsprop`?
        [model]; model = "vjt" => line 2: unknown model `vjt`, not one of amoebanet-d
        [model]; model = "vjt" => did you mean `vit`?
        [model]; model = "unet" => unknown model `unet`
        [data]; data = "digts" => did you mean `digits`?
        [model]; model = "vit"; patch = "big" => line 3: patch: 
        [training => line 1
        "#,
    ) {
        here.write("c.toml", content.replace("; ", "\n") + "\n");
        let error = here.refuse("train --config c.toml --out run", "c.toml");
        assert!(error.contains(expected), "{content}: {error}");
        assert!(!here.join("run").exists());
    }
}

#[test]
fn a_dry_run_prints_stages_and_trains_nothing() {
    let here = Here::new();
    let line = "train --dry-run --balance 5,4 --layers 3 --filters 16";
    let stdout = here.succeed(line);
    // The prediction comes after the table.
    let rows = stdout.lines().take_while(|row| !row.is_empty());
    let rows: Vec<Vec<_>> = rows.map(|row| row.split_whitespace().collect()).collect();
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

    let with_b = here.succeed(&format!("{line} --model amoebanet-b"));
    check_contains(&with_b, &["stage 1"]);
    check_lacks(&with_b, &[rows[6][3]]);
    for balance in ["auto", "time", "size", "even"] {
        let line = format!("train --dry-run --filters 4 --balance {balance}");
        let of = match balance {
            "size" => "of memory",
            "even" => "of parameters",
            _ => "of time",
        };
        let parts = ["stage 0", "stage 1", " ms", "activations ", of];
        check_contains(&here.succeed(&line), &parts);
    }
    assert!(here.is_empty());
}

/// The smallest model, few images and one epoch.
const SMALL: &str = "train --filters 4 --per-class 16 --epochs 1";

#[test]
fn a_run_writes_its_files_and_its_configuration_makes_it_again() {
    let here = Here::new();
    let Printed { err, .. } = here.run(&format!("{SMALL} --out a --balance 5,4"));

    let summary = here.summary("a");
    let number = |key: &str| summary.pointer(key).and_then(Value::as_f64).unwrap();
    let positive = "/train_loss /test/loss /samples_per_second /seconds";
    for key in positive.split(' ') {
        assert!(number(key) > 0.0, "{key}");
    }
    for key in ["/test/accuracy", "/test/top5", "/bubble"] {
        assert!((0.0..=1.0).contains(&number(key)), "{key}");
    }
    assert!(number("/test/top5") >= number("/test/accuracy"));
    let stages = summary["stages"].as_array().unwrap();
    let parameters = |stage: &Value| stage["parameters"].as_u64().unwrap();
    let all = stages.iter().map(parameters).sum();
    assert_eq!(summary["parameters"].as_u64(), Some(all));
    assert_eq!(stages[0]["layers"].as_array().unwrap().len(), 5);

    // One line, or it would not be read.
    let metrics = here.json("a/metrics.jsonl");
    assert_eq!(metrics["test"], summary["test"]);
    let trace = here.json("a/timeline.json");
    assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    assert!(here.read("a/timeline.svg").starts_with("<svg"));
    let page = here.read("a/report.html");
    assert!(page.starts_with("<!DOCTYPE html>"), "{page}");
    let parts = ["amoebanet-d", "timeline.svg", "Stages", "Settings", "Loss"];
    check_contains(&page, &parts);
    // Plain lines, since this is no terminal.
    check_contains(&err, &["epoch 1/1: train loss"]);
    check_lacks(&err, &["\u{1b}"]);

    // Names know layers, not stages.
    let weights = here.model("a");
    let tensors = safetensors::SafeTensors::deserialize(&weights).unwrap();
    let names = tensors.names();
    assert!(names.iter().all(|name| name.starts_with("layers.")));
    assert!(names.iter().any(|name| name.starts_with("layers.8.")));

    // The same settings, read from the run's file.
    here.run("train --config a/config.toml --out b");
    assert_eq!(here.model("b"), weights);
    assert_eq!(here.read("b/config.toml"), here.read("a/config.toml"));

    // A folder is not written over.
    here.refuse(&format!("{SMALL} --out a"), "a holds another run");
    assert_eq!(here.model("a"), weights);
}

#[test]
fn the_model_is_the_same_file_for_any_number_of_stages() {
    let here = Here::new();
    let train = |member: &str, out: &str, more: &str| {
        let out = format!("{member}-{out}");
        let always = format!("--model {member} --auxiliary true --drop-path 0.3 --balance even");
        here.run(&format!("{SMALL} --out {out} {always} {more}"));
        here.model(&out)
    };
    for member in ["amoebanet-d", "amoebanet-b"] {
        let alone = "--stages 1 --recompute never --schedule gpipe";
        let one = train(member, "one", alone);
        let three = train(member, "three", "--stages 3 --recompute always");
        assert!(one == three, "{member}");
    }
    let one = here.model("amoebanet-d-one");
    assert!(one == train("amoebanet-d", "nine", "--stages 9 --schedule gpipe"));
    assert!(one != train("amoebanet-d", "seed", "--seed 1"));

    here.run(&format!("{SMALL} --out nothing-dropped --auxiliary true"));
    assert!(one != here.model("nothing-dropped"));
}

const CUSTOM: &str = "\
0F0,0F1,2F0,2F1,0F2,2F2,0F3,2F3,2I0,0I0,2I1,0I1,2W0,0W0,2W1,0W1,2B2,0B2,2B3,0B3\n\
1F0,1F1,3F0,3B0,1F2,1F3,3F1,1B0,3B1,1B1,3F2,3I2,3W2,1B2,3F3,3B3,1B3,,,\n";

#[test]
fn the_model_is_the_same_file_under_any_schedule() {
    let here = Here::new();
    here.write("custom.csv", CUSTOM);
    let train = |out: &str, more: &str| {
        here.run(&format!("{SMALL} --out {out} --auxiliary true {more}"));
        here.model(out)
    };
    let one = train("one", "--stages 1 --schedule 1f1b --balance even");
    for schedule in ["interleaved", "zb-h1", "zb-v", "custom.csv"] {
        let out = format!("run-{schedule}");
        let same = train(&out, &format!("--schedule {schedule} --balance even"));
        assert!(one == same, "{schedule}");
        let found = here.summary(&out)["stages"].as_array().unwrap().len();
        let stages = if schedule == "zb-h1" { 2 } else { 4 };
        assert_eq!(found, stages, "{schedule}");
    }
    let three = "--schedule interleaved --chunks 3 --balance 2,2,2,1,1,1";
    assert!(one == train("three", three));
    let found = here.summary("three");
    let of_stage = |key: &str| -> Vec<Value> {
        let stages = found["stages"].as_array().unwrap();
        stages.iter().map(|stage| stage[key].clone()).collect()
    };
    assert_eq!(of_stage("worker"), [0, 1, 0, 1, 0, 1]);
    let layers = of_stage("layers").into_iter();
    let layers = layers.map(|layers| layers.as_array().unwrap().len());
    assert_eq!(layers.collect::<Vec<_>>(), [2, 2, 2, 1, 1, 1]);

    // A row of the picture for each worker, which says what it has.
    let picture = here.read("three/timeline.svg");
    assert!(picture.contains("stages 1, 3, 5 · cpu"));

    // The path can be found from any folder, and the configuration makes the run again.
    let config = here.read("run-custom.csv/config.toml");
    let path = here.join("custom.csv").display().to_string();
    assert!(
        config.contains(&format!("schedule = \"{path}\"")),
        "{config}"
    );
    here.run("train --config run-custom.csv/config.toml --out again");
    assert!(one == here.model("again"));
}

#[test]
fn an_unfit_schedule_file_names_file_and_line() {
    let here = Here::new();
    // What is in the file, a line for each worker, and the flags, after a semicolon.
    for (case, expected) in cases(
        "
        0F0,0B0 / 1F0,1X0; => line 2: `1X0` is not an action
        0F0,0B0 / 1F0; => worker 1 lacks 1B0
        ; => needs at least one worker
        0F0,0B0 / 1B0,1F0; => worker 1 has 1B0 before 1F0
        0F0,0B0 / 1F0,1B0; => set --stages 2 and --micro-batches 1
        CUSTOM;--stages 3 => set --stages 2 and --micro-batches 4
        0F0 / 1F0;--micro-batches 1 => without backward passes
        0F0,0B0,0U0 / 1F0,1B0,1U0;--micro-batches 1 => use --schedule pipedream, which makes
        0F0,0B0 / 0F1,0B1;--micro-batches 2 --replicas 2 => own.csv has no such replicas
        ",
    ) {
        let (content, more) = case.split_once(';').unwrap();
        let content = content.replace(" / ", "\n").replace("CUSTOM", CUSTOM);
        here.write("own.csv", content.trim_end());
        for last in ["--out run", "--dry-run"] {
            let line = format!("train --schedule own.csv {more} {last}");
            let error = here.refuse(&line, expected);
            assert!(error.contains("own.csv"), "{error}");
            assert!(!here.join("run").exists());
        }
    }
}

/// 1437 samples in batches of 1434 leave three, which four micro-batches cannot share.
#[test]
fn a_last_batch_that_is_too_small_for_a_schedule_file_is_found_before_training() {
    let here = Here::new();
    here.write("custom.csv", CUSTOM);
    let line = "train --filters 4 --out run --schedule custom.csv --batch-size 1434";
    let expected = "the last mini-batch of an epoch has 3 samples: no schedule: this schedule is \
                    for 4 stages and 4 micro-batches, not 4 and 3";
    let stderr = here.refuse(line, expected);
    assert!(!stderr.contains("epoch 1"), "{stderr}");
    assert!(!here.join("run").exists());
}

#[test]
fn a_loss_that_is_nan_or_infinite_ends_the_run() {
    let here = Here::new();
    let line = format!(
        "{SMALL} --out run --optimizer sgd --lr 1e30 --clip 0 --warmup-epochs 0 --stages 4 --balance even"
    );
    let stderr = here.refuse(&line, "error: the training diverged in epoch 1, batch");
    // And where that began.
    check_contains(&stderr, &["not finite: stage "]);
    let (_, error) = stderr.split_once("error: ").unwrap();
    assert!(error.lines().count() <= 3, "{error}");
    assert!(here.is_empty());
}

#[test]
#[cfg(unix)]
fn an_interrupt_saves_what_was_trained() {
    let here = Here::new();
    let mut command = here.typed(&format!("{SMALL} --epochs 1000 --out run"));
    let mut child = (command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn()).unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("epoch 1/1000")));
    let mut signal = Command::new("kill");
    let signal = signal.args(["-INT", &child.id().to_string()]).status();
    assert!(signal.unwrap().success());
    let last = lines.last().unwrap().unwrap();
    assert_eq!(last, "to go on: stovepipe train --resume --out run");
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let summary = here.summary("run");
    assert_eq!(summary["stopped"], Value::Bool(true));
    assert!(summary["epochs"].as_u64().unwrap() >= 1);
    assert!(here.join("run/model.safetensors").exists());
}

#[test]
fn verify_prints_what_it_compared_and_succeeds_if_all_holds() {
    let here = Here::new();
    for model in [
        "--micro-batches 1,2 --samples 3 --model unet",
        "--micro-batches 2 --samples 2 --filters 4 --drop-path 0.3",
        "--micro-batches 1,2 --samples 3 --model vit --layers 1",
        "--micro-batches 1,2 --samples 3 --model transformer-lm --layers 1",
    ] {
        let stdout = here.succeed(&format!("verify --stages 2 {model}"));
        let checks = "repeatable,same bits,whole mini-batch,evaluation,failed step,memory";
        for check in checks.split(',') {
            let line = stdout.lines().find(|line| line.starts_with(check));
            assert!(line.is_some_and(|line| line.ends_with("holds")), "{stdout}");
        }
        assert!(stdout.ends_with("all holds\n"), "{stdout}");
    }
    // Its second step enlarges what weights differ in by rounding a thousand times.
    here.succeed("verify --stages 1 --micro-batches 3 --seed 3");
    // A single window, too, has targets.
    for model in ["transformer-lm", "decoder"] {
        here.succeed(&format!(
            "verify --stages 1 --micro-batches 1 --samples 1 --model {model}"
        ));
    }
    assert!(here.is_empty());
}

#[test]
fn verify_says_what_is_wrong_with_its_arguments() {
    let here = Here::new();
    here.refuse_all(
        "verify",
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
        --data cifar10 --flip true => --flip is not for verify, since it is for training
        --model vgg => --model
        --data imagenet => verify takes its images from digits, cifar10 or cifar100
        --model vit --width 6 => 6
        --model vit --filters 8 => filters is for amoebanet-d, amoebanet-b and unet, not for vit
        --width 8 => width is for vit, transformer-lm and decoder, not for amoebanet-d
        --model transformer-lm --data cifar10 => transformer-lm does not learn from cifar10: it learns from text
        ",
    );
}

#[test]
fn help_has_a_line_for_each_flag_and_says_which_model_a_default_is_of() {
    let here = Here::new();
    let help = |line: &str| {
        let words = here.succeed(line);
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    check_contains(
        &help("train --help"),
        &[
            "Data set [default: digits, or text for transformer-lm]",
            "Model [default: amoebanet-d, or transformer-lm for text]",
            "Passes over the training set [default: 8, 30 for vit, 12 for transformer-lm and decoder]",
            "Highest learning rate [default: 0.004, 0.001 for vit, 0.003 for transformer-lm and decoder]",
            "Filters, divisible by 4 (amoebanet-d, amoebanet-b) [default: 16]",
            "Normal cells, divisible by 3 (amoebanet-d, amoebanet-b); blocks (vit, transformer-lm, decoder) \
             [default: 3, 4 for vit, transformer-lm and decoder]",
            "(text, numbers) [default: each byte is a token]",
        ],
    );
    // The usual flags, then all with the meaning of each value.
    let lines = here.succeed("train --help").lines().count();
    assert!(lines <= 120, "{lines} lines");
    let (usual, all) = (help("train --help"), help("train --help-all"));
    check_lacks(&usual, &["--mixup", "--momentum"]);
    check_contains(
        &all,
        &["--mixup", "--momentum", "Half a cosine down to zero"],
    );
    // The settings of what is verified are smaller, and U-Net is among it.
    let parts = ["[default: 8, 4 for unet]", "unet: U-Net(B, C)"];
    check_contains(&help("verify --help-all"), &parts);
    // The run's settings are the defaults there, and nothing is trained.
    let of_eval = help("eval --help");
    check_contains(&of_eval, &["--batch-size"]);
    check_lacks(
        &of_eval,
        &["[default: 8", "for vit", "--epochs", "--lr ", "--flip"],
    );
    check_lacks(&help("verify --help-all"), &["--flip", "--held-out"]);
    let commands = here.succeed("--help");
    for name in SUBCOMMANDS {
        let mut lines = commands.lines();
        let line = lines.find(|line| line.trim_start().starts_with(name));
        assert!(line.is_some_and(|line| line.len() < 80), "{commands}");
    }
}

#[test]
fn eval_needs_the_names_of_the_classes_and_says_what_is_configured() {
    let here = Here::new();
    here.run(&format!("{SMALL} --out a"));
    here.refuse_all(
        "",
        "
        train --config a/config.toml --model vit => a/config.toml has filters, which is for amoebanet-d and amoebanet-b, not for vit: remove it there
        eval a --width 8 => --width is not for eval, since it is the run's own: leave it out
        eval a --model vit => --model is not for eval, since it is the run's own
        eval a --from a => --from is not for eval
        eval a --lr 1 => --lr is not for eval, since it is for training: leave it out
        eval a --recompute never => --recompute is not for eval
        eval a --prompt x --batch-size 3 => --batch-size has no effect with --prompt
        ",
    );
    here.write("a/classes.txt", "");
    here.refuse("eval a", "classes.txt names no class");
    fs::remove_file(here.join("a/classes.txt")).unwrap();
    here.refuse("eval a", "No such file");
    let expected = "eval needs a/classes.txt for the names of the classes";
    here.refuse("eval a --predict x.png", expected);
}
