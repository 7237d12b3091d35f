//! What a device is, and how fast it multiplies and copies.

use std::time::{Duration, Instant};

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use crossbeam_channel::bounded;
use serde::Serialize;

use crate::{
    api::error::BuildError,
    engine::{guard, worker},
    measure::device::{NamedDevice, with_advice},
};

/// What a device says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeviceFacts {
    /// What its maker calls it. None for the CPU.
    pub hardware: Option<String>,
    /// Whether it is a graphics adapter in software: the CPU by another name.
    pub software: bool,
    /// Bytes that it holds in all, if its driver says so. wgpu knows of none, and the CPU has what is free.
    pub memory: Option<u64>,
    /// The largest tensor that it holds, in bytes, if there is a limit.
    pub largest_tensor: Option<u64>,
}

/// What a device does in a second.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceRates {
    /// Matrix products, of `f32` and of those half-precision types that the device computes with, in that order.
    pub products: Vec<ProductRate>,
    /// Bytes a second from the host's memory. None for the CPU, where nothing is copied.
    pub to_device: Option<f64>,
    /// Bytes a second to the host's memory. None for the CPU.
    pub to_host: Option<f64>,
}

/// How fast a device multiplies two square matrices.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProductRate {
    /// `f32`, `bf16` or `f16`.
    pub dtype: &'static str,
    /// Rows and columns.
    pub size: usize,
    /// Floating-point operations a second: a product of size n has 2n³.
    pub rate: f64,
}

/// Rows and columns of matrices: the largest is taken that does not take too long.
const SIZES: [usize; 3] = [256, 1024, 4096];
const TYPES: [(&str, FloatDType); 3] = [
    ("f32", FloatDType::F32),
    ("bf16", FloatDType::BF16),
    ("f16", FloatDType::F16),
];
/// How many runs it takes to find the fastest kernel, about.
const TUNING: f64 = 20.0;
/// A size is left out if that would take longer, as are further types.
const PATIENCE: Duration = Duration::from_secs(3);
/// Runs that are timed, at least and at most; between these, for as long as [`ENOUGH`].
const RUNS: std::ops::RangeInclusive<usize> = 3..=15;
const ENOUGH: Duration = Duration::from_millis(500);
/// Numbers that are copied.
const COPIED: usize = 8 << 20;
/// A device that takes longer does not answer.
pub(crate) const SILENCE: Duration = Duration::from_secs(120);

/// What a device says of itself. It is opened and used for that.
///
/// ```
/// use stovepipe_pipeline::{NamedDevice, device::device_facts};
///
/// let cpu: NamedDevice = "cpu".parse()?;
/// assert!(!device_facts(&cpu)?.software);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If it cannot be used, or does not answer.
pub fn device_facts(device: &NamedDevice) -> Result<DeviceFacts, BuildError> {
    ask(device, |device| use_once(device).map(|()| facts(device)))
}

/// How fast a device multiplies and copies, with the CPU threads that it has (or one): medians, after its
/// kernels have been compiled and chosen. Takes a few seconds.
///
/// ```
/// use stovepipe_pipeline::{NamedDevice, device::measure_rates};
///
/// let rates = measure_rates(&"cpu".parse::<NamedDevice>()?)?;
/// assert_eq!(rates.products[0].dtype, "f32");
/// assert!(rates.products[0].rate > 1e6);
/// assert_eq!(rates.to_host, None); // it is the host
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If it cannot be used, or does not answer.
pub fn measure_rates(device: &NamedDevice) -> Result<DeviceRates, BuildError> {
    ask(device, rates)
}

/// Makes sure that a device computes and answers. One that is not there panics in Burn, and should be an error here.
pub(crate) fn call(device: &NamedDevice) -> Result<(), BuildError> {
    ask(device, use_once)
}

/// Computes what CUDA has in a library of its own, which may not be installed.
fn use_once(device: &Device) -> Result<(), String> {
    let computed = Tensor::<1>::zeros([1], device).erf().try_into_data();
    computed.map(drop).map_err(|error| error.to_string())
}

/// Asks a device something on a worker of its own, which is left behind if there is no answer.
fn ask<T: Send + 'static>(
    device: &NamedDevice,
    question: impl FnOnce(&Device) -> Result<T, String> + Send + 'static,
) -> Result<T, BuildError> {
    let refused = |cause: String| BuildError::Unusable {
        device: device.name.clone(),
        cause: with_advice(&device.name, &cause),
    };
    let worker = worker::spawn("device", device.threads.unwrap_or(1))
        .map_err(|source| BuildError::Worker { worker: 0, source })?;
    let (sender, answer) = bounded(1);
    let asked = device.device.clone().inner();
    worker.run(move || {
        let answer = guard::guarded("device", || question(&asked));
        let _ = sender.send(answer.map_err(|error| error.to_string()).flatten());
    });
    worker.settle(Some(SILENCE));
    match answer.try_recv() {
        Ok(answer) => answer.map_err(refused),
        Err(_) if worker.is_stuck() => {
            Err(refused(format!("no answer for {} s", SILENCE.as_secs())))
        }
        Err(_) => Err(BuildError::Unmeasured),
    }
}

