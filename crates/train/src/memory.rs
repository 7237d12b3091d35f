//! Whether a run fits its devices, said before it starts.

use std::collections::BTreeMap;

use stovepipe_pipeline::{Forecast, NamedDevice, OptimizerState, device_facts};
use sysinfo::{MemoryRefreshKind, RefreshKind, System};

use crate::{
    error::TrainError,
    settings::{OptimizerSetting, PipelineSettings, TrainSettings},
};

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
    /// use stovepipe_pipeline::Forecast;
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

    /// What each worker's device holds, as far as that is known, of those that no other worker shares.
    pub(crate) fn own_memory(&self) -> Vec<Option<u64>> {
        let all: Vec<_> = (0..self.stages)
            .map(|worker| self.memory_of(worker))
            .collect();
        let is_alone = |name: &str| all.iter().filter(|(other, _)| other == name).count() == 1;
        all.iter()
            .map(|(name, has)| has.filter(|_| is_alone(name)))
            .collect()
    }

    /// The name of what holds a worker's tensors, and how much that is, if it is known.
    fn memory_of(&self, worker: usize) -> (String, Option<u64>) {
        let name = self.devices.get(worker).or(self.devices.first());
        let name = name.map_or("", |name| name.trim());
        let given = self
            .device_memory
            .get(worker)
            .or(self.device_memory.first());
        // Workers on the CPU share its memory, whatever their threads.
        if name.starts_with("cpu") {
            return ("cpu".to_owned(), given.copied().or_else(free_memory));
        }
        if let Some(&given) = given {
            return (name.to_owned(), Some(given));
        }
        // One that cannot be opened is an error later on, when it is used.
        let device = name.parse::<NamedDevice>().ok();
        let facts = device.and_then(|device| device_facts(&device).ok());
        match facts.unwrap_or_default() {
            facts if facts.software => ("cpu".to_owned(), free_memory()),
            facts => (name.to_owned(), facts.memory),
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

impl TrainSettings {
    /// What training keeps of each parameter: the optimizer's numbers, an average, gradients that wait.
    ///
    /// ```
    /// use stovepipe_pipeline::OptimizerState;
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
