//! Devices by name.
//!
//! | name | device |
//! |---|---|
//! | `cpu` | the CPU, with the pipeline's number of threads per worker |
//! | `cpu:threads=4` | the CPU, with four threads for each of its workers |
//! | `wgpu` | the device that wgpu thinks is best |
//! | `wgpu:1` | the second device that wgpu lists |
//! | `cuda`, `cuda:0` | the first device that CUDA lists |
//! | `1/cuda:0` | the first device that CUDA lists for process 1 of a pipeline over several processes |

use std::{fmt, str::FromStr, sync::LazyLock};

use burn::tensor::Device;
use thiserror::Error;

/// A device and its name. A plain [`Device`] converts into one.
///
/// ```
/// use burn::tensor::Device;
/// use stovepipe_pipeline::{NamedDevice, device::DeviceError};
///
/// let device: NamedDevice = "cpu:threads=4".parse()?;
/// assert_eq!((device.device, device.threads), (Device::flex(), Some(4)));
/// assert!(matches!("tpu:0".parse::<NamedDevice>(), Err(DeviceError::Unknown(_))));
///
/// let cpu = NamedDevice::from(Device::flex());
/// assert_eq!((cpu.name.as_str(), cpu.is_cpu()), ("cpu", true));
/// assert_eq!(cpu.share_of_time(&[cpu.clone(), cpu.clone()]), 1.0);
/// assert_eq!(NamedDevice::offered()[0], cpu);
/// # Ok::<(), DeviceError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// Its name in errors and pictures.
    pub name: String,
    /// The device.
    pub device: Device,
    /// CPU threads of each of its workers; `None` for the pipeline's setting.
    pub threads: Option<usize>,
    /// The process that has it: the rank in the pipeline's
    /// [communicator](crate::PipelineBuilder::communicator), or 0.
    pub process: usize,
}

/// The most CPU threads of a worker. More would be a mistake.
pub const MOST_THREADS: usize = 1024;

/// Why a name is not the name of a device.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// There is no such kind of device.
    #[error(
        "unknown device `{0}`: use cpu, cpu:threads=4, wgpu, wgpu:0 or cuda:0 (the number counts \
         devices of a kind)"
    )]
    Unknown(String),
    /// A CPU without threads, or with more than [`MOST_THREADS`].
    #[error("device `{0}` can have from 1 to {MOST_THREADS} threads")]
    Threads(String),
    /// The program was built without this kind.
    #[error("device `{name}` needs a program that was built with `--features {feature}`")]
    NotCompiled {
        /// The requested name.
        name: String,
        /// The Cargo feature of this kind.
        feature: &'static str,
    },
    /// There is no device of this kind, or no driver for it.
    #[error("there is no device `{name}`: none of its kind was found. {install}")]
    NoDriver {
        /// The requested name.
        name: String,
        /// What to install.
        install: &'static str,
    },
    /// There are fewer devices of this kind.
    #[error("there is no device `{name}`: {count} of its kind were found, counted from 0")]
    NotThere {
        /// The requested name.
        name: String,
        /// The number of devices.
        count: usize,
    },
}

impl NamedDevice {
    /// The devices of this machine that the program can use: the CPU, and each GPU once per kind.
    #[must_use]
    pub fn offered() -> Vec<Self> {
        let mut offered = vec![Self::from(Device::flex())];
        for kind in &GPU_KINDS {
            let found = kind.found().iter().enumerate();
            offered.extend(found.map(|(index, device)| kind.named(index, device)));
        }
        offered
    }

    /// A device of another process may not be one of this one.
    fn of_process(process: usize, device: &str) -> Result<Self, DeviceError> {
        use DeviceError::{NoDriver, NotCompiled, NotThere};
        let own = match device.parse::<Self>() {
            Err(NoDriver { .. } | NotCompiled { .. } | NotThere { .. }) => Self {
                name: device.to_owned(),
                ..Self::from(Device::flex())
            },
            found => found?,
        };
        let name = format!("{process}/{}", own.name);
        Ok(Self {
            name,
            process,
            ..own
        })
    }

    /// Finds the device again, now that it is known to be one of this process.
    pub(crate) fn here(&self) -> Result<(), DeviceError> {
        match self.name.split_once('/') {
            Some((_, device)) => device.parse::<Self>().map(drop),
            None => Ok(()),
        }
    }

