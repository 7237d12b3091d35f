//! Facts about a device, and how fast it multiplies and copies.

use std::time::{Duration, Instant};

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use crossbeam_channel::bounded;
use serde::{Deserialize, Serialize};

use crate::{
    api::error::{BoxedError, BuildError},
    engine::{panic::caught, worker},
    measure::device::{MOST_THREADS, NamedDevice, install_hint},
};

/// What a device reports about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// The name of the hardware. `None` for the CPU.
    pub hardware: Option<String>,
    /// Whether it is a graphics adapter in software, which runs on the CPU.
    pub software: bool,
    /// Its memory in bytes, if its driver reports it. wgpu does not, and neither does the CPU.
    pub memory: Option<u64>,
    /// The largest tensor in bytes, if there is a limit.
    pub largest_tensor: Option<u64>,
    /// Whether Burn may round the factors of products in `f32` to 11 significant bits (TF32), which NVIDIA's
    /// tensor cores multiply.
    #[serde(default)]
    pub rounds_products: bool,
}

/// How fast a device is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceRates {
    /// Matrix products in `f32`, then in the half-precision types that the device supports.
    pub products: Vec<ProductRate>,
    /// Bytes per second from the host's memory. `None` for the CPU, which copies nothing.
    pub to_device: Option<f64>,
    /// Bytes per second to the host's memory. `None` for the CPU.
    pub to_host: Option<f64>,
}

/// How fast a device multiplies two square matrices.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProductRate {
    /// `f32`, `bf16` or `f16`.
    pub dtype: String,
    /// Rows and columns.
    pub size: usize,
    /// Floating-point operations per second: a product of size n has 2n³.
    pub rate: f64,
}

/// Rows and columns of matrices: the largest size that is fast enough counts.
const SIZES: [usize; 3] = [256, 1024, 4096];
const TYPES: [(&str, FloatDType); 3] = [
    ("f32", FloatDType::F32),
    ("bf16", FloatDType::BF16),
    ("f16", FloatDType::F16),
];
/// The number of runs needed to find the fastest kernel, about.
const TUNING: f64 = 20.0;
/// Sizes and types that would take longer are skipped.
const MAX_TUNING_TIME: Duration = Duration::from_secs(3);
/// The number of timed runs: as many as fit into [`TIMING`].
const RUNS: std::ops::RangeInclusive<usize> = 3..=15;
const TIMING: Duration = Duration::from_millis(500);
/// The number of floats in a copy.
const COPIED: usize = 8 << 20;
/// How long a device may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// What a device reports about itself. Opens and uses the device; see [`measure_rates`].
///
/// # Errors
///
/// If it cannot be used, or does not answer.
pub fn device_facts(device: &NamedDevice) -> Result<DeviceFacts, BuildError> {
    ask(device, |device| use_once(device).map(|()| facts(device)))
}

/// What a device's bits depend on: devices of one kind give the same.
pub(crate) fn kind(device: &NamedDevice) -> String {
    if device.is_cpu() {
        return format!("{} {}", device.kind(), instructions());
    }
    // A device that cannot be used is an error elsewhere.
    let hardware = device_facts(device).ok().and_then(|facts| facts.hardware);
    format!("{} {}", device.kind(), hardware.unwrap_or_default())
}

/// The vectors of the CPU, which kernels choose by.
fn instructions() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        return "avx512";
    } else if is_x86_feature_detected!("avx2") {
        return "avx2";
    }
    std::env::consts::ARCH
}

/// Measures how fast a device multiplies and copies, with its CPU threads (or one). Returns medians, after
/// kernels have been compiled and tuned. Takes a few seconds.
///
/// ```
/// use stovepipe_pipeline::{NamedDevice, device::{device_facts, measure_rates}};
///
/// let cpu: NamedDevice = "cpu".parse()?;
/// assert!(!device_facts(&cpu)?.software);
/// let rates = measure_rates(&cpu)?;
/// assert_eq!(rates.products[0].dtype, "f32");
/// assert!(rates.products[0].rate > 1e6);
/// assert_eq!(rates.to_host, None); // nothing is copied
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If it cannot be used, or does not answer.
pub fn measure_rates(device: &NamedDevice) -> Result<DeviceRates, BuildError> {
    ask(device, rates)
}

