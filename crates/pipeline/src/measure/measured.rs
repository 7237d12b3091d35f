//! What a model costs on a pipeline's devices, which may differ.

use stovepipe_plan::{DeviceSpec, LinkLevel, Machine, Profile};
use stovepipe_schedule::Link;

use crate::{
    api::error::BuildError,
    measure::{
        device::NamedDevice,
        link::measure_link,
        probe::{DeviceFacts, device_facts},
    },
};

/// What each layer costs on each worker's device, and how fast the links between devices are: the input of a
/// [cut](crate::Balance) and a [prediction](crate::PipelineBuilder::forecast). A [`Profile`] alone stands for
/// equal devices without copies between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    profiles: Vec<Profile>,
    machine: Option<Machine>,
}

impl Measured {
    /// Calls `measure` for each device, except those that equal an earlier one: the same device, with the
    /// same [threads](NamedDevice::threads) on the CPU, or a GPU with the same name of its hardware and the same
    /// memory. Also measures the links between neighbours, unless
    /// the devices are those of several processes: see [`with_levels`](Self::with_levels).
    ///
    /// Workers that share a GPU share its time: with two of them, it counts as half as fast for each.
    ///
    /// ```
    /// use burn::tensor::Tensor;
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Balance, Measured, NamedDevice, Pipeline, Profiler};
    ///
    /// let devices: Vec<NamedDevice> = vec!["cpu".parse()?, "cpu:threads=2".parse()?, "cpu".parse()?];
    /// let layers = Dense::layers(&[4; 7]);
    /// let mut seen = Vec::new();
    /// let measured = Measured::on(&devices, |device| {
    ///     seen.push(device.name.clone());
    ///     Profiler::on(device).measure(&layers, Tensor::ones([16, 4], &device.device))
    /// })?;
    /// assert_eq!(seen, ["cpu", "cpu:threads=2"]);
    /// assert_eq!(measured.profile(0), measured.profile(2));
    /// let alike = Measured::from(measured.profile(0));
    /// assert_eq!(alike.machine(2), stovepipe_plan::Machine::uniform(2));
    /// let builder = Pipeline::builder(layers).devices(devices).balance(Balance::Planned(measured));
    /// assert_eq!(builder.cut()?.iter().sum::<usize>(), 6);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there are no devices, `measure` fails, or a link cannot be measured.
    pub fn on<E: From<BuildError>>(
        devices: &[NamedDevice],
        mut measure: impl FnMut(&NamedDevice) -> Result<Profile, E>,
    ) -> Result<Self, E> {
        let mut profiles: Vec<Profile> = Vec::with_capacity(devices.len());
        let facts = facts_of_gpus(devices);
        for (index, device) in devices.iter().enumerate() {
            let is_known = |&known: &usize| {
                is_equal(&devices[known], device)
                    || (devices[known].kind() == device.kind()
                        && are_alike(facts[known].as_ref(), facts[index].as_ref()))
            };
            let known = (0..index).find(is_known);
            profiles.push(match known {
                Some(known) => profiles[known].clone(),
                None => measure(device)?,
            });
        }
        if profiles.is_empty() {
            return Err(BuildError::NoStages.into());
        }
        let is_one_process = devices.iter().all(|own| own.process == devices[0].process);
        let link = is_one_process.then(|| slowest_link(devices)).transpose()?;
        let link = (link.flatten()).map(|link| LinkLevel::joining(devices.len(), link));
        let machine = Machine {
            devices: devices.iter().map(|device| spec(device, devices)).collect(),
            levels: link.into_iter().collect(),
        };
        Ok(Self {
            profiles,
            machine: Some(machine),
        })
    }

    /// What each layer costs on a worker's device.
    #[must_use]
    pub fn profile(&self, worker: usize) -> &Profile {
        self.profiles.get(worker).unwrap_or(&self.profiles[0])
    }

    /// Sets the memory in bytes of the workers' devices. Cuts that need more are used only if there is no
    /// other.
    #[must_use]
    pub fn with_memory(mut self, of_workers: &[Option<u64>]) -> Self {
        let mut machine = self.machine(of_workers.len());
        for (device, &memory) in machine.devices.iter_mut().zip(of_workers) {
            device.memory = memory;
        }
        self.machine = Some(machine);
        self
    }

    /// Sets the bytes a second to and from what lies off the workers' devices: the optimizer's states, and gradients.
    /// `None` takes no time.
    #[must_use]
    pub fn with_stores(mut self, of_workers: &[Option<f64>]) -> Self {
        let mut machine = self.machine(of_workers.len());
        for (device, &store) in machine.devices.iter_mut().zip(of_workers) {
            device.store = store;
        }
        self.machine = Some(machine);
        self
    }

    /// Sets the links between the workers' devices: within a process, within a computer, and between
    /// computers. See [`LinkLevel::of_places`].
    #[must_use]
    pub fn with_levels(mut self, levels: Vec<LinkLevel>) -> Self {
        let machine = self.machine(self.profiles.len());
        self.machine = Some(Machine { levels, ..machine });
        self
    }

    /// One per worker, or one for all.
    pub(crate) fn profiles(&self) -> &[Profile] {
        &self.profiles
    }

    /// The devices of this number of workers. Each has its own [profile](Self::profile), so its speed is
    /// only its [share of the device](NamedDevice::share_of_time).
    #[must_use]
    pub fn machine(&self, workers: usize) -> Machine {
        (self.machine.clone()).unwrap_or_else(|| Machine::uniform(workers))
    }
}

