//! Devices by name.

use std::sync::{Arc, Mutex};

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::Tensor,
};
use stovepipe_pipeline::{
    BuildError, CrossEntropy, NamedDevice, Pipeline, device::DeviceError, layer,
};

use crate::models::*;

fn check(name: &str, expected: &str, threads: Option<usize>) {
    let device: NamedDevice = name.parse().unwrap();
    assert_eq!((device.name.as_str(), device.threads), (expected, threads));
    assert_eq!(device.device, cpu());
}

fn check_error(name: &str, expected: &str) {
    let error = name.parse::<NamedDevice>().unwrap_err().to_string();
    assert!(error.contains(expected), "{name}: {error}");
}

#[test]
fn names_of_the_cpu() {
    check("cpu", "cpu", None);
    check(" cpu ", "cpu", None);
    check("cpu:0", "cpu", None);
    check("cpu:threads=4", "cpu:threads=4", Some(4));
}

#[test]
fn names_of_nothing() {
    for name in [
        "",
        "tpu:0",
        "CPU",
        "cpu:1",
        "cpu:threads=",
        "cpu:threads=-1",
        "cpu:4",
        "wgpu:-1",
        "wgpu:x",
        "cuda:",
        "cuda:0:0",
    ] {
        let unknown =
            format!("unknown device `{name}`: use cpu, cpu:threads=4, wgpu, wgpu:0 or cuda:0");
        check_error(name, &unknown);
    }
    check_error(
        "cpu:threads=0",
        "device `cpu:threads=0` needs at least 1 thread",
    );
}

/// Tests are built with wgpu, and with CUDA only on request.
#[test]
fn a_kind_that_is_not_compiled_in_and_an_index_past_the_end() {
    match "cuda:0".parse::<NamedDevice>() {
        Err(DeviceError::NotCompiled { feature, .. }) => assert_eq!(feature, "cuda"),
        Err(error) => assert!(matches!(error, DeviceError::NoDriver { .. }), "{error}"),
        Ok(_) => {}
    }
    let offered = NamedDevice::offered();
    let count = offered
        .iter()
        .filter(|device| device.name.starts_with("wgpu"))
        .count();
    match "wgpu:77".parse::<NamedDevice>().unwrap_err() {
        DeviceError::NotThere { count: found, .. } => assert_eq!(found, count),
        DeviceError::NoDriver { install, .. } => {
            assert_eq!(count, 0);
            assert!(install.contains("mesa-vulkan-drivers"), "{install}");
        }
        error => assert!(
            matches!(
                error,
                DeviceError::NotCompiled {
                    feature: "wgpu",
                    ..
                }
            ),
            "{error}"
        ),
    }
}

#[test]
fn what_is_offered_has_the_names_it_is_asked_for_by() {
    let offered = NamedDevice::offered();
    assert_eq!(offered[0], NamedDevice::from(cpu()));
    for device in offered {
        assert_eq!(NamedDevice::from(device.device.clone()), device);
        assert_eq!(NamedDevice::from(device.device.clone().autodiff()), device);
        assert_eq!(device.name.parse(), Ok(device));
    }
}

/// A layer that records the number of threads for its kernels.
#[derive(Module, Debug)]
struct Noting {
    linear: Linear,
    #[module(skip)]
    noted: Arc<Mutex<Vec<usize>>>,
}

#[layer]
impl Noting {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.noted
            .lock()
            .unwrap()
            .push(rayon::current_num_threads());
        self.linear.forward(x)
    }
}

#[test]
fn a_worker_has_the_threads_of_its_device_or_else_those_of_the_pipeline() {
    let noted: Vec<_> = (0..3)
        .map(|_| Arc::<Mutex<Vec<usize>>>::default())
        .collect();
    let layer = |noted: &Arc<Mutex<Vec<usize>>>| Noting {
        linear: LinearConfig::new(4, 4).init(&cpu()),
        noted: noted.clone(),
    };
    let devices =
        ["cpu:threads=3", "cpu", "cpu:threads=1"].map(|name| name.parse::<NamedDevice>().unwrap());
    let pipeline = Pipeline::builder(noted.iter().map(layer).collect())
        .devices(devices)
        .threads_per_stage(2)
        .build()
        .unwrap();
    let names: Vec<_> = pipeline
        .stages()
        .into_iter()
        .map(|stage| stage.device_name)
        .collect();
    assert_eq!(names, ["cpu:threads=3", "cpu", "cpu:threads=1"]);
    let step = pipeline.train_step((vectors(4, 4), labels(4, 4)), &CrossEntropy::new());
    let _ = step.unwrap();
    let of_workers: Vec<_> = noted.iter().map(|noted| noted.lock().unwrap()[0]).collect();
    assert_eq!(of_workers, [3, 2, 1]);
}

#[test]
fn a_device_without_threads_builds_nothing() {
    let device = NamedDevice {
        threads: Some(0),
        ..cpu().into()
    };
    let built = Pipeline::builder(dense(&[2, 2])).devices([device]).build();
    assert!(matches!(built, Err(BuildError::NoThreads)));
}
