//! Graphics adapters, where the program is built for them.
//!
//! Where there is none, these tests are skipped, or fail if `STOVEPIPE_GPU=wgpu`.

use std::env;

use serde_json::{Value, json};
use stovepipe::plan::Machine;

use crate::{
    devices::{check_alike, losses, losses_of, run_untuned},
    finetune::with_model,
    running::{Here, check_contains, check_refused, succeeds},
};

/// A folder, if there is an adapter, in hardware or software.
pub fn with_adapter() -> Option<Here> {
    let here = Here::new();
    let listed = here.json_of("devices --list");
    let mut devices = listed["devices"].as_array().unwrap().iter();
    let has = devices.any(|device| device["name"] == "wgpu:0" && device["error"].is_null());
    let why = listed["absent"].to_string();
    let is_required = env::var("STOVEPIPE_GPU").is_ok_and(|value| value == "wgpu");
    assert!(has || !is_required, "no graphics adapter: {why}");
    if !has {
        eprintln!("skipped: no graphics adapter: {why}");
    }
    has.then_some(here)
}

#[test]
fn an_adapter_is_listed_and_its_memory_is_checked() {
    let Some(here) = with_adapter() else { return };
    let text = here.succeed("devices --list");
    let adapter = text.lines().find(|line| line.starts_with("wgpu:0"));
    let adapter = adapter.unwrap();
    let is_software = adapter.contains("(software, on the CPU)");
    assert!(is_software || adapter.contains("unknown"), "{adapter}");

    let line = "train --out run --devices wgpu:7";
    here.refuse(line, "there is no device `wgpu:7`");
    let line =
        "train --out run --layers 3 --filters 4 --device-memory 1000,1000 --devices wgpu:0,cpu";
    here.refuse(line, "on cpu and wgpu:0, which has");
    assert!(here.is_empty());
}

#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_graphics_adapter_is_examined() {
    let Some(here) = with_adapter() else { return };
    let text = here.succeed("doctor --quick --models vit --out report.txt"); // the first GPU
    check_contains(
        &text,
        &[
            "libvulkan.so",
            "wgpu:0",
            "values are the same",
            "vit: with the CPU",
            "all is well",
        ],
    );
}

#[test]
fn a_graphics_adapter_is_measured() {
    let Some(here) = with_adapter() else { return };
    let found = here.json_of("devices --devices wgpu:0,cpu --out machine.toml");
    let adapter = &found["devices"][0];
    let product = &adapter["products"][0];
    assert_eq!(product["dtype"], "f32");
    for rate in [&product["rate"], &adapter["from_host"], &adapter["to_host"]] {
        assert!(rate.as_f64().unwrap() > 1e6, "{found}");
    }
    let links = found["links"].as_array().unwrap();
    let ends = |link: &Value| json!([link["from"], link["to"]]);
    let ends: Vec<_> = links.iter().map(ends).collect();
    assert_eq!(json!(ends), json!([["wgpu:0", "cpu"], ["cpu", "wgpu:0"]]));
    let machine = Machine::from_toml(&here.read("machine.toml")).unwrap();
    let slowest = links.iter().map(|link| link["bandwidth"].as_f64().unwrap());
    let slowest = slowest.fold(f64::INFINITY, f64::min);
    let link = machine.link(0, 1).unwrap();
    // As serde_json reads numbers, the last bit may be another.
    assert!((link.bandwidth - slowest).abs() <= 1e-12 * slowest);
}

/// Few different kernels: those for wgpu are compiled when they are first used.
const TRANSFORMER: &str = "--model vit --layers 2 --width 16 --heads 2 --feed-forward 32";

/// The seed alone says what the first parameters are, not the device. The adapter has the last layer alone: all are on it
/// in `states_on_the_host_give_the_loss_of_the_cpu`.
#[test]
fn a_graphics_adapter_and_a_cpu_have_the_loss_of_the_cpu() {
    let Some(here) = with_adapter() else { return };
    let on_cpu = losses(TRANSFORMER, "cpu", "cpu", &here);
    let last = format!("{TRANSFORMER} --balance 3,1");
    let mixed = losses(&last, "cpu,wgpu:0", "mixed", &here);
    check_alike(&mixed, &on_cpu);
    assert_eq!(here.summary("mixed")["host_time"], true);
    assert!(here.summary("cpu").get("host_time").is_none());
    assert!(here.read("mixed/timeline.svg").contains("Host time"));
}

/// Weights of half the size, an adapter, and conversations of unequal lengths.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_language_model_is_fine_tuned_beside_a_cpu() {
    if with_adapter().is_none() {
        return;
    }
    let here = with_model("llama");
    let losses = ["cpu", "wgpu:0,cpu"].map(|devices| {
        let out = devices.replace(':', "-");
        let line = format!(
            "train --from model --data chat --chat chat.jsonl --length 20 --lora-rank 2 --base f16 \
             --devices {devices} --batch-size 4 --micro-batches 2 --epochs 2 --optimizer sgd --lr 0.01 \
             --out {out}"
        );
        run_untuned(&line, &here);
        losses_of(&out, &here)
    });
    check_alike(&losses[1], &losses[0]);
}

/// States of an optimizer in the memory of the host.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn states_on_the_host_give_the_loss_of_the_cpu() {
    let Some(here) = with_adapter() else { return };
    let on_cpu = losses(TRANSFORMER, "cpu", "cpu", &here);
    let away = format!("{TRANSFORMER} --offload optimizer");
    check_alike(&losses(&away, "wgpu:0", "host", &here), &on_cpu);
}

/// A plan for different devices knows their relative speeds and the links between them.
#[test]
#[ignore = "many kernels to compile: takes minutes on a driver in software; run with --ignored"]
fn a_plan_is_measured_on_a_graphics_adapter_and_a_cpu() {
    let Some(here) = with_adapter() else { return };
    let line = "plan --measure --devices wgpu:0,cpu --batch-size 8 --write-machine machine.toml";
    let line = format!("{line} {TRANSFORMER}");
    run_untuned(&line, &here);
    let text = here.read("machine.toml");
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
    let here = Here::new();
    let without = |loaders: &[&str], line: &str| {
        let mut command = here.typed(line);
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
        check_contains(
            &text,
            &["\nwgpu: none was found. wgpu needs a graphics driver"],
        );
    }
}
