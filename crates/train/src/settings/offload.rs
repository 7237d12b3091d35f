//! What lies off its device between updates.

use std::{fs, path::Path};

use burn::tensor::Device;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::{Layer, NamedDevice, Pipeline};

use super::training::TrainSettings;
use crate::{
    error::TrainError,
    optimizer::{HostMemory, OffloadError, StagedOptimizer},
    processes::Processes,
};

/// The memory of the host, as `offload-to` writes it.
pub(super) const HOST: &str = "host";

/// What lies off its device between updates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum OffloadSetting {
    /// Nothing
    #[default]
    None,
    /// What the optimizer keeps of each parameter
    Optimizer,
}

impl TrainSettings {
    /// Checks that what these devices compute can lie where it is asked to.
    ///
    /// ```
    /// use stovepipe_train::{TrainSettings, settings::OffloadSetting};
    ///
    /// let settings = TrainSettings { offload: OffloadSetting::Optimizer, ..Default::default() };
    /// let error = settings.check_offload(["cpu".parse()?]).unwrap_err();
    /// assert!(error.to_string().ends_with("name a folder, such as --offload-to states"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it would lie in the memory of the host, where that of a device is.
    pub fn check_offload(
        &self,
        devices: impl IntoIterator<Item = NamedDevice>,
    ) -> Result<(), TrainError> {
        let is_moved = self.offload == OffloadSetting::None || !self.offloads_to_host();
        let mut devices = devices.into_iter();
        match devices.find(|device| !is_moved && device.is_cpu()) {
            Some(device) => Err(TrainError::OffloadToHost(device.to_string())),
            None => Ok(()),
        }
    }

    fn offloads_to_host(&self) -> bool {
        self.offload_to == Path::new(HOST)
    }

    /// The optimizer for a pipeline.
    pub(crate) fn optimizer<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
    ) -> Result<StagedOptimizer, TrainError> {
        let stages = pipeline.stages();
        let optimizer = StagedOptimizer::new(self, stages.len());
        if self.offload == OffloadSetting::None {
            return Ok(optimizer);
        }
        let named = |device: &Device| NamedDevice::from(device.clone());
        self.check_offload(stages.iter().map(|stage| named(&stage.device)))?;
        let rank = Processes::of(pipeline).rank();
        let is_own = |process: usize| process == rank;
        if self.offloads_to_host() {
            let memory = |process| is_own(process).then(HostMemory::default);
            let offloaded = optimizer.offload(&stages, |stage| Ok(memory(stage.process)));
            let what = "opened";
            return Ok(offloaded.map_err(|source| OffloadError::Storage { what, source })?);
        }
        // Nobody else sees these files, and the system removes them when the program ends, however it does.
        let folder = &self.offload_to;
        fs::create_dir_all(folder).map_err(TrainError::file(folder))?;
        let file = |process| {
            is_own(process)
                .then(|| tempfile::tempfile_in(folder))
                .transpose()
        };
        let offloaded = optimizer.offload(&stages, |stage| file(stage.process));
        offloaded.map_err(TrainError::file(folder))
    }
}
