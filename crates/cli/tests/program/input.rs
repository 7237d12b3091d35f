//! How people write values, flags without an effect, and errors that name their cause.

use std::process::Command;

use image::RgbImage;
use safetensors::{Dtype, SafeTensors, serialize, tensor::TensorView};

use crate::running::{
    Here, cases, check_contains, check_lacks, check_refused, refuse_and_leave_nothing,
};

const SMALL: &str = "train --filters 4 --epochs 1 --per-class 4 --batch-size 20";

#[test]
fn values_are_written_as_people_write_them() {
    let here = Here::new();
    let config = |flags: &str| {
        here.run(&format!("{SMALL} --out run {flags}"));
        std::fs::rename(here.join("run"), here.join("last")).unwrap();
        let config = here.read("last/config.toml");
        std::fs::remove_dir_all(here.join("last")).unwrap();
        config
    };
    let words = config("--devices CPU --schedule ZBH1 --recompute Except_Last --optimizer AdamW");
    let lines = [
        "schedule = \"zb-h1\"",
        "recompute = \"except-last\"",
        "optimizer = \"adamw\"",
    ];
    check_contains(&words, &lines);
    let numbers =
        config("--device-memory 1T --auxiliary --auxiliary-share 0.5 --seed 1k --lr 1 --lr 1e-3");
    let lines = [
        "[1000000000000]",
        "auxiliary = true",
        "seed = 1000",
        "lr = 0.001",
    ];
    check_contains(
        &numbers.replace("[\n    1000000000000,\n]", "[1000000000000]"),
        &lines,
    );
    let tables =
        "[training]\nseed = \"1k\"\nlr = \"1e-3\"\n[pipeline]\ndevice-memory = [\"80GiB\"]\n";
    here.write("own.toml", tables);
    let numbers = config("--config own.toml");
    check_contains(
        &numbers,
        &["seed = 1000\n", "lr = 0.001\n", "[85899345920]\n"],
    );
    let dry = here.succeed("train --dry-run --filters 4 --precision BFloat16 --auxiliary no");
    check_contains(&dry, &["stage 1"]);
}

#[test]
fn a_configuration_may_be_that_of_a_run() {
    let here = Here::new();
    here.run(&format!("{SMALL} --out a"));
    here.run("train --config a --out b");
    assert_eq!(here.model("a"), here.model("b"));
}

#[test]
fn what_is_measured_of_the_cpu_is_what_a_training_uses() {
    let here = Here::new();
    here.succeed("devices --out machine.toml");
    let cores = std::thread::available_parallelism().unwrap().get();
    let name = match cores {
        1 => "cpu".to_owned(),
        cores => format!("cpu:threads={cores}"),
    };
    check_contains(&here.read("machine.toml"), &[&format!("name = \"{name}\"")]);
    let text = here.succeed("train --machine machine.toml --dry-run --filters 4");
    check_contains(&text, &[&format!("stage 0 {name} ")]);
}

#[test]
fn a_flag_without_an_effect_is_an_error() {
    let here = Here::new();
    here.write("own.csv", "0F0,0B0\n");
    here.write("profile.toml", "");
    for (line, why) in cases(
        "
        train --momentum 0.5 => with --optimizer adam or adamw
        train --optimizer sgd --epsilon 1 => with --optimizer sgd
        train --decay-rate 0.5 => with --decay none or cosine
        train --decay none --decay-epochs 2 => with --decay none or cosine
        train --auxiliary-share 0.5 => on a model without auxiliary heads
        train --model vit --auxiliary-share 0.5 => on a model without auxiliary heads
        train --new-head => without --from
        train --data imagenet --magnitude 3 => without --rand-augment
        train --chunks 3 => without --schedule interleaved
        train --devices cpu:threads=2 --threads-per-stage 2 => on devices that are GPUs or name their threads
        plan --filters 8 => without --measure
        plan --data cifar10 => without --measure
        simulate --schedule gpipe --chunks 3 => without --schedule interleaved
        simulate --schedule own.csv --replicas 1 => on a schedule from a file
        simulate --schedule gpipe --bandwidth 1e9 => without --message
        simulate --schedule gpipe --message 1e9 => without --bandwidth
        simulate --schedule gpipe --input-memory 1 => without --recompute
        ",
    ) {
        here.refuse(line, &format!(" has no effect {why}: "));
    }
    here.refuse("plan --machine m.toml --devices cpu", "cannot be used with");
}

