//! Devices: what there is, the machine file, and trainings on different ones.

use serde_json::Value;
use stovepipe::plan::Machine;

use crate::running::{Here, cases, check_contains, check_lacks, succeeds};

#[test]
fn what_there_is_is_listed_and_what_is_not_is_explained() {
    let here = Here::new();
    let text = here.succeed("devices --list");
    let line = |name: &str| text.lines().find(|line| line.starts_with(name));
    let cpu = line("cpu").unwrap();
    check_contains(cpu, &[" of ", " core", "GiB free"]);
    let cores = std::thread::available_parallelism().unwrap().get();
    let found = here.json_of("devices --list");
    assert_eq!(found["devices"][0]["cores"], cores);
    if cfg!(feature = "cuda") {
        assert!(text.contains("cuda:"), "{text}");
    } else {
        // Between these, it says whether this machine has a driver for it.
        let line = line("cuda").unwrap();
        assert!(line.starts_with("cuda: not in this build"), "{line}");
        assert!(line.ends_with("; build with --features cuda"), "{line}");
    }
}

#[test]
fn the_cpu_is_examined_and_the_report_names_nobody() {
    let here = Here::new();
    let text = here.succeed("doctor --device cpu --quick --out report.txt");
    assert_eq!(text, here.read("report.txt"));
    let checks =
        "program machine device copies amoebanet-d:|alone amoebanet-d:|again vit:|two|stages";
    let checks = checks.split(' ').map(|check| check.replace('|', " "));
    check_contains(
        &text,
        &checks
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>(),
    );
    // The CPU has the same bits in any number of stages.
    assert_eq!(
        text.matches("gradients 0.0e0, losses 0.0e0").count(),
        6,
        "{text}"
    );
    assert!(text.ends_with("\nall is well\n"), "{text}");
    check_lacks(
        &text,
        &[
            "FAILED",
            "left out",
            "speed",
            &here.path().display().to_string(),
        ],
    );
    here.refuse("doctor --device gpu", "gpu");
    here.refuse("doctor --device 1/cpu", "name a device of this process");
}

#[test]
fn a_machine_is_measured_and_plans_and_trains() {
    let here = Here::new();
    let found = here.json_of("devices --devices cpu,cpu:threads=2 --out machine.toml");
    let devices = found["devices"].as_array().unwrap();
    let rates = devices.iter().map(|device| {
        assert_eq!(device["products"][0]["dtype"], "f32");
        device["products"][0]["rate"].as_f64().unwrap()
    });
    let rates: Vec<_> = rates.collect();
    assert!(rates.iter().all(|&rate| rate > 1e7), "{rates:?}");

    let machine = Machine::from_toml(&here.read("machine.toml")).unwrap();
    let names: Vec<_> = machine.devices.iter().map(|device| &*device.name).collect();
    assert_eq!(names, ["cpu", "cpu:threads=2"]);
    assert_eq!(machine.devices[0].speed, 1.0);
    let second = rates[1] / rates[0];
    assert!((machine.devices[1].speed - second).abs() <= 1e-9 * second);
    // They share one memory.
    let memory = machine.devices[0].memory.unwrap();
    assert!(memory > 1 << 20 && machine.devices[1].memory == Some(memory));
    // Nothing lies between a device and itself.
    assert!(machine.levels.is_empty());

    let layer = "[[layer]]\nname = \"x\"\nforward = 0.01\nbackward = 0.02\nparameters = 100\noutput = 100\n";
    let profile = format!("samples = 8\ninput = 100\n{}", layer.repeat(9));
    here.write("profile.toml", profile);
    let plan = here.json_of("plan --machine machine.toml --out plan.toml --schedules 1f1b");
    let of_machine = |stage: &Value| names.contains(&stage["device"].as_str().unwrap());
    assert!(plan["stages"].as_array().unwrap().iter().all(of_machine));
    here.succeed("train --plan plan.toml --dry-run --layers 3 --filters 4");

    let text = here.succeed("train --machine machine.toml --dry-run --layers 3 --filters 4");
    check_contains(&text, &["stage 0 cpu ", "stage 1 cpu:threads=2"]);
}

const AMOEBANET: &str = "--layers 3 --filters 4";

/// Runs the program. Which kernel is fastest does not matter here, and takes long to find where the adapter is in
/// software.
pub fn run_untuned(line: &str, here: &Here) {
    let mut command = here.typed(line);
    command.env("CUBECL_AUTOTUNE_LEVEL", "minimal");
    succeeds(command);
}

/// The training loss of each epoch. Nothing that makes small differences large: plain SGD, few steps.
pub fn losses(model: &str, devices: &str, out: &str, here: &Here) -> Vec<f64> {
    let line = format!(
        "train {model} --devices {devices} --out {out} --per-class 4 --batch-size 20 --micro-batches 2 \
         --epochs 2 --optimizer sgd --lr 0.01"
    );
    run_untuned(&line, here);
    losses_of(out, here)
}

/// The training loss of each epoch of a run.
pub fn losses_of(out: &str, here: &Here) -> Vec<f64> {
    let metrics = here.read(&format!("{out}/metrics.jsonl"));
    let loss = |line: &str| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["train_loss"].as_f64().unwrap()
    };
    metrics.lines().map(loss).collect()
}

pub fn check_alike(mine: &[f64], other: &[f64]) {
    assert_eq!(mine.len(), 2);
    for (a, b) in mine.iter().zip(other) {
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{mine:?}, {other:?}");
    }
}

#[test]
fn different_devices_have_the_loss_of_equal_ones() {
    let here = Here::new();
    let on_cpu = losses(AMOEBANET, "cpu", "cpu", &here);
    let threads = losses(AMOEBANET, "cpu,cpu:threads=2", "threads", &here);
    check_alike(&threads, &on_cpu);
}

#[test]
fn devices_that_are_not_available_are_errors() {
    let here = Here::new();
    for (device, says) in cases(
        "
        tpu:0 => unknown device `tpu:0`: use cpu
        cpu:1 => unknown device `cpu:1`
        cpu:threads=x => unknown device `cpu:threads=x`
        cpu:threads=0 => device `cpu:threads=0` can have from 1 to 1024 threads
        cpu:threads=1025 => device `cpu:threads=1025` can have from 1 to 1024 threads
        wgpu:-1 => unknown device `wgpu:-1`
        ",
    ) {
        for line in [
            format!("train --out run --devices {device}"),
            format!("devices --devices cpu,{device}"),
            format!("plan --measure --devices {device},cpu"),
        ] {
            here.refuse(&line, says);
        }
    }
    if !cfg!(feature = "cuda") {
        let line = "train --out run --devices cpu,cuda:0";
        here.refuse(line, "was built with `--features cuda`");
    }
    assert!(here.is_empty());
}

#[test]
fn what_does_not_fit_the_devices_is_said_before_the_run() {
    let here = Here::new();
    let line = "train --out run --layers 3 --filters 4 --device-memory 1000,1000 --devices cpu,cpu:threads=2";
    here.refuse(line, "on cpu, which has");
}
