//! Devices: what there is, the machine file, and trainings on unlike ones.
//!
//! What needs a graphics adapter is skipped where there is none, and says so; with `STOVEPIPE_REQUIRE_WGPU=1` that
//! is a failure.

use std::{env, fs, path::Path};

use serde_json::Value;
use stovepipe::plan::Machine;
use tempfile::TempDir;

use crate::running::{check_refused, check_success, succeed, typed};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// Whether there is an adapter, in hardware or software.
fn has_adapter(directory: &Path) -> bool {
    let listed = json(&succeed("devices --list --json", directory));
    let mut devices = listed["devices"].as_array().unwrap().iter();
    let has = devices.any(|device| device["name"] == "wgpu:0" && device["error"].is_null());
    let why = listed["absent"].to_string();
    let is_required = env::var("STOVEPIPE_REQUIRE_WGPU").is_ok_and(|value| value == "1");
    assert!(has || !is_required, "no graphics adapter: {why}");
    if !has {
        eprintln!("skipped: no graphics adapter: {why}");
    }
    has
}

#[test]
fn what_there_is_is_listed_and_what_is_not_is_explained() {
    let here = TempDir::new().unwrap();
    let text = succeed("devices --list", here.path());
    let line = |name: &str| text.lines().find(|line| line.starts_with(name));
    let cpu = line("cpu ").unwrap();
    assert!(
        cpu.contains("1 thread") && cpu.contains("GiB free"),
        "{text}"
    );
    match cfg!(feature = "cuda") {
        true => assert!(text.contains("cuda:"), "{text}"),
        false => assert_eq!(
            line("cuda"),
            Some("cuda: not in this build; build with --features cuda"),
        ),
    }
    if has_adapter(here.path()) {
        let adapter = line("wgpu:0").unwrap();
        let is_software = adapter.contains("(software, on the CPU)");
        assert!(is_software || adapter.contains("unknown"), "{adapter}");
    }
}

#[test]
fn a_machine_is_measured_and_plans_and_trains() {
    let here = TempDir::new().unwrap();
    let line = "devices --devices cpu,cpu:threads=2 --out machine.toml --json";
    let found = json(&succeed(line, here.path()));
    let devices = found["devices"].as_array().unwrap();
    let rates = devices.iter().map(|device| {
        assert_eq!(device["products"][0]["dtype"], "f32");
        device["products"][0]["rate"].as_f64().unwrap()
    });
    let rates: Vec<_> = rates.collect();
    assert!(rates.iter().all(|&rate| rate > 1e7), "{rates:?}");

    let text = fs::read_to_string(here.path().join("machine.toml")).unwrap();
    let machine = Machine::from_toml(&text).unwrap();
    let names: Vec<_> = machine.devices.iter().map(|device| &*device.name).collect();
    assert_eq!(names, ["cpu", "cpu:threads=2"]);
    assert_eq!(machine.devices[0].speed, 1.0);
    let second = rates[1] / rates[0];
    assert!((machine.devices[1].speed - second).abs() <= 1e-9 * second);
    // They share one memory.
    let memory = machine.devices[0].memory.unwrap();
    assert!(memory > 1 << 20 && machine.devices[1].memory == Some(memory));
    assert!(
        machine.levels.is_empty(),
        "nothing lies between a device and itself"
    );

    let layer = "[[layer]]\nname = \"x\"\nforward = 0.01\nbackward = 0.02\nparameters = 100\noutput = 100\n";
    let profile = format!("samples = 8\ninput = 100\n{}", layer.repeat(9));
    fs::write(here.path().join("profile.toml"), profile).unwrap();
    let line = "plan --machine machine.toml --out plan.toml --json --schedules 1f1b";
    let plan = json(&succeed(line, here.path()));
    let of_machine = |stage: &Value| names.contains(&stage["device"].as_str().unwrap());
    assert!(plan["stages"].as_array().unwrap().iter().all(of_machine));
    succeed(
        "train --plan plan.toml --dry-run --layers 3 --filters 4",
        here.path(),
    );

    let line = "train --machine machine.toml --dry-run --layers 3 --filters 4";
    let text = succeed(line, here.path());
    assert!(text.contains("stage 0 cpu "), "{text}");
    assert!(text.contains("stage 1 cpu:threads=2"), "{text}");
}