    /// Whether it is the CPU, with any number of threads.
    #[must_use]
    pub fn is_cpu(&self) -> bool {
        self.device == Device::flex() && !self.is_unknown()
    }

    /// The kind of the device in its name, such as `cpu` or `cuda`.
    pub(crate) fn kind(&self) -> &str {
        let own = self
            .name
            .split_once('/')
            .map_or(&*self.name, |(_, own)| own);
        own.split_once(':').map_or(own, |(kind, _)| kind)
    }

    /// Whether it is a GPU that another process has and this one has not.
    fn is_unknown(&self) -> bool {
        let of_process = self.name.split_once('/').map(|(_, device)| device);
        let is_gpu = |device: &str| GPU_KINDS.iter().any(|kind| device.starts_with(kind.name));
        self.device == Device::flex() && of_process.is_some_and(is_gpu)
    }

    /// Whether both are one device, whatever their threads.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        (&self.device, self.process) == (&other.device, other.process)
            && (!(self.is_unknown() || other.is_unknown()) || self.name == other.name)
    }

    /// The share of the device's time that one of these `workers` gets: workers share a GPU evenly, and on
    /// the CPU each has its own threads.
    #[must_use]
    pub fn share_of_time(&self, workers: &[Self]) -> f64 {
        if self.is_cpu() {
            return 1.0;
        }
        let sharing = workers.iter().filter(|other| self.is_same(other));
        1.0 / sharing.count().max(1) as f64
    }
}

impl fmt::Display for NamedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for NamedDevice {
    type Err = DeviceError;

    /// Finds the device with this name, without using it: it may not work.
    fn from_str(name: &str) -> Result<Self, DeviceError> {
        let name = name.trim().to_lowercase();
        let name = name.as_str();
        if let Some((process, device)) = name.split_once('/') {
            let process = process.parse();
            let process = process.map_err(|_| DeviceError::Unknown(name.to_owned()))?;
            return Self::of_process(process, device);
        }
        let unknown = || DeviceError::Unknown(name.to_owned());
        let (kind, detail) = match name.split_once(':') {
            Some((kind, detail)) => (kind, Some(detail)),
            None => (name, None),
        };
        if kind == "cpu" {
            return cpu(name, detail);
        }
        let kind = GPU_KINDS.iter().find(|known| known.name == kind);
        let kind = kind.ok_or_else(unknown)?;
        let index = detail.map(str::parse).transpose();
        kind.device(name, index.map_err(|_| unknown())?)
    }
}

fn cpu(name: &str, detail: Option<&str>) -> Result<NamedDevice, DeviceError> {
    let unknown = || DeviceError::Unknown(name.to_owned());
    let threads = match detail {
        None | Some("0") => None,
        Some(detail) => {
            let number = detail.strip_prefix("threads=").ok_or_else(unknown)?;
            Some(number.parse().map_err(|_| unknown())?)
        }
    };
    match threads {
        Some(threads) if !(1..=MOST_THREADS).contains(&threads) => {
            Err(DeviceError::Threads(name.to_owned()))
        }
        _ => Ok(NamedDevice {
            name: threads.map_or("cpu".to_owned(), |threads| format!("cpu:threads={threads}")),
            device: Device::flex(),
            threads,
            process: 0,
        }),
    }
}

/// A kind of GPU.
struct GpuKind {
    /// Also the name of its Cargo feature.
    name: &'static str,
    install: &'static str,
    /// The machine's devices, as Burn lists them; `None` if the kind is not compiled in. Listed once,
    /// because that loads a driver.
    found: LazyLock<Option<Vec<Device>>>,
    /// The device for the kind's name alone, if that is not the first one.
    default_device: fn() -> Option<Device>,
}

static GPU_KINDS: [GpuKind; 2] = [
    GpuKind {
        name: "wgpu",
        install: "wgpu needs a graphics driver for Vulkan, Metal or DirectX 12 (OpenGL alone will not do): \
                  the one of your GPU's maker, or one in software, such as Debian's package \
                  mesa-vulkan-drivers",
        found: LazyLock::new(wgpu_devices),
        default_device: wgpu_default,
    },
    GpuKind {
        name: "cuda",
        install: "CUDA needs an NVIDIA GPU, NVIDIA's driver, and libdevice of the CUDA toolkit: the file \
                  nvvm/libdevice/libdevice.10.bc in /usr/local/cuda, or in the folder that CUDA_PATH names",
        found: LazyLock::new(cuda_devices),
        default_device: || None,
    },
];

