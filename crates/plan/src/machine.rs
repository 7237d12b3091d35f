//! The devices and the links between them.

use serde::{Deserialize, Serialize};
use stovepipe_schedule::Link;
use thiserror::Error;
use toml::Spanned;

use crate::toml_text::{self, Fault, Text};

/// Devices, and levels of links that join them: those of one computer, then computers, then racks.
///
/// The devices are numbered in the order of the list, and neighbours in it are close: with levels
/// of 4 and 2 workers, devices 0 to 3 are in the first computer, 4 to 7 in the second.
///
/// A machine is kept as TOML:
///
/// ```
/// use stovepipe_plan::Machine;
///
/// let machine = Machine::from_toml(
///     r#"
///     [[device]]
///     name = "cuda:0"
///     memory = 16000000000  # bytes
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
/// # Ok::<(), stovepipe_plan::MachineError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    /// The devices; neighbours are close.
    #[serde(rename = "device")]
    pub devices: Vec<DeviceSpec>,
    /// The links, innermost first. None: links cost nothing.
    #[serde(rename = "level")]
    pub levels: Vec<LinkLevel>,
}

/// What there is to know about a device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceSpec {
    /// What a reader calls it.
    pub name: String,
    /// How fast it is: a layer takes its profiled time divided by this. 1 is the device of the
    /// profile.
    pub speed: f64,
    /// Bytes that it can hold. None: enough.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
}

/// Links of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkLevel {
    /// How many units of the level below (devices, at the innermost level) are joined.
    pub workers: usize,
    /// Bytes a second.
    pub bandwidth: f64,
    /// Seconds before the first byte arrives.
    pub latency: f64,
}

impl LinkLevel {
    /// So many devices, each joined to each by such a link.
    ///
    /// ```
    /// use stovepipe_plan::{LinkLevel, Machine};
    /// use stovepipe_schedule::Link;
    ///
    /// let link = Link { latency: 1e-5, bandwidth: 16e9 };
    /// let machine = Machine { levels: vec![LinkLevel::joining(2, link)], ..Machine::uniform(2) };
    /// assert_eq!(machine.link(0, 1).copied().map(Link::from), Some(link));
    /// ```
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

/// Why a text is no machine.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The text is no TOML, lacks a value, or has one that is unknown or of the wrong kind.
    #[error("line {line}: {message}")]
    Toml {
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        message: String,
    },
    /// The machine has no device.
    #[error("line {line}: a machine needs at least one [[device]]")]
    NoDevices {
        /// The last line.
        line: usize,
    },
    /// A number is out of bounds.
    #[error("line {line}: {key} = {value}, but it must be {must}")]
    Number {
        /// The line, from 1.
        line: usize,
        /// The key in the file.
        key: &'static str,
        /// Its value.
        value: f64,
        /// What values there may be.
        must: &'static str,
    },
    /// The levels join more or fewer devices than there are.
    #[error("line {line}: the levels join {joined} devices, but there are {devices}")]
    Joined {
        /// The line of the last level, or of the one at which they become too many; from 1.
        line: usize,
        /// The product of the levels' workers.
        joined: usize,
        /// The number of devices.
        devices: usize,
    },
}

impl Machine {
    /// Alike devices, with links that cost nothing.
    ///
    /// ```
    /// use stovepipe_plan::Machine;
    ///
    /// let machine = Machine::uniform(2);
    /// assert_eq!(machine.devices[1].name, "1");
    /// assert_eq!(machine.devices[1].speed, 1.0);
    /// assert_eq!(machine.link(0, 1), None);
    /// ```
    #[must_use]
    pub fn uniform(devices: usize) -> Self {
        let device = |index: usize| DeviceSpec {
            name: index.to_string(),
            speed: 1.0,
            memory: None,
        };
        Self {
            devices: (0..devices).map(device).collect(),
            levels: Vec::new(),
        }
    }