#[test]
fn messages_name_no_types_of_the_program() {
    let here = Here::new();
    for (content, expected) in cases(
        r#"
        [training]; epochs = "many" => epochs: found string "many", expected a whole number from 0
        [training]; epochs = 99999999999999999999 => found integer `99999999999999999999`, expected a whole number
        [training]; optimizer = 3 => optimizer: expected text in quotation marks
        [training]; optimizer = "sgdd" => did you mean `sgd`?
        [pipeline]; devices = "cpu" => devices: found string "cpu", expected a list
        [training]; lr = "small" => lr: found string "small", expected a number
        [model]; auxiliary = 1 => auxiliary: found integer `1`, expected true or false
        [training]; seed = 18446744073709551615 => line 2: the number is too large
        [training]; epochs = [1] => epochs: found a list, expected a whole number from 0
        [training]; epochs = {} => epochs: found a table, expected a whole number from 0
        [pipeline]; precision = "f64" => precision: found `f64`, expected one of `f32`, `bf16`, `f16`
        [pipeline]; epochs = 3 => line 2: unknown key `epochs` in [pipeline]: it belongs in [training]
        filters = 3 => line 1: unknown table `filters`: filters belongs in the table [model]
        "#,
    ) {
        here.write("c.toml", content.replace("; ", "\n"));
        here.refuse("train --config c.toml --out run", expected);
    }
    here.write("m.toml", "[[device]]\nname = \"cpu\"\nsped = 1.0\n");
    let error = here.refuse("train --machine m.toml --out run", "did you mean `speed`?");
    assert_eq!(error.lines().count(), 1, "{error}");
    here.write(
        "c.toml",
        "[training]\noptimizer = \"AdamW\"\n[pipeline]\nprecision = \"BF16\"\nrecompute = \"Never\"\n",
    );
    here.succeed("train --config c.toml --dry-run --filters 4");
    for flag in [
        "--stages x",
        "--lr x",
        "--device-memory 1x",
        "--seed 0.5",
        "--patch -3",
    ] {
        let error = here.refuse(&format!("train --model vit {flag}"), "invalid value");
        check_lacks(
            &error,
            &["invalid digit", "invalid float", "usize", "u64", "f64"],
        );
    }
}

/// A model's file with a tensor whose numbers are all this one.
fn with_number(file: &[u8], tensor: &str, number: f32) -> Vec<u8> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let changed: Vec<_> = (tensors.iter())
        .map(|(name, view)| {
            let bytes = match name == tensor {
                true => number.to_le_bytes().repeat(view.data().len() / 4),
                false => view.data().to_vec(),
            };
            (name.to_owned(), view.shape().to_vec(), bytes)
        })
        .collect();
    let views = changed.iter().map(|(name, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap();
        (name, view)
    });
    serialize(views, None).unwrap()
}

#[test]
fn weights_that_cannot_be_are_named_and_not_called_divergence() {
    let here = Here::new();
    here.run(&format!("{SMALL} --out run"));
    let good = here.model("run");
    let names = SafeTensors::deserialize(&good).unwrap();
    let names: Vec<_> = names.names().into_iter().map(str::to_owned).collect();
    let variance = names
        .iter()
        .find(|name| name.ends_with("running_var"))
        .unwrap();
    let bias = names.iter().find(|name| name.ends_with("fc.bias")).unwrap();
    let nan = "has numbers that are NaN or infinite";
    for (tensor, number, expected) in [
        (bias, f32::NAN, nan),
        (bias, f32::INFINITY, nan),
        (variance, -1.0, "has negative numbers, but is a variance"),
    ] {
        let bad = with_number(&good, tensor, number);
        here.write("bad.safetensors", &bad);
        let expected = format!("{tensor} {expected}");
        here.refuse(
            &format!("{SMALL} --out no --from bad.safetensors --new-head no"),
            &expected,
        );
        here.write("run/model.safetensors", &bad);
        here.refuse("eval run", &expected);
    }
    let kernel = names
        .iter()
        .find(|name| name.starts_with("layers.0.") && name.ends_with("weight"));
    here.write(
        "run/model.safetensors",
        with_number(&good, kernel.unwrap(), 3e38),
    );
    here.refuse("eval run", "the test loss is NaN");
    // A model of the same kind and another size is known by its names.
    let vit = "train --model vit --layers 1 --epochs 1 --per-class 4 --batch-size 20";
    here.run(&format!("{vit} --width 32 --out vit"));
    let unlabelled = with_number(&here.model("vit"), "", 0.0);
    here.write("vit.safetensors", unlabelled);
    let line = format!("{vit} --width 64 --from vit.safetensors --out no");
    here.refuse(&line, "vit.safetensors is of another model: layers.0.");
}