#[cfg(any(feature = "cuda", feature = "rocm", feature = "wgpu"))]
fn facts(device: &Device) -> DeviceFacts {
    use burn::backend::DispatchDevice;
    match device.as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            let properties = client.properties();
            DeviceFacts {
                hardware: Some(properties.identity.name.clone()),
                // What is no card is a CPU.
                software: properties.identity.physical.is_none(),
                memory: properties.memory.max_memory(),
                largest_tensor: Some(properties.memory.max_page_size),
            }
        }
        _ => DeviceFacts::default(),
    }
}

#[cfg(not(any(feature = "cuda", feature = "rocm", feature = "wgpu")))]
fn facts(_device: &Device) -> DeviceFacts {
    DeviceFacts::default()
}

fn rates(device: &Device) -> Result<DeviceRates, String> {
    let is_host = device == &Device::flex();
    let mut rates = DeviceRates::default();
    if !is_host {
        let (to_device, to_host) = copies(device)?;
        rates.to_device = Some(to_device);
        rates.to_host = Some(to_host);
    }
    let began = Instant::now();
    for dtype in TYPES {
        let is_first = rates.products.is_empty();
        // The CPU has no units for half precision.
        let has_it = !is_host && device.supports_dtype(dtype.1);
        if is_first || (has_it && began.elapsed() < PATIENCE) {
            rates.products.push(product(device, dtype)?);
        }
    }
    Ok(rates)
}

fn product(device: &Device, dtype: (&'static str, FloatDType)) -> Result<ProductRate, String> {
    let mut size = SIZES[0];
    loop {
        let (left, right) = (matrix(size, dtype.1, device), matrix(size, dtype.1, device));
        let run = || timed(device, || left.clone().matmul(right.clone()));
        run()?; // kernels are compiled and chosen
        let seconds = median(run)?;
        let larger = SIZES.into_iter().find(|&larger| larger > size);
        let takes = |larger: usize| seconds * (larger as f64 / size as f64).powi(3);
        match larger.filter(|&larger| takes(larger) * TUNING < PATIENCE.as_secs_f64()) {
            Some(larger) => size = larger,
            None => {
                return Ok(ProductRate {
                    dtype: dtype.0,
                    size,
                    rate: 2.0 * (size as f64).powi(3) / seconds,
                });
            }
        }
    }
}

/// Numbers that are all different: a GPU multiplies zeros faster, since it needs less power for them.
fn matrix(size: usize, dtype: FloatDType, device: &Device) -> Tensor<2> {
    let values = numbers(size * size);
    Tensor::<2>::from_data(TensorData::new(values, [size, size]), device).cast(dtype)
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| (1.3 * i as f32).sin()).collect()
}

/// Bytes a second to the device, and back.
fn copies(device: &Device) -> Result<(f64, f64), String> {
    let data = TensorData::new(numbers(COPIED), [COPIED]);
    let copy_in = |data: TensorData| timed(device, || Tensor::<1>::from_data(data, device));
    let tensor = Tensor::<1>::from_data(data.clone(), device);
    let copy_out = || timed(device, || touch(&tensor.clone().into_data()));
    copy_in(data.clone())?; // buffers are made
    copy_out()?;
    let bytes = (size_of::<f32>() * COPIED) as f64;
    let to_device = bytes / median(|| copy_in(data.clone()))?;
    Ok((to_device, bytes / median(copy_out)?))
}

/// Looks at every page: Burn may hand out memory of the device, to be copied when it is looked at.
pub(crate) fn touch(data: &TensorData) {
    let sum = |sum: u8, byte: &u8| sum.wrapping_add(*byte);
    let pages = data.as_bytes().iter().step_by(4096);
    std::hint::black_box(pages.fold(0, sum));
}

/// How long the device takes for something.
fn timed<R>(device: &Device, something: impl FnOnce() -> R) -> Result<Duration, String> {
    let finish = || device.sync().map_err(|error| error.to_string());
    finish()?;
    let began = Instant::now();
    let _made = something();
    finish()?;
    Ok(began.elapsed())
}

/// The median of some runs, in seconds.
fn median(run: impl Fn() -> Result<Duration, String>) -> Result<f64, String> {
    let mut times = Vec::new();
    let began = Instant::now();
    while times.len() < *RUNS.start() || (times.len() < *RUNS.end() && began.elapsed() < ENOUGH) {
        times.push(run()?);
    }
    times.sort();
    Ok(times[times.len() / 2].as_secs_f64().max(f64::MIN_POSITIVE))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn cpu() -> NamedDevice {
        Device::flex().into()
    }

    #[test]
    fn a_device_that_panics_or_refuses_is_an_error_that_names_it() {
        let panicking: Result<(), _> = ask(&cpu(), |_| panic!("no driver"));
        let error = panicking.unwrap_err().to_string();
        assert!(
            error.contains("cpu") && error.contains("no driver"),
            "{error}"
        );
        let refusing: Result<(), _> = ask(&cpu(), |_| Err("busy".to_owned()));
        assert!(refusing.unwrap_err().to_string().contains("busy"));
    }

    #[test]
    fn what_a_device_may_lack_is_said_of_its_kind() {
        assert_eq!(with_advice("cpu", "busy"), "busy");
        let of_cuda = with_advice("cuda:0", "no libdevice");
        assert!(of_cuda.starts_with("no libdevice. CUDA needs"), "{of_cuda}");
    }

    #[test]
    fn a_device_is_asked_with_its_own_threads() {
        let device: NamedDevice = "cpu:threads=3".parse().unwrap();
        let threads = ask(&device, |_| Ok(rayon::current_num_threads()));
        assert_eq!(threads.unwrap(), 3);
    }
}
