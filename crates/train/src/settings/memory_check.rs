//! Whether a run fits into its devices' memory.

use std::collections::BTreeMap;

use stovepipe_pipeline::{
    NamedDevice, device::device_facts, error::ProcessError, measure::OptimizerState,
};
use stovepipe_plan::{DeviceSpec, Machine, MemoryUse};

use super::{
    limits::free_memory,
    offload::OffloadSetting,
    pipeline::PipelineSettings,
    training::{OptimizerSetting, TrainSettings},
};
use crate::{error::TrainError, processes::Processes};

/// All workers on the CPU share its memory.
const MAIN: &str = "cpu";

/// The memory that a run needs on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device's name.
    pub device: String,
    /// Bytes that all its workers need together.
    pub needs: u64,
    /// Bytes that it has, if that is known.
    pub has: Option<u64>,
}

/// The memory that a run's workers have: see [`PipelineSettings::available_memory`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AvailableMemory {
    /// For each worker the name of what holds its tensors, and its bytes, if known.
    of_workers: Vec<(String, Option<u64>)>,
}

impl AvailableMemory {
    /// The memory of each device, given what each worker needs.
    #[must_use]
    pub fn devices(&self, workers: &[MemoryUse]) -> Vec<DeviceMemory> {
        let mut devices = BTreeMap::<&str, DeviceMemory>::new();
        for ((name, has), memory) in self.of_workers.iter().zip(workers) {
            let device = devices.entry(name).or_insert_with(|| DeviceMemory {
                device: name.clone(),
                needs: 0,
                has: *has,
            });
            device.needs = device.needs.saturating_add(memory.total());
        }
        devices.into_values().collect()
    }

    /// Bytes that each worker has, if known: workers on one device share its memory evenly.
    #[must_use]
    pub fn shares(&self) -> Vec<Option<u64>> {
        let share = |(name, has): &(String, Option<u64>)| {
            let sharing = self.of_workers.iter().filter(|(other, _)| other == name);
            has.map(|bytes| bytes / sharing.count().max(1) as u64)
        };
        self.of_workers.iter().map(share).collect()
    }

    /// Checks that the run fits, as far as that can be predicted.
    ///
    /// # Errors
    ///
    /// If a device has less than its workers need.
    pub fn check(&self, workers: &[MemoryUse]) -> Result<(), TrainError> {
        for DeviceMemory { device, needs, has } in self.devices(workers) {
            if let Some(has) = has.filter(|&has| needs > has) {
                return Err(TrainError::TooLarge { device, needs, has });
            }
        }
        Ok(())
    }
}

impl PipelineSettings {
    /// The memory that the workers have. Each process asks its own devices; processes of a host share its
    /// main memory.
    ///
    /// A device has what `device-memory` says. Without it, the CPU and software adapters have what
    /// is free, a CUDA device has all its memory, and other devices' memory is unknown.
    ///
    /// ```
    /// use stovepipe_plan::MemoryUse;
    /// use stovepipe_train::{PipelineSettings, Processes};
    ///
    /// let devices = ["cpu", "cpu:threads=2"].map(str::to_owned).to_vec();
    /// let settings = PipelineSettings { devices, device_memory: vec![1000], ..Default::default() };
    /// let available = settings.available_memory(&Processes::default())?;
    /// // Both workers are on the CPU.
    /// assert_eq!(available.shares(), [Some(500); 2]);
    /// let memory = [MemoryUse { activations: 600, ..Default::default() }; 2];
    /// assert_eq!(available.devices(&memory)[0].needs, 1200);
    /// assert!(available.check(&memory).is_err());
    /// # Ok::<(), stovepipe_pipeline::error::ProcessError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If another process has ended.
    pub fn available_memory(&self, processes: &Processes) -> Result<AvailableMemory, ProcessError> {
        let is_several = processes.size() > 1;
        let is_own = |worker: usize| !is_several || self.process_of(worker) == processes.rank();
        let own = (0..self.workers()).filter(|&worker| is_own(worker));
        let own: Vec<_> = own.map(|worker| (worker, self.memory_of(worker))).collect();
        let has_hosts = processes.are_on_several_hosts();
        let mut of_workers = vec![(MAIN.to_owned(), None); self.workers()];
        for (rank, own) in processes.gather(own)?.into_iter().enumerate() {
            for (worker, (name, has)) in own {
                let is_named = name == MAIN && has_hosts;
                let host = is_named.then(|| format!("{name} of {}", processes.host(rank)));
                of_workers[worker] = (host.unwrap_or(name), has);
            }
        }
        // What is free may change while the processes ask.
        let least = |name: &str| {
            let same = of_workers.iter().filter(|(other, _)| other == name);
            same.filter_map(|(_, has)| *has).min()
        };
        let of_workers = of_workers
            .iter()
            .map(|(name, _)| (name.clone(), least(name)));
        Ok(AvailableMemory {
            of_workers: of_workers.collect(),
        })
    }