impl GpuKind {
    fn found(&self) -> &[Device] {
        self.found.as_deref().unwrap_or_default()
    }

    fn named(&self, index: usize, device: &Device) -> NamedDevice {
        NamedDevice {
            name: format!("{}:{index}", self.name),
            device: device.clone(),
            threads: None,
            process: 0,
        }
    }

    fn device(&self, name: &str, index: Option<usize>) -> Result<NamedDevice, DeviceError> {
        let name = name.to_owned();
        let Some(found) = &*self.found else {
            let feature = self.name;
            return Err(DeviceError::NotCompiled { name, feature });
        };
        let count = found.len();
        if count == 0 {
            let install = self.install;
            return Err(DeviceError::NoDriver { name, install });
        }
        if let (None, Some(device)) = (index, (self.default_device)()) {
            return Ok(NamedDevice::from(device));
        }
        let index = index.unwrap_or_default();
        let device = found.get(index);
        let device = device.ok_or(DeviceError::NotThere { name, count })?;
        Ok(self.named(index, device))
    }
}

/// Without a driver there are no devices, even if Burn panics.
#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn listed(kind: burn::tensor::DeviceType) -> Option<Vec<Device>> {
    let list = || Device::enumerate(kind).into_vec();
    Some(std::panic::catch_unwind(std::panic::AssertUnwindSafe(list)).unwrap_or_default())
}

/// Without OpenGL, Burn's fallback: wgpu aborts if several threads use its one context.
#[cfg(feature = "wgpu")]
fn wgpu_devices() -> Option<Vec<Device>> {
    use cubecl_wgpu::{AutoGraphicsApi, Backend, GraphicsApi};
    match std::panic::catch_unwind(AutoGraphicsApi::backend) {
        Ok(Backend::Gl) | Err(_) => Some(Vec::new()),
        Ok(_) => listed(burn::tensor::DeviceType::Wgpu),
    }
}

#[cfg(not(feature = "wgpu"))]
fn wgpu_devices() -> Option<Vec<Device>> {
    None
}

fn wgpu_default() -> Option<Device> {
    #[cfg(feature = "wgpu")]
    return Some(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice));
    #[cfg(not(feature = "wgpu"))]
    None
}

fn cuda_devices() -> Option<Vec<Device>> {
    #[cfg(feature = "cuda")]
    return listed(burn::tensor::DeviceType::Cuda);
    #[cfg(not(feature = "cuda"))]
    None
}

impl From<Device> for NamedDevice {
    /// Uses the name that would select the device. A wgpu device that the program has set up itself is
    /// called `wgpu#0`, `wgpu#1`, …
    fn from(device: Device) -> Self {
        let device = device.inner();
        let name = if device == Device::flex() {
            "cpu".to_owned()
        } else {
            gpu_name(&device)
        };
        Self {
            name,
            device,
            threads: None,
            process: 0,
        }
    }
}

fn gpu_name(device: &Device) -> String {
    #[cfg(feature = "wgpu")]
    if let Some(name) = name_of_set_up(device) {
        return name;
    }
    for kind in &GPU_KINDS {
        if (kind.default_device)().as_ref() == Some(device) {
            return kind.name.to_owned();
        }
        if let Some(index) = kind.found().iter().position(|found| found == device) {
            return format!("{}:{index}", kind.name);
        }
    }
    format!("{:?}", device.as_dispatch()) // missing, or of another kind
}

#[cfg(feature = "wgpu")]
fn name_of_set_up(device: &Device) -> Option<String> {
    use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};
    match device.as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => match device.kind {
            WgpuDeviceKind::Existing(number) => Some(format!("wgpu#{number}")),
            _ => None,
        },
        _ => None,
    }
}

/// What a device with this name needs to be installed.
pub(crate) fn install_hint(name: &str) -> Option<&'static str> {
    let kind = GPU_KINDS.iter().find(|kind| name.starts_with(kind.name));
    kind.map(|kind| kind.install)
}