#[test]
fn a_graphics_adapter_is_measured() {
    let here = TempDir::new().unwrap();
    if !has_adapter(here.path()) {
        return;
    }
    let line = "devices --devices wgpu:0,cpu --out machine.toml --json";
    let found = json(&succeed(line, here.path()));
    let adapter = &found["devices"][0];
    assert_eq!(adapter["products"][0]["dtype"], "f32");
    for rate in [
        &adapter["products"][0]["rate"],
        &adapter["from_host"],
        &adapter["to_host"],
    ] {
        assert!(rate.as_f64().unwrap() > 1e6, "{found}");
    }
    let ways = found["links"].as_array().unwrap();
    let ends = |way: &Value| (way["from"].clone(), way["to"].clone());
    let ends: Vec<_> = ways.iter().map(ends).collect();
    assert_eq!(
        ends,
        [
            ("wgpu:0".into(), "cpu".into()),
            ("cpu".into(), "wgpu:0".into())
        ]
    );
    let text = fs::read_to_string(here.path().join("machine.toml")).unwrap();
    let machine = Machine::from_toml(&text).unwrap();
    let slowest = ways.iter().map(|way| way["bandwidth"].as_f64().unwrap());
    let slowest = slowest.fold(f64::INFINITY, f64::min);
    let link = machine.link(0, 1).unwrap();
    // As serde_json reads numbers, the last bit may be another.
    assert!((link.bandwidth - slowest).abs() <= 1e-12 * slowest);
}

const AMOEBANET: &str = "--layers 3 --filters 4";
/// Few unlike kernels: those for wgpu are compiled as they are met.
const TRANSFORMER: &str = "--model vit --layers 2 --width 16 --heads 2 --feed-forward 32";

/// Runs the program. Which kernel is fastest is of no account here, and takes long to find where the adapter is in
/// software.
fn succeed_untuned(line: &str, directory: &Path) {
    let mut command = typed(line, directory);
    let output = command.env("CUBECL_AUTOTUNE_LEVEL", "minimal").output();
    check_success(line, &output.unwrap());
}

/// The training loss of each epoch. Nothing that makes small differences large: plain SGD, few steps.
fn losses(model: &str, devices: &str, out: &str, directory: &Path) -> Vec<f64> {
    let line = format!(
        "train {model} --devices {devices} --out {out} --per-class 4 --batch-size 20 --micro-batches 2 \
         --epochs 2 --optimizer sgd --lr 0.01"
    );
    succeed_untuned(&line, directory);
    let metrics = fs::read_to_string(directory.join(out).join("metrics.jsonl")).unwrap();
    let loss = |line: &str| json(line)["train_loss"].as_f64().unwrap();
    metrics.lines().map(loss).collect()
}

fn check_alike(mine: &[f64], other: &[f64]) {
    assert_eq!(mine.len(), 2);
    for (a, b) in mine.iter().zip(other) {
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{mine:?}, {other:?}");
    }
}

#[test]
fn unlike_devices_come_to_the_loss_of_like_ones() {
    let here = TempDir::new().unwrap();
    let on_cpu = losses(AMOEBANET, "cpu", "cpu", here.path());
    let threads = losses(AMOEBANET, "cpu,cpu:threads=2", "threads", here.path());
    check_alike(&threads, &on_cpu);
}

/// Beginning with the same parameters: those are drawn by the seed, whatever the device.
#[test]
fn a_graphics_adapter_and_a_cpu_come_to_the_loss_of_the_cpu() {
    let here = TempDir::new().unwrap();
    if has_adapter(here.path()) {
        let on_cpu = losses(TRANSFORMER, "cpu", "cpu", here.path());
        let mixed = losses(TRANSFORMER, "wgpu:0,cpu", "mixed", here.path());
        check_alike(&mixed, &on_cpu);
    }
}