    /// Sets a worker for each device of a machine, with the memory from the machine's file.
    ///
    /// ```
    /// use stovepipe_plan::Machine;
    /// use stovepipe_train::{PipelineSettings, Processes};
    ///
    /// let machine = "[[device]]\nname = 'cpu'\nmemory = 1000\n".repeat(3);
    /// let mut settings = PipelineSettings::default();
    /// settings.run_on(&Machine::from_toml(&machine)?);
    /// assert_eq!(settings.stages, 3);
    /// let available = settings.available_memory(&Processes::default())?;
    /// assert_eq!(available.shares(), [Some(1000); 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_on(&mut self, machine: &Machine) {
        let devices = &machine.devices;
        // A machine's file gives memory by worker, these settings by device.
        let memory_of = |device: &DeviceSpec| {
            let same = holder(&device.name);
            let sharing = devices.iter().filter(|other| holder(&other.name) == same);
            sharing.map(|other| other.memory).sum::<Option<u64>>()
        };
        let memory: Option<Vec<_>> = devices.iter().map(memory_of).collect();
        self.stages = devices.len();
        self.replicas = vec![1];
        self.shares = Vec::new();
        self.devices = devices.iter().map(|device| device.name.clone()).collect();
        self.device_memory = memory.unwrap_or_default();
    }

    /// The name of the memory that holds a worker's tensors, and its bytes, if known.
    fn memory_of(&self, worker: usize) -> (String, Option<u64>) {
        let name = self.device_of(worker);
        let holder = holder(name);
        let given = (self.device_memory.get(worker)).or(self.device_memory.first());
        if let Some(&given) = given {
            return (holder, Some(given));
        }
        if holder == MAIN {
            return (holder, free_memory());
        }
        // A device that is not available is an error later, when it is used.
        let device = name.parse::<NamedDevice>().ok();
        let facts = device.and_then(|device| device_facts(&device).ok());
        match facts.unwrap_or_default() {
            facts if facts.software => (MAIN.to_owned(), free_memory()),
            facts => (holder, facts.memory),
        }
    }

    fn process_of(&self, worker: usize) -> usize {
        let device = self.device_of(worker).parse::<NamedDevice>();
        device.map_or(0, |device| device.process)
    }

    /// The name of a worker's device.
    fn device_of(&self, worker: usize) -> &str {
        let name = self.devices.get(worker).or(self.devices.first());
        name.map_or("", String::as_str)
    }
}

/// The memory that holds a device's tensors: the device's own, or main memory. One device may have
/// several names.
fn holder(name: &str) -> String {
    match name.parse::<NamedDevice>() {
        Ok(device) if device.is_cpu() => MAIN.to_owned(),
        Ok(device) => device.name,
        Err(_) => name.trim().to_owned(),
    }
}

impl TrainSettings {
    /// What training keeps for each parameter: optimizer state, an average, accumulated gradients.
    ///
    /// ```
    /// use stovepipe_pipeline::measure::OptimizerState;
    /// use stovepipe_train::TrainSettings;
    ///
    /// assert_eq!(TrainSettings::default().optimizer_state(), OptimizerState::new(2)); // AdamW
    /// ```
    #[must_use]
    pub fn optimizer_state(&self) -> OptimizerState {
        let of_optimizer = match self.optimizer {
            OptimizerSetting::Adam | OptimizerSetting::AdamW => 2,
            OptimizerSetting::RmsProp => 1 + u8::from(self.momentum > 0.0),
            OptimizerSetting::Sgd => u8::from(self.momentum > 0.0),
        };
        let states = of_optimizer + u8::from(self.ema > 0.0);
        let is_offloaded = self.offload == OffloadSetting::Optimizer;
        OptimizerState {
            on_device: states * u8::from(!is_offloaded),
            offloaded: states * u8::from(is_offloaded),
            offloads_gradients: is_offloaded,
            accumulates: self.accumulate > 1,
        }
    }
}
