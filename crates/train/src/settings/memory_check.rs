//! Whether a run fits into its devices' memory.

use std::collections::BTreeMap;

use stovepipe_pipeline::{
    NamedDevice,
    device::device_facts,
    measure::{Forecast, OptimizerState},
};
use stovepipe_plan::{DeviceSpec, Machine};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use super::{
    pipeline::PipelineSettings,
    training::{OptimizerSetting, TrainSettings},
};
use crate::error::TrainError;

/// All workers on the CPU share its memory.
const MAIN: &str = "cpu";

/// The bytes of main memory that are available, if the system reports it.
///
/// ```
/// assert!(stovepipe_train::settings::free_memory().is_none_or(|bytes| bytes > 0));
/// ```
#[must_use]
pub fn free_memory() -> Option<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
    let free = System::new_with_specifics(memory).available_memory();
    Some(free).filter(|&bytes| bytes > 0)
}

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

impl PipelineSettings {
    /// The predicted memory of each device.
    ///
    /// A device has what `device-memory` says. Without it, the CPU and software adapters have what
    /// is free, a CUDA device has all its memory, and other devices' memory is unknown.
    ///
    /// ```
    /// use stovepipe_pipeline::measure::Forecast;
    /// use stovepipe_plan::MemoryUse;
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let settings = PipelineSettings { device_memory: vec![1000], ..Default::default() };
    /// let memory = vec![MemoryUse { activations: 600, ..Default::default() }; 2];
    /// let forecast = Forecast {
    ///     balance: vec![1, 1], step_time: 1.0, bubble: 0.0, utilisation: vec![1.0; 2], memory,
    ///     recomputed: 0.0,
    /// };
    /// // Both workers are on the CPU.
    /// assert_eq!(settings.device_memory(&forecast)[0].needs, 1200);
    /// assert!(settings.check_memory(&forecast).is_err());
    /// ```
    #[must_use]
    pub fn device_memory(&self, forecast: &Forecast) -> Vec<DeviceMemory> {
        let mut devices = BTreeMap::<String, DeviceMemory>::new();
        for (worker, memory) in forecast.memory.iter().enumerate() {
            let (name, has) = self.memory_of(worker);
            let device = devices.entry(name).or_insert_with_key(|name| DeviceMemory {
                device: name.clone(),
                needs: 0,
                has,
            });
            device.needs = device.needs.saturating_add(memory.total());
        }
        devices.into_values().collect()
    }

    /// Bytes that each worker has, if known: workers on one device share its memory evenly.
    ///
    /// ```
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let devices = ["cpu", "cpu:threads=2"].map(str::to_owned).to_vec();
    /// let settings = PipelineSettings { devices, device_memory: vec![1000], ..Default::default() };
    /// assert_eq!(settings.memory_shares(), [Some(500); 2]);
    /// ```
    #[must_use]
    pub fn memory_shares(&self) -> Vec<Option<u64>> {
        let mut of_holders = BTreeMap::<String, (Option<u64>, u64)>::new();
        let mut holders = Vec::new();
        for (name, has) in (0..self.stages).map(|worker| self.memory_of(worker)) {
            of_holders.entry(name.clone()).or_insert((has, 0)).1 += 1;
            holders.push(name);
        }
        let share = |(has, sharing): (Option<u64>, u64)| has.map(|bytes| bytes / sharing);
        holders.iter().map(|name| share(of_holders[name])).collect()
    }

    /// Sets a worker for each device of a machine, with the memory from the machine's file.
    ///
    /// ```
    /// use stovepipe_plan::Machine;
    /// use stovepipe_train::PipelineSettings;
    ///
    /// let machine = "[[device]]\nname = 'cpu'\nmemory = 1000\n".repeat(3);
    /// let mut settings = PipelineSettings::default();
    /// settings.run_on(&Machine::from_toml(&machine)?);
    /// assert_eq!((settings.stages, settings.memory_shares()[0]), (3, Some(1000)));
    /// # Ok::<(), stovepipe_plan::MachineError>(())
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
        self.devices = devices.iter().map(|device| device.name.clone()).collect();
        self.device_memory = memory.unwrap_or_default();
    }

    /// The name of the memory that holds a worker's tensors, and its bytes, if known.
    fn memory_of(&self, worker: usize) -> (String, Option<u64>) {
        let name = self.devices.get(worker).or(self.devices.first());
        let name = name.map_or("", String::as_str);
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

    /// Checks that the run fits, as far as that can be predicted.
    ///
    /// # Errors
    ///
    /// If a device has less than its workers need.
    pub fn check_memory(&self, forecast: &Forecast) -> Result<(), TrainError> {
        for DeviceMemory { device, needs, has } in self.device_memory(forecast) {
            if let Some(has) = has.filter(|&has| needs > has) {
                return Err(TrainError::TooLarge { device, needs, has });
            }
        }
        Ok(())
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
    /// assert_eq!(TrainSettings::default().optimizer_state(), OptimizerState(2)); // AdamW
    /// ```
    #[must_use]
    pub fn optimizer_state(&self) -> OptimizerState {
        let of_optimizer = match self.optimizer {
            OptimizerSetting::Adam | OptimizerSetting::AdamW => 2,
            OptimizerSetting::RmsProp => 1 + u8::from(self.momentum > 0.0),
            OptimizerSetting::Sgd => u8::from(self.momentum > 0.0),
        };
        let average = u8::from(self.ema > 0.0);
        let accumulated = u8::from(self.accumulate > 1);
        OptimizerState(of_optimizer + average + accumulated)
    }
}