/// A plan for unlike devices knows how fast they are beside each other, and what lies between them.
#[test]
fn a_plan_is_measured_on_a_graphics_adapter_and_a_cpu() {
    let here = TempDir::new().unwrap();
    if !has_adapter(here.path()) {
        return;
    }
    let line = "plan --measure --devices wgpu:0,cpu --batch-size 8 --write-machine machine.toml";
    let line = format!("{line} {TRANSFORMER}");
    succeed_untuned(&line, here.path());
    let text = fs::read_to_string(here.path().join("machine.toml")).unwrap();
    let machine = Machine::from_toml(&text).unwrap();
    assert_eq!(machine.devices[0].speed, 1.0);
    assert!(machine.devices[1].speed > 0.0 && machine.devices[1].speed != 1.0);
    let link = machine.link(0, 1).unwrap();
    assert!(link.bandwidth.is_finite() && link.latency > 0.0, "{text}");
}

#[test]
fn devices_that_are_not_to_be_had_are_errors() {
    let here = TempDir::new().unwrap();
    for (device, says) in [
        ("tpu:0", "unknown device `tpu:0`: use cpu"),
        ("cpu:1", "unknown device `cpu:1`"),
        ("cpu:threads=x", "unknown device `cpu:threads=x`"),
        (
            "cpu:threads=0",
            "device `cpu:threads=0` needs at least 1 thread",
        ),
        ("wgpu:-1", "unknown device `wgpu:-1`"),
    ] {
        for line in [
            format!("train --out run --devices {device}"),
            format!("devices --devices cpu,{device}"),
            format!("plan --measure --devices {device},cpu"),
        ] {
            check_refused(typed(&line, here.path()), says);
        }
    }
    if !cfg!(feature = "cuda") {
        let line = "train --out run --devices cpu,cuda:0";
        check_refused(typed(line, here.path()), "was built with `--features cuda`");
    }
    if has_adapter(here.path()) {
        let line = "train --out run --devices wgpu:7";
        check_refused(typed(line, here.path()), "there is no device `wgpu:7`");
    }
    assert_eq!(
        fs::read_dir(here.path()).unwrap().count(),
        0,
        "files were left"
    );
}

/// The loaders of drivers are told that there are none. A driver for OpenGL alone counts as none.
#[cfg(all(target_os = "linux", feature = "wgpu"))]
#[test]
fn without_a_driver_it_is_said_what_to_install() {
    const VULKAN: [&str; 2] = ["VK_ICD_FILENAMES", "VK_DRIVER_FILES"];
    const OPENGL: [&str; 1] = ["__EGL_VENDOR_LIBRARY_FILENAMES"];
    let here = TempDir::new().unwrap();
    let without = |loaders: &[&str], line: &str| {
        let mut command = typed(line, here.path());
        command.envs(loaders.iter().map(|loader| (loader, "/dev/null")));
        command
    };
    for loaders in [&VULKAN[..], &[VULKAN.as_slice(), &OPENGL].concat()] {
        for name in ["wgpu", "wgpu:0"] {
            let line = format!("train --out run --devices {name},cpu");
            let says = format!("there is no device `{name}`: none of its kind was found");
            check_refused(without(loaders, &line), &says);
            check_refused(without(loaders, &line), "mesa-vulkan-drivers");
        }
        let output = without(loaders, "devices --list").output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains("\nwgpu: none was found. wgpu needs a graphics driver"),
            "{text}"
        );
        assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"));
    }
}

#[test]
fn what_does_not_fit_the_devices_is_said_before_the_run() {
    let here = TempDir::new().unwrap();
    let line = "train --out run --layers 3 --filters 4 --device-memory 1000,1000 --devices";
    if has_adapter(here.path()) {
        let line = format!("{line} wgpu:0,cpu");
        check_refused(typed(&line, here.path()), "on cpu and wgpu:0, which has");
    }
    let line = format!("{line} cpu,cpu:threads=2");
    check_refused(typed(&line, here.path()), "on cpu, which has");
}
