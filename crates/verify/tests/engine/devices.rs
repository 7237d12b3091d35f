//! Devices by name.

use std::sync::{Arc, Mutex};

use stovepipe_pipeline::device::DeviceError;

use crate::models::*;

fn check(name: &str, expected: &str, threads: Option<usize>) {
    let device: NamedDevice = name.parse().unwrap();
    assert_eq!((device.name.as_str(), device.threads), (expected, threads));
    assert_eq!(device.device, cpu());
}

fn check_error(name: &str, expected: &str) {
    assert_contains(name.parse::<NamedDevice>().unwrap_err(), expected);
}

#[test]
fn names_of_the_cpu() {
    check("cpu", "cpu", None);
    check(" cpu ", "cpu", None);
    check("CPU", "cpu", None);
    check("cpu:0", "cpu", None);
    check("cpu:threads=4", "cpu:threads=4", Some(4));
}

#[test]
fn names_of_nothing() {
    let of_cpus = ["cpu:1", "cpu:threads=", "cpu:threads=-1", "cpu:4"];
    let others = ["", "tpu:0", "wgpu:-1", "wgpu:x", "cuda:", "cuda:0:0"];
    for name in of_cpus.into_iter().chain(others) {
        let unknown =
            format!("unknown device `{name}`: use cpu, cpu:threads=4, wgpu, wgpu:0 or cuda:0");
        check_error(name, &unknown);
    }
    for name in ["cpu:threads=0", "cpu:threads=1025"] {
        let expected = format!("device `{name}` can have from 1 to 1024 threads");
        check_error(name, &expected);
    }
}

/// Tests are built with wgpu, and with CUDA only on request.
#[test]
fn a_kind_that_is_not_compiled_in_and_an_index_past_the_end() {
    match "cuda:0".parse::<NamedDevice>() {
        Err(DeviceError::NotCompiled { feature, .. }) => assert_eq!(feature, "cuda"),
        Err(error) => assert!(matches!(error, DeviceError::NoDriver { .. }), "{error}"),
        Ok(_) => {}
    }
    let is_wgpu = |device: &NamedDevice| device.name.starts_with("wgpu");
    let count = NamedDevice::offered()
        .iter()
        .filter(|device| is_wgpu(device))
        .count();
    match "wgpu:77".parse::<NamedDevice>().unwrap_err() {
        DeviceError::NotThere { count: found, .. } => assert_eq!(found, count),
        DeviceError::NoDriver { install, .. } => {
            assert_eq!(count, 0);
            assert!(install.contains("mesa-vulkan-drivers"), "{install}");
        }
        DeviceError::NotCompiled { feature, .. } => assert_eq!(feature, "wgpu"),
        error => panic!("{error}"),
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
        let threads = rayon::current_num_threads();
        self.noted.lock().unwrap().push(threads);
        self.linear.forward(x)
    }
}

#[test]
fn a_worker_has_the_threads_of_its_device_or_else_those_of_the_pipeline() {
    let noted: [Arc<Mutex<Vec<usize>>>; 3] = Default::default();
    let layer = |noted: &Arc<Mutex<_>>| Noting {
        linear: linear(4, 4),
        noted: noted.clone(),
    };
    let names = ["cpu:threads=3", "cpu", "cpu:threads=1"];
    let pipeline = Pipeline::builder(noted.iter().map(layer).collect())
        .devices(names.map(|name| name.parse::<NamedDevice>().unwrap()))
        .threads_per_stage(2)
        .build()
        .unwrap();
    let stages = pipeline.stages();
    let found: Vec<_> = stages.iter().map(|stage| &stage.device_name).collect();
    assert_eq!(found, names);
    let _ = train(&pipeline, vectors(4, 4), 4).unwrap();
    assert_eq!(noted.map(|noted| noted.lock().unwrap()[0]), [3, 2, 1]);
}

#[test]
fn a_device_without_threads_builds_nothing() {
    let device = NamedDevice {
        threads: Some(0),
        ..cpu().into()
    };
    let built = Pipeline::builder(dense(&[2, 2])).devices([device]).build();
    assert!(matches!(built, Err(BuildError::Threads(0))));
}
