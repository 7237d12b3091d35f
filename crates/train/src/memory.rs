//! Whether a run fits its devices, said before it starts.

use std::collections::BTreeMap;

use stovepipe_pipeline::{
    NamedDevice,
    device::device_facts,
    measure::{Forecast, OptimizerState},
};
use stovepipe_plan::{DeviceSpec, Machine};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use crate::{
    error::TrainError,
    settings::{OptimizerSetting, PipelineSettings, TrainSettings},
};

/// What workers on the CPU share, whatever their threads.
const MAIN: &str = "cpu";

/// The bytes of main memory that are free or can be made free, if the system says so.
///
/// ```
/// assert!(stovepipe_train::free_memory().is_none_or(|bytes| bytes > 0));
/// ```
#[must_use]
pub fn free_memory() -> Option<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::everything());
    let free = System::new_with_specifics(memory).available_memory();
    Some(free).filter(|&bytes| bytes > 0)
}

/// What a device has to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// The device's name.
    pub device: String,
    /// Bytes that all its workers need together.
    pub needs: u64,
    /// Bytes that there are, if that is known.
    pub has: Option<u64>,
}

impl PipelineSettings {
    /// What each device has to hold, as it is foretold.
    ///
    /// A device's memory is what `device-memory` says; of the CPU else what is free, which graphics adapters in
    /// software share, and of a CUDA device all it has. Of other devices it is not known.
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

    /// Bytes that each worker has, as far as that is known: workers on one device share what it holds evenly.
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

    /// A worker for each device of a machine, with the memory that the machine's file says.
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
        // A machine's memory is of workers, these settings' of devices.
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

    /// The name of what holds a worker's tensors, and how much that is, if it is known.
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
        // One that is not there or cannot be used is an error later on, when it is.
        let device = name.parse::<NamedDevice>().ok();
        let facts = device.and_then(|device| device_facts(&device).ok());
        match facts.unwrap_or_default() {
            facts if facts.software => (MAIN.to_owned(), free_memory()),
            facts => (holder, facts.memory),
        }
    }

    /// Makes sure that the run fits, as far as that can be foretold.
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

/// What holds a device's tensors: the device, or main memory. One device may have several names.
fn holder(name: &str) -> String {
    match name.parse::<NamedDevice>() {
        Ok(device) if device.is_cpu() => MAIN.to_owned(),
        Ok(device) => device.name,
        Err(_) => name.trim().to_owned(),
    }
}

impl TrainSettings {
    /// What training keeps of each parameter: the optimizer's numbers, an average, gradients that wait.
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
        let waiting = u8::from(self.accumulate > 1);
        OptimizerState(of_optimizer + average + waiting)
    }
}