/// Checks that a device computes and answers. In Burn, a missing device panics.
pub(crate) fn use_device(device: &NamedDevice) -> Result<(), BuildError> {
    ask(device, use_once)
}

/// Computes an operation that CUDA loads a library for, which may not be installed.
fn use_once(device: &Device) -> Result<(), BoxedError> {
    let answer = Tensor::<1>::zeros([1], device).erf().try_into_data()?;
    touch(&answer);
    Ok(())
}

/// Asks a device something on a worker, which is given up if there is no answer.
fn ask<T: Send + 'static>(
    device: &NamedDevice,
    question: impl FnOnce(&Device) -> Result<T, BoxedError> + Send + 'static,
) -> Result<T, BuildError> {
    let unusable = |source: BoxedError| BuildError::Unusable {
        device: device.name.clone(),
        source: with_advice(&device.name, source),
    };
    let worker = worker::spawn_alone("device", device.threads.unwrap_or(1))?;
    let (sender, answer) = bounded(1);
    let asked = device.device.clone().inner();
    worker.run(move || {
        let answer = caught(|| question(&asked)).map_err(BoxedError::from);
        let _ = sender.send(answer.flatten());
    });
    worker.settle(Some(ANSWER_TIMEOUT));
    match answer.try_recv() {
        Ok(answer) => answer.map_err(unusable),
        Err(_) if worker.is_stuck() => {
            let limit = ANSWER_TIMEOUT.as_secs();
            Err(unusable(format!("no answer for {limit} s").into()))
        }
        Err(_) => Err(BuildError::Unmeasured),
    }
}

#[cfg(any(feature = "cuda", feature = "rocm", feature = "wgpu"))]
fn facts(device: &Device) -> DeviceFacts {
    use burn::backend::DispatchDevice;
    use cubecl_ir::{ElemType, FloatKind};
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            let properties = client.properties();
            DeviceFacts {
                hardware: Some(properties.identity.name.clone()),
                // Software adapters have no physical device.
                software: properties.identity.physical.is_none(),
                memory: properties.memory.max_memory(),
                largest_tensor: Some(properties.memory.max_page_size),
                rounds_products: properties.supports_type(ElemType::Float(FloatKind::TF32)),
            }
        }
        _ => DeviceFacts::default(),
    }
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "wgpu")))]
fn facts(_device: &Device) -> DeviceFacts {
    DeviceFacts::default()
}

fn rates(device: &Device) -> Result<DeviceRates, BoxedError> {
    let is_host = device == &Device::flex();
    let mut rates = DeviceRates::default();
    if !is_host {
        let (to_device, to_host) = copies(device)?;
        (rates.to_device, rates.to_host) = (Some(to_device), Some(to_host));
    }
    let began = Instant::now();
    for dtype in TYPES {
        let is_first = rates.products.is_empty();
        // The CPU has no units for half precision.
        let has_it = !is_host && device.supports_dtype(dtype.1);
        if is_first || (has_it && began.elapsed() < MAX_TUNING_TIME) {
            rates.products.push(product(device, dtype)?);
        }
    }
    Ok(rates)
}

fn product(device: &Device, dtype: (&'static str, FloatDType)) -> Result<ProductRate, BoxedError> {
    let mut size = SIZES[0];
    loop {
        let (left, right) = (matrix(size, dtype.1, device), matrix(size, dtype.1, device));
        let run = || timed(device, || left.clone().matmul(right.clone()));
        run()?; // compiles and tunes kernels
        let seconds = median_of_runs(run)?;
        let larger = SIZES.into_iter().find(|&larger| larger > size);
        let takes = |larger: usize| seconds * (larger as f64 / size as f64).powi(3);
        match larger.filter(|&larger| takes(larger) * TUNING < MAX_TUNING_TIME.as_secs_f64()) {
            Some(larger) => size = larger,
            None => {
                let (dtype, rate) = (dtype.0, 2.0 * (size as f64).powi(3) / seconds);
                let dtype = dtype.to_owned();
                return Ok(ProductRate { dtype, size, rate });
            }
        }
    }
}

/// Different numbers: a GPU multiplies zeros faster, because they need less power.
fn matrix(size: usize, dtype: FloatDType, device: &Device) -> Tensor<2> {
    let values = numbers(size * size);
    Tensor::<2>::from_data(TensorData::new(values, [size, size]), device).cast(dtype)
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (1.3 * i as f32).sin()).collect()
}