/// A number in a configuration file is at most 2⁶³ − 1: a run with more could not be read again.
#[test]
fn numbers_that_a_configuration_cannot_hold_are_refused() {
    for flag in ["seed", "save-every", "max-steps"] {
        let most =
            format!("{flag} is 18446744073709551615, but must be at most 9223372036854775807");
        let line = format!("{SMALL} --{flag} 18446744073709551615");
        refuse_and_leave_nothing(&line, &most);
    }
}

#[test]
fn files_that_are_no_text_are_named() {
    let here = Here::new();
    here.write("bad", b"\xff");
    for line in [
        "simulate --schedule bad",
        "train --config bad --dry-run",
        "plan --profile bad",
    ] {
        here.refuse(line, "bad is not a text file in UTF-8");
    }
    here.refuse("eval nowhere", "nowhere: No such file");
    #[cfg(target_os = "linux")]
    here.refuse(
        "simulate --schedule /dev/zero",
        "/dev/zero has more than 1.0 GiB",
    );
}

#[test]
fn a_large_number_is_shown_in_few_digits() {
    let here = Here::new();
    for flag in [
        "--drop-path 1e308",
        "--ema 1e308",
        "--data text --held-out 1e308",
    ] {
        let error = here.refuse(&format!("train {flag} --out run"), "1e308");
        assert!(error.len() < 200, "{error}");
    }
}

#[test]
fn lengths_that_overflow_are_errors() {
    let here = Here::new();
    let most = "--length 18446744073709551615";
    here.refuse(
        &format!("train --model transformer-lm {most} --out run"),
        "",
    );
    here.refuse(&format!("verify --model transformer-lm {most}"), "");
    here.write("short.txt", "abc");
    here.refuse(
        "verify --model transformer-lm --text short.txt",
        "has too few tokens, 3:",
    );
}

#[test]
#[cfg(unix)]
fn names_that_a_file_cannot_hold_are_refused() {
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

    let here = Here::new();
    for class in ["a", "b\nc"] {
        fs::create_dir_all(here.join("data").join(class)).unwrap();
    }
    here.refuse(
        "train --data imagenet --data-dir data --out run",
        "line break: rename it",
    );
    let mut command = here.typed("train --data imagenet --out run --data-dir");
    command.arg(OsStr::from_bytes(b"\xff"));
    check_refused(command, "is not valid UTF-8: rename it");
}

#[test]
fn names_cannot_control_a_terminal() {
    let here = Here::new();
    here.run(&format!("{SMALL} --out run"));
    let names = here
        .read("run/classes.txt")
        .replace("0\n", "\u{1b}[2Jzero\n");
    here.write("run/classes.txt", names);
    RgbImage::new(8, 8).save(here.join("a\u{9b}.png")).unwrap();
    let said = here.run("eval run --predict a\u{9b}.png");
    check_contains(&said.out, &["a\\u{9b}.png: "]);
    let good = here.model("run");
    let mut odd = SafeTensors::deserialize(&good).unwrap().tensors();
    odd[0].0 = "layers.0.\u{1b}[31m\n".to_owned();
    here.write("odd.safetensors", serialize(odd, None).unwrap());
    let error = here.refuse(
        &format!("{SMALL} --from odd.safetensors --out no"),
        "\\u{1b}[31m\\n",
    );
    check_lacks(&(said.out + &error), &["\u{1b}", "\u{9b}"]);
}

/// Where the program `script` gives it one.
#[test]
#[cfg(target_os = "linux")]
fn pictures_are_as_wide_as_the_terminal() {
    let program = env!("CARGO_BIN_EXE_stovepipe");
    for columns in [50, 130] {
        let line = "simulate --schedule gpipe --stages 2 --micro-batches 2";
        let line = format!("stty rows 40 cols {columns}; {program} {line}");
        let mut command = Command::new("script");
        command
            .args(["-qec", &line, "/dev/null"])
            .env("NO_COLOR", "1");
        let Ok(output) = command.env_remove("COLUMNS").output() else {
            return eprintln!("skipped: there is no `script`");
        };
        let text = String::from_utf8(output.stdout).unwrap();
        let row = text.lines().rfind(|line| line.contains('─')).unwrap();
        assert_eq!(row.trim_end().chars().count(), columns, "{text}");
    }
}
