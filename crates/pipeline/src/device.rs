//! Devices by name.

use burn::tensor::Device;
use thiserror::Error;

/// A name that stands for no device here.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Not the name of a kind of device.
    #[error(
        "unknown device `{0}`: use cpu, wgpu:0 or cuda:0 (the number counts devices of a kind)"
    )]
    Unknown(String),
    /// There are not so many devices of this kind.
    #[error("there is no device `{name}`: {count} of its kind were found")]
    NotThere {
        /// The name asked for.
        name: String,
        /// How many there are.
        count: usize,
    },
    /// The program was built without this kind.
    #[error("device `{name}` needs a program that was built with `--features {feature}`")]
    NotCompiled {
        /// The name asked for.
        name: String,
        /// The Cargo feature that brings the kind.
        feature: &'static str,
    },
}

/// The device of a name: `cpu`, `cuda`, `cuda:1`, `wgpu`, `wgpu:1`.
///
/// `wgpu` alone is wgpu's own choice; `wgpu:1` is the second device that wgpu lists.
///
/// ```
/// use stovepipe_pipeline::{DeviceError, device_from_name};
///
/// assert_eq!(device_from_name("cpu")?, burn::tensor::Device::flex());
/// assert!(matches!(device_from_name("tpu:0"), Err(DeviceError::Unknown(_))));
/// # Ok::<(), DeviceError>(())
/// ```
///
/// # Errors
///
/// If the name is unknown, or its kind is not compiled in; the error names the feature.
pub fn device_from_name(name: &str) -> Result<Device, DeviceError> {
    let unknown = || DeviceError::Unknown(name.to_owned());
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, Some(index.parse::<usize>().map_err(|_| unknown())?)),
        None => (name, None),
    };
    match kind {
        "cpu" if index.unwrap_or(0) == 0 => Ok(Device::flex()),
        "cuda" => cuda(name, index),
        "wgpu" => wgpu(name, index),
        _ => Err(unknown()),
    }
}

#[cfg(feature = "cuda")]
fn cuda(_name: &str, index: Option<usize>) -> Result<Device, DeviceError> {
    Ok(Device::cuda(index.unwrap_or(0)))
}

#[cfg(not(feature = "cuda"))]
fn cuda(name: &str, _index: Option<usize>) -> Result<Device, DeviceError> {
    not_compiled(name, "cuda")
}

#[cfg(feature = "wgpu")]
fn wgpu(name: &str, index: Option<usize>) -> Result<Device, DeviceError> {
    use burn::tensor::{DeviceKind, DeviceType};
    let Some(index) = index else {
        return Ok(Device::wgpu(DeviceKind::DefaultDevice));
    };
    let found: Vec<_> = Device::enumerate(DeviceType::Wgpu).into_vec();
    let count = found.len();
    found.into_iter().nth(index).ok_or(DeviceError::NotThere {
        name: name.to_owned(),
        count,
    })
}

#[cfg(not(feature = "wgpu"))]
fn wgpu(name: &str, _index: Option<usize>) -> Result<Device, DeviceError> {
    not_compiled(name, "wgpu")
}

#[cfg(not(all(feature = "cuda", feature = "wgpu")))]
fn not_compiled(name: &str, feature: &'static str) -> Result<Device, DeviceError> {
    Err(DeviceError::NotCompiled {
        name: name.to_owned(),
        feature,
    })
}

/// What errors and pictures call a device.
pub(crate) fn name(device: &Device) -> String {
    let name = format!("{:?}", device.as_dispatch());
    match name.starts_with("Flex") || name.contains("Flex(") {
        true => "cpu".to_owned(),
        false => name,
    }
}
