//! Devices and the links between them.

use serde::{Deserialize, Serialize};
use stovepipe_schedule::{Link, count};
use thiserror::Error;

use crate::toml_text::{self, TomlError, TomlText};

/// Devices and the levels of links that join them: within a computer, between computers, between racks.
///
/// Neighbours in the list of devices are close: with levels of 4 and 2 workers, devices 0 to 3 are in the
/// first computer, 4 to 7 in the second.
///
/// The file format is TOML:
///
/// ```
/// use stovepipe_plan::{LinkLevel, Machine};
/// use stovepipe_schedule::Link;
///
/// let machine = Machine::from_toml(
///     r#"
///     [[device]]
///     name = "cuda:0"
///     memory = 16000000000  # bytes
///     store = 2e9           # bytes a second to and from what is offloaded; optional
///
///     [[device]]
///     name = "cuda:1"
///     speed = 0.5           # relative; 1 if left out
///
///     [[level]]             # innermost first
///     workers = 2
///     bandwidth = 16e9      # bytes a second
///     latency = 1e-5        # seconds; 0 if left out
///     "#,
/// )?;
/// assert_eq!(machine.link(0, 1).map(|level| level.bandwidth), Some(16e9));
/// assert_eq!(Machine::from_toml(&machine.to_toml())?, machine);
///
/// let [near, far] = [16e9, 1e9].map(|bandwidth| Link { latency: 1e-5, bandwidth });
/// let levels = vec![LinkLevel::joining(2, near), LinkLevel::joining(2, far)];
/// let two_computers = Machine { levels, ..Machine::uniform(4) };
/// let link = |a, b| two_computers.link(a, b).copied().map(Link::from);
/// assert_eq!([link(2, 3), link(1, 2), link(2, 2)], [Some(near), Some(far), None]);
/// # Ok::<(), stovepipe_plan::MachineError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The devices. Neighbours are close.
    #[serde(rename = "device", default)]
    pub devices: Vec<DeviceSpec>,
    /// The links, innermost first. If empty, links cost nothing.
    #[serde(rename = "level", default)]
    pub levels: Vec<LinkLevel>,
}

/// A device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceSpec {
    /// Its name in outputs. One whose name begins with `cpu` has the whole mini-batch in its memory.
    pub name: String,
    /// Relative to the device of the profile: a layer takes its profiled time divided by this.
    #[serde(default = "one")]
    pub speed: f64,
    /// Bytes of its memory. None: unlimited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Bytes a second to and from where optimizer states and gradients lie that are off the device, one way at a time.
    /// None: they take no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<f64>,
}

impl DeviceSpec {
    /// Whether it is the CPU, of any process.
    pub(crate) fn is_cpu(&self) -> bool {
        let name = self.name.rsplit('/').next();
        name.is_some_and(|name| name.starts_with("cpu"))
    }

    /// Whether a plan may have one instead of the other.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let facts = |device: &Self| (device.speed, device.memory, device.store, device.is_cpu());
        facts(self) == facts(other)
    }
}

/// Links of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkLevel {
    /// How many units of the next lower level (devices, at the innermost level) are joined.
    pub workers: usize,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Seconds before the first byte arrives.
    #[serde(default)]
    pub latency: f64,
}

impl LinkLevel {
    /// Devices that are all joined by this link.
    #[must_use]
    pub fn joining(workers: usize, link: Link) -> Self {
        Self {
            workers,
            bandwidth: link.bandwidth,
            latency: link.latency,
        }
    }
}

impl From<LinkLevel> for Link {
    fn from(level: LinkLevel) -> Self {
        Self {
            latency: level.latency,
            bandwidth: level.bandwidth,
        }
    }
}

/// Why a text is not a machine. Lines are counted from 1.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum MachineError {
    /// The text is not TOML of this form.
    #[error(transparent)]
    Toml(#[from] TomlError),
    /// The machine has no device.
    #[error("line {line}: a machine needs at least one [[device]]")]
    NoDevices { line: usize },
    /// A number is out of bounds.
    #[error("line {line}: {key} = {value}, but it must be {must}")]
    Number {
        line: usize,
        key: &'static str,
        value: f64,
        must: &'static str,
    },
    /// The levels join more or fewer devices than there are.
    #[error("line {line}: the levels join {}, not {devices}", count(*joined, "device"))]
    Joined {
        line: usize,
        joined: usize,
        devices: usize,
    },
}

impl Machine {
    /// Equal devices, with links that cost nothing.
    #[must_use]
    pub fn uniform(devices: usize) -> Self {
        let device = |index: usize| DeviceSpec {
            name: index.to_string(),
            speed: 1.0,
            memory: None,
            store: None,
        };
        Self {
            devices: (0..devices).map(device).collect(),
            levels: Vec::new(),
        }
    }

    /// Reads a machine; see [`Machine`] for the format.
    ///
    /// # Errors
    ///
    /// The line, if the text is not TOML, a key is missing, unknown or of the wrong kind, a speed,
    /// store or bandwidth is not above 0 or not finite, a latency is negative or not finite, a level joins no
    /// workers, there are no devices, or the product of the levels' workers is not their number.
    pub fn from_toml(text: &str) -> Result<Self, MachineError> {
        let text = TomlText(text);
        let machine: Self = text.parse()?;
        let count = machine.devices.len();
        if count == 0 {
            let line = text.last_line();
            return Err(MachineError::NoDevices { line });
        }
        let check = |list, index, key, value: f64, (must, is_fine): (&'static str, bool)| {
            if is_fine && value.is_finite() {
                return Ok(());
            }
            Err(MachineError::Number {
                line: text.line_in(list, index, key),
                key,
                value,
                must,
            })
        };
        let above_0 = |value: f64| ("finite and above 0", value > 0.0);
        for (index, device) in machine.devices.iter().enumerate() {
            check(
                "device",
                index,
                "speed",
                device.speed,
                above_0(device.speed),
            )?;
            let store = device.store.unwrap_or(1.0);
            check("device", index, "store", store, above_0(store))?;
        }
        for (index, level) in machine.levels.iter().enumerate() {
            let at_least_1 = ("at least 1", level.workers > 0);
            check("level", index, "workers", level.workers as f64, at_least_1)?;
            let at_least_0 = ("finite and at least 0", level.latency >= 0.0);
            check("level", index, "latency", level.latency, at_least_0)?;
            let bandwidth = level.bandwidth;
            check("level", index, "bandwidth", bandwidth, above_0(bandwidth))?;
        }
        let mut joined = 1_usize;
        for (index, level) in machine.levels.iter().enumerate() {
            joined = joined.saturating_mul(level.workers);
            let is_last = index + 1 == machine.levels.len();
            if joined > count || (is_last && joined != count) {
                return Err(MachineError::Joined {
                    line: text.line_in("level", index, ""),
                    joined,
                    devices: count,
                });
            }
        }
        Ok(machine)
    }

    /// The machine as TOML. [`Machine::from_toml`] reads the same machine.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml_text::write(self)
    }

    /// The links between two devices, given by their indices: the innermost level that joins them. None if
    /// they are the same, one does not exist, or links cost nothing.
    #[must_use]
    pub fn link(&self, a: usize, b: usize) -> Option<&LinkLevel> {
        if a == b || a.max(b) >= self.devices.len() {
            return None;
        }
        let mut size = 1_usize;
        self.levels.iter().find(|level| {
            size = size.saturating_mul(level.workers).max(1);
            a / size == b / size
        })
    }
}

fn one() -> f64 {
    1.0
}