impl From<Profile> for Measured {
    fn from(profile: Profile) -> Self {
        Self {
            profiles: vec![profile],
            machine: None,
        }
    }
}

impl From<&Profile> for Measured {
    fn from(profile: &Profile) -> Self {
        profile.clone().into()
    }
}

fn is_equal(one: &NamedDevice, other: &NamedDevice) -> bool {
    one.is_same(other) && one.threads == other.threads
}

/// What GPUs report about themselves, if there are several.
fn facts_of_gpus(devices: &[NamedDevice]) -> Vec<Option<DeviceFacts>> {
    let gpus = devices.iter().filter(|device| !device.is_cpu());
    let gpus: Vec<_> = gpus.collect();
    let are_several = gpus.iter().any(|gpu| !gpu.is_same(gpus[0]));
    let facts = |device: &NamedDevice| {
        let is_asked = are_several && !device.is_cpu();
        is_asked.then(|| device_facts(device).ok()).flatten()
    };
    devices.iter().map(facts).collect()
}

/// Whether two GPUs take the same time. Adapters in software share the CPU.
fn are_alike(one: Option<&DeviceFacts>, other: Option<&DeviceFacts>) -> bool {
    let is_known = |facts: &&DeviceFacts| facts.hardware.is_some() && !facts.software;
    let one = one.filter(is_known);
    one.is_some() && one == other
}

fn spec(device: &NamedDevice, all: &[NamedDevice]) -> DeviceSpec {
    DeviceSpec {
        name: device.name.clone(),
        speed: device.share_of_time(all),
        memory: None,
        store: None,
    }
}

/// The slowest link between neighbours in a list of this process's devices, in either direction; `None` if
/// all are one device.
///
/// ```
/// use stovepipe_pipeline::{NamedDevice, device::slowest_link};
///
/// let cpu: NamedDevice = "cpu".parse()?;
/// assert_eq!(slowest_link(&[cpu.clone(), cpu])?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// As [`measure_link`](crate::device::measure_link).
pub fn slowest_link(devices: &[NamedDevice]) -> Result<Option<Link>, BuildError> {
    let mut known = Vec::new();
    let mut slowest: Option<Link> = None;
    for pair in devices.windows(2) {
        let ways = [(&pair[0], &pair[1]), (&pair[1], &pair[0])];
        for (from, to) in ways.map(|(from, to)| (&from.device, &to.device)) {
            if from == to || known.contains(&(from, to)) {
                continue;
            }
            known.push((from, to));
            let link = measure_link(from, to)?;
            slowest = Some(slowest.map_or(link, |slowest| slowest.or_slower(link)));
        }
    }
    Ok(slowest)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn gpus_of_the_same_hardware_and_memory_are_alike() {
        let facts = |name: Option<&str>, memory, software| DeviceFacts {
            hardware: name.map(str::to_owned),
            software,
            memory: Some(memory),
            ..DeviceFacts::default()
        };
        let a100 = facts(Some("A100"), 40 << 30, false);
        assert!(are_alike(Some(&a100), Some(&a100.clone())));
        let others = [
            facts(Some("A100"), 80 << 30, false),
            facts(Some("T4"), 40 << 30, false),
            facts(None, 40 << 30, false),
            facts(Some("llvmpipe"), 40 << 30, true),
        ];
        for other in &others {
            assert!(!are_alike(Some(&a100), Some(other)), "{other:?}");
        }
        assert!(!are_alike(Some(&others[2]), Some(&others[2].clone())));
        assert!(!are_alike(Some(&others[3]), Some(&others[3].clone())));
        assert!(!are_alike(None, None));
    }

    #[test]
    fn workers_on_the_cpu_have_their_own_threads() {
        let devices: Vec<NamedDevice> = vec![Device::flex().into(); 2];
        assert_eq!(spec(&devices[0], &devices).speed, 1.0);
        assert_eq!(slowest_link(&devices).unwrap(), None);
    }

    #[cfg(feature = "wgpu")]
    #[test]
    fn workers_on_a_gpu_share_its_time() {
        let gpu = Device::wgpu(burn::tensor::DeviceKind::DefaultDevice); // not opened
        let devices: Vec<NamedDevice> = vec![gpu.clone().into(), gpu.into(), Device::flex().into()];
        let speeds = devices.iter().map(|device| spec(device, &devices).speed);
        assert_eq!(speeds.collect::<Vec<_>>(), [0.5, 0.5, 1.0]);
    }
}
