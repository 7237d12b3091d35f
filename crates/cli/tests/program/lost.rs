//! A device that is lost or hangs while a run trains on it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use safetensors::SafeTensors;
use serde_json::Value;
use stovepipe::train::checkpoint::Checkpoints;

use crate::{
    adapters::with_adapter,
    running::{Here, check_contains},
};

/// The GPU has the last layer alone: others have many kernels to compile.
const TRAIN: &str = "train --model vit --layers 2 --width 16 --heads 2 --batch-size 32 --micro-batches 2 \
                     --balance 3,1 --per-class 96 --save-every 2 --keep-last 1000 --epochs 2 --devices cpu,wgpu:0 \
                     --out run";

/// A Vulkan layer that fails when a file is there: see `trap/layer.c`.
fn trap(here: &Here) -> PathBuf {
    let folder = here.join("layers");
    fs::create_dir(&folder).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/program/trap/layer.c");
    let library = folder.join("trap.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(source);
    assert!(cc.status().unwrap().success());
    let manifest = serde_json::json!({
        "file_format_version": "1.1.2",
        "layer": {
            "name": "VK_LAYER_STOVEPIPE_trap", "type": "GLOBAL", "library_path": library,
            "api_version": "1.3.0", "implementation_version": "1", "description": "A device that is lost",
        },
    });
    fs::write(folder.join("trap.json"), manifest.to_string()).unwrap();
    folder
}

/// Trains until the device is lost, after so many checkpoints. Returns what the program said.
fn trained(here: &Here, more: &str, hangs: bool) -> String {
    let layers = trap(here);
    let sprung = here.join("sprung");
    let mut command = here.typed(&format!("{TRAIN} {more}"));
    command
        .env("VK_LAYER_PATH", layers)
        .env("VK_INSTANCE_LAYERS", "VK_LAYER_STOVEPIPE_trap")
        .env("STOVEPIPE_TRAP", &sprung);
    if hangs {
        command.env("STOVEPIPE_TRAP_HANGS", "1");
    }
    let mut child = (command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()).unwrap();
    let checkpoints = Checkpoints::of(&here.join("run.partial"));
    while checkpoints.list().unwrap_or_default().len() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before");
        thread::sleep(Duration::from_millis(20));
    }
    fs::write(sprung, "").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// The checkpoints up to this one have the optimizer's state of their step: the GPU went on with what it had while they
/// were written. AdamW's moments are means of gradients or of their squares, so none is larger than the largest norm.
fn check_states(here: &Here, newest: &str) {
    let steps = here.read("run/steps.jsonl");
    let norm = |line| serde_json::from_str::<Value>(line).unwrap()["gradient_norm"].as_f64();
    let norms: Vec<_> = steps.lines().filter_map(norm).collect();
    let mut moments = 0;
    for checkpoint in Checkpoints::of(&here.join("run")).list().unwrap() {
        if checkpoint.name() > newest {
            continue;
        }
        let until = usize::try_from(checkpoint.steps().unwrap()).unwrap();
        let most = norms[..until].iter().copied().fold(0.0, f64::max);
        // Some of what was there instead was the scale of a norm, which is near 1.
        if most >= 0.95 {
            continue;
        }
        for file in fs::read_dir(checkpoint.path()).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            if !name.starts_with("optimizer") || !name.ends_with("safetensors") {
                continue;
            }
            let bytes = fs::read(&path).unwrap();
            let tensors = SafeTensors::deserialize(&bytes).unwrap();
            for (name, tensor) in tensors.iter().filter(|(name, _)| name.contains("moment_")) {
                let numbers = tensor.data().chunks(4).map(|own| own.try_into().unwrap());
                let largest = numbers
                    .map(f32::from_le_bytes)
                    .fold(0.0, |a: f32, b| a.max(b.abs()));
                assert!(
                    f64::from(largest) <= most,
                    "{checkpoint:?}, {name}: {largest}"
                );
                moments += 1;
            }
        }
    }
    assert!(moments > 100, "{moments}");
}

/// The run has the bits of one that its user resumed on the CPU, from the same checkpoint.
fn check_goes_on(here: &Here, said: &str) {
    check_contains(
        said,
        &[
            "lost, or hanging: wgpu:0; going on with cpu from checkpoint epoch-",
            "resuming after ",
        ],
    );
    let resumed = said
        .lines()
        .find(|line| line.starts_with("resuming after "));
    let name = resumed.unwrap().rsplit(' ').next().unwrap();
    check_states(here, name);
    let from = here.join("run/checkpoints").join(name);
    let to = here.join("other.partial/checkpoints").join(name);
    fs::create_dir_all(&to).unwrap();
    for file in fs::read_dir(from).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), to.join(file.file_name())).unwrap();
    }
    fs::copy(
        here.join("run/config.toml"),
        here.join("other.partial/config.toml"),
    )
    .unwrap();
    here.run("train --out other --resume --devices cpu --stages 1");
    let model = |run: &str| fs::read(here.join(run).join("model.safetensors")).unwrap();
    assert!(model("run") == model("other"));
    let config = here.read("run/config.toml");
    check_contains(&config, &["devices = [\"cpu\"]", "stages = 1"]);
}

#[test]
fn a_run_goes_on_without_a_device_that_is_lost() {
    let Some(here) = with_adapter() else { return };
    let said = trained(&here, "--on-device-lost continue", false);
    check_goes_on(&here, &said);
}

/// Takes the time after which a step counts as hanging, which must not be too short for a busy machine. What was chosen
/// for both devices is chosen again for one.
#[test]
#[ignore = "takes four minutes"]
fn a_run_goes_on_without_a_device_that_hangs() {
    let Some(here) = with_adapter() else { return };
    let more = "--on-device-lost continue --stall-timeout 60 --memory auto";
    let said = trained(&here, more, true);
    assert_eq!(said.matches("chosen: schedule ").count(), 2, "{said}");
    check_goes_on(&here, &said);
}