/// Bytes per second to the device, and back.
fn copies(device: &Device) -> Result<(f64, f64), BoxedError> {
    let data = TensorData::new(numbers(COPIED), [COPIED]);
    let copy_in = |data: TensorData| timed(device, || Tensor::<1>::from_data(data, device));
    let tensor = Tensor::<1>::from_data(data.clone(), device);
    let copy_out = || timed(device, || touch(&tensor.clone().into_data()));
    copy_in(data.clone())?; // allocates buffers
    copy_out()?;
    let bytes = (size_of::<f32>() * COPIED) as f64;
    let to_device = bytes / median_of_runs(|| copy_in(data.clone()))?;
    Ok((to_device, bytes / median_of_runs(copy_out)?))
}

/// Reads every page: Burn may return memory that is copied when it is first read.
pub(crate) fn touch(data: &TensorData) {
    let sum = |sum: u8, byte: &u8| sum.wrapping_add(*byte);
    let pages = data.as_bytes().iter().step_by(4096);
    std::hint::black_box(pages.fold(0, sum));
}

/// How long the device takes for some work.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn timed<R>(device: &Device, work: impl FnOnce() -> R) -> Result<Duration, BoxedError> {
    device.sync()?;
    let began = Instant::now();
    let _result = work();
    device.sync()?;
    Ok(began.elapsed())
}

/// The median of some runs, in seconds.
fn median_of_runs(run: impl Fn() -> Result<Duration, BoxedError>) -> Result<f64, BoxedError> {
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < *RUNS.start() || (times.len() < *RUNS.end() && began.elapsed() < TIMING) {
        times.push(run()?);
    }
    Ok(median(times).max(f64::MIN_POSITIVE))
}

/// In seconds.
pub(crate) fn median(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 2].as_secs_f64()
}

/// Adds to an error what its kind of device needs.
fn with_advice(name: &str, cause: BoxedError) -> BoxedError {
    match install_hint(name) {
        Some(install) => format!("{cause}. {install}").into(),
        None => cause,
    }
}

/// An error unless a worker can have so many threads.
pub(crate) fn check_threads(threads: usize) -> Result<(), BuildError> {
    let is_sound = (1..=MOST_THREADS).contains(&threads);
    is_sound.then_some(()).ok_or(BuildError::Threads(threads))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cpu() -> NamedDevice {
        Device::flex().into()
    }

    #[test]
    fn a_device_that_panics_or_fails_is_an_error_that_names_it() {
        let panicking: Result<(), _> = ask(&cpu(), |_| panic!("no driver"));
        let error = panicking.unwrap_err().to_string();
        let is_named = error.contains("cpu") && error.contains("no driver");
        assert!(is_named, "{error}");
        let refusing: Result<(), _> = ask(&cpu(), |_| Err("busy".into()));
        assert!(refusing.unwrap_err().to_string().contains("busy"));
    }

    #[test]
    fn an_error_says_what_a_kind_of_device_needs() {
        let advice = |name, cause: &str| with_advice(name, cause.into()).to_string();
        assert_eq!(advice("cpu", "busy"), "busy");
        let of_cuda = advice("cuda:0", "no libdevice");
        assert!(of_cuda.starts_with("no libdevice. CUDA needs"), "{of_cuda}");
    }

    #[test]
    fn a_device_is_used_with_its_own_threads() {
        let device: NamedDevice = "cpu:threads=3".parse().unwrap();
        let threads = ask(&device, |_| Ok(rayon::current_num_threads()));
        assert_eq!(threads.unwrap(), 3);
    }
}
