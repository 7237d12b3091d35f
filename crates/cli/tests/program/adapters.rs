//! Graphics adapters, where the program is built for them.
//!
//! Where there is none, these tests do nothing and say so; with `STOVEPIPE_REQUIRE_WGPU=1` that is a failure.

use std::{env, fs, path::Path};

use serde_json::Value;
use stovepipe::plan::Machine;
use tempfile::TempDir;

use crate::{
    devices::{check_alike, losses, run_untuned},
    running::{check_refused, refuse, run, succeed, succeeds, typed},
};

/// Whether there is an adapter, in hardware or software.
fn has_adapter(directory: &Path) -> bool {
    let listed = run("devices --list --json", directory).json();
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
fn an_adapter_is_listed_and_its_memory_is_checked() {
    let here = TempDir::new().unwrap();
    if !has_adapter(here.path()) {
        return;
    }
    let text = succeed("devices --list", here.path());
    let adapter = text
        .lines()
        .find(|line| line.starts_with("wgpu:0"))
        .unwrap();
    let is_software = adapter.contains("(software, on the CPU)");
    assert!(is_software || adapter.contains("unknown"), "{adapter}");

    let line = "train --out run --devices wgpu:7";
    refuse(line, here.path(), "there is no device `wgpu:7`");
    let line =
        "train --out run --layers 3 --filters 4 --device-memory 1000,1000 --devices wgpu:0,cpu";
    refuse(line, here.path(), "on cpu and wgpu:0, which has");
    let left = fs::read_dir(here.path()).unwrap().count();
    assert_eq!(left, 0, "files were left");
}

#[test]
fn a_graphics_adapter_is_measured() {
    let here = TempDir::new().unwrap();
    if !has_adapter(here.path()) {
        return;
    }
    let line = "devices --devices wgpu:0,cpu --out machine.toml --json";
    let found = run(line, here.path()).json();
    let adapter = &found["devices"][0];
    assert_eq!(adapter["products"][0]["dtype"], "f32");
    for rate in [
        &adapter["products"][0]["rate"],
        &adapter["from_host"],
        &adapter["to_host"],
    ] {
        assert!(rate.as_f64().unwrap() > 1e6, "{found}");
    }
    let links = found["links"].as_array().unwrap();
    let ends = |link: &Value| (link["from"].clone(), link["to"].clone());
    let ends: Vec<_> = links.iter().map(ends).collect();
    assert_eq!(
        ends,
        [
            ("wgpu:0".into(), "cpu".into()),
            ("cpu".into(), "wgpu:0".into())
        ]
    );
    let text = fs::read_to_string(here.path().join("machine.toml")).unwrap();
    let machine = Machine::from_toml(&text).unwrap();
    let slowest = links.iter().map(|link| link["bandwidth"].as_f64().unwrap());
    let slowest = slowest.fold(f64::INFINITY, f64::min);
    let link = machine.link(0, 1).unwrap();
    // As serde_json reads numbers, the last bit may be another.
    assert!((link.bandwidth - slowest).abs() <= 1e-12 * slowest);
}

/// Few different kernels: those for wgpu are compiled when they are first used.
const TRANSFORMER: &str = "--model vit --layers 2 --width 16 --heads 2 --feed-forward 32";

/// The seed alone says what the first parameters are, not the device.
#[test]
fn a_graphics_adapter_and_a_cpu_have_the_loss_of_the_cpu() {
    let here = TempDir::new().unwrap();
    if !has_adapter(here.path()) {
        return;
    }
    let on_cpu = losses(TRANSFORMER, "cpu", "cpu", here.path());
    let mixed = losses(TRANSFORMER, "wgpu:0,cpu", "mixed", here.path());
    check_alike(&mixed, &on_cpu);
}

/// A plan for different devices knows their relative speeds and the links between them.
#[test]
fn a_plan_is_measured_on_a_graphics_adapter_and_a_cpu() {
    let here = TempDir::new().unwrap();
    if !has_adapter(here.path()) {
        return;
    }
    let line = "plan --measure --devices wgpu:0,cpu --batch-size 8 --write-machine machine.toml";
    let line = format!("{line} {TRANSFORMER}");
    run_untuned(&line, here.path());
    let text = fs::read_to_string(here.path().join("machine.toml")).unwrap();
    let machine = Machine::from_toml(&text).unwrap();
    assert_eq!(machine.devices[0].speed, 1.0);
    assert!(machine.devices[1].speed > 0.0 && machine.devices[1].speed != 1.0);
    let link = machine.link(0, 1).unwrap();
    assert!(link.bandwidth.is_finite() && link.latency > 0.0, "{text}");
}

/// The loaders find no drivers. A driver for OpenGL alone counts as none.
#[cfg(target_os = "linux")]
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
        let text = succeeds(without(loaders, "devices --list")).out;
        let expected = "\nwgpu: none was found. wgpu needs a graphics driver";
        assert!(text.contains(expected), "{text}");
    }
}