    /// Reads a machine; see [`Machine`] for one.
    ///
    /// # Errors
    ///
    /// Each names the line: if the text is no TOML, a key is missing, unknown or of the wrong kind,
    /// a speed or bandwidth is not above 0 or not finite, a latency is negative or not finite, a
    /// level joins no workers, there are no devices, or the product of the levels' workers is not
    /// the number of devices.
    pub fn from_toml(text: &str) -> Result<Self, MachineError> {
        let text = Text(text);
        let file: MachineFile = text.parse()?;
        if file.device.is_empty() {
            let line = text.0.lines().count().max(1);
            return Err(MachineError::NoDevices { line });
        }
        let devices: Result<Vec<_>, _> = (file.device.iter())
            .map(|device| device.check(text))
            .collect();
        let levels: Result<Vec<_>, _> = (file.level.iter())
            .map(|level| level.get_ref().check(text))
            .collect();
        let machine = Self {
            devices: devices?,
            levels: levels?,
        };
        machine.check_joined(|level| file.level.get(level).map_or(1, |level| text.line(level)))?;
        Ok(machine)
    }

    /// The machine as TOML, from which [`Machine::from_toml`] makes the same machine again.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml_text::write(self)
    }

    /// The links over which two devices, given by their indices, exchange data: the innermost
    /// level that joins them. None if they are the same, one does not exist, or links cost nothing.
    ///
    /// ```
    /// use stovepipe_plan::{LinkLevel, Machine};
    ///
    /// let level = |workers, bandwidth| LinkLevel { workers, bandwidth, latency: 0.0 };
    /// let machine = Machine {
    ///     levels: vec![level(2, 16e9), level(2, 1e9)],
    ///     ..Machine::uniform(4)
    /// };
    /// assert_eq!(machine.link(2, 3).map(|level| level.bandwidth), Some(16e9));
    /// assert_eq!(machine.link(1, 2).map(|level| level.bandwidth), Some(1e9));
    /// assert_eq!(machine.link(2, 2), None);
    /// ```
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

    /// Makes sure that the levels join as many devices as there are; `line` is given the index of
    /// a level.
    fn check_joined(&self, line: impl Fn(usize) -> usize) -> Result<(), MachineError> {
        let devices = self.devices.len();
        let mut joined = 1_usize;
        for (index, level) in self.levels.iter().enumerate() {
            joined = joined.saturating_mul(level.workers);
            let last = index + 1 == self.levels.len();
            if joined > devices || (last && joined != devices) {
                let line = line(index);
                return Err(MachineError::Joined {
                    line,
                    joined,
                    devices,
                });
            }
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MachineFile {
    #[serde(default)]
    device: Vec<DeviceFile>,
    #[serde(default)]
    level: Vec<Spanned<LevelFile>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DeviceFile {
    name: String,
    speed: Option<Spanned<f64>>,
    memory: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelFile {
    workers: Spanned<usize>,
    bandwidth: Spanned<f64>,
    latency: Option<Spanned<f64>>,
}

impl DeviceFile {
    fn check(&self, text: Text) -> Result<DeviceSpec, MachineError> {
        let speed = self
            .speed
            .as_ref()
            .map(|speed| above_0(text, "speed", speed));
        Ok(DeviceSpec {
            name: self.name.clone(),
            speed: speed.unwrap_or(Ok(1.0))?,
            memory: self.memory,
        })
    }
}

impl LevelFile {
    fn check(&self, text: Text) -> Result<LinkLevel, MachineError> {
        let workers = *self.workers.get_ref();
        if workers == 0 {
            let line = text.line(&self.workers);
            return Err(number(line, "workers", 0.0, "at least 1"));
        }
        let latency = self
            .latency
            .as_ref()
            .map_or(0.0, |latency| *latency.get_ref());
        if !(latency >= 0.0 && latency.is_finite()) {
            let line = self
                .latency
                .as_ref()
                .map_or(1, |latency| text.line(latency));
            return Err(number(line, "latency", latency, "finite and at least 0"));
        }
        Ok(LinkLevel {
            workers,
            bandwidth: above_0(text, "bandwidth", &self.bandwidth)?,
            latency,
        })
    }
}

fn above_0(text: Text, key: &'static str, value: &Spanned<f64>) -> Result<f64, MachineError> {
    let (line, value) = (text.line(value), *value.get_ref());
    match value > 0.0 && value.is_finite() {
        true => Ok(value),
        false => Err(number(line, key, value, "finite and above 0")),
    }
}

fn number(line: usize, key: &'static str, value: f64, must: &'static str) -> MachineError {
    MachineError::Number {
        line,
        key,
        value,
        must,
    }
}

impl From<Fault> for MachineError {
    fn from(Fault { line, message }: Fault) -> Self {
        Self::Toml { line, message }
    }
}
