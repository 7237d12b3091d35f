//! What lies off its device between updates.

use std::{io, path::Path};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use stovepipe_pipeline::NamedDevice;

use super::training::TrainSettings;
use crate::error::TrainError;

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
    /// If it would lie in the memory of the host, where that of a device is, or in a file that is no folder.
    pub fn check_offload(
        &self,
        devices: impl IntoIterator<Item = NamedDevice>,
    ) -> Result<(), TrainError> {
        let folder = &self.offload_to;
        if self.offload == OffloadSetting::None {
            return Ok(());
        }
        if !self.offloads_to_host() {
            let is_file = folder.exists() && !folder.is_dir();
            let error = is_file.then(|| io::ErrorKind::NotADirectory.into());
            return error.map_or(Ok(()), |error| Err(TrainError::file(folder)(error)));
        }
        match devices.into_iter().find(NamedDevice::is_cpu) {
            Some(device) => Err(TrainError::OffloadToHost(device.to_string())),
            None => Ok(()),
        }
    }

    /// Whether that lies in the memory of the host.
    pub(crate) fn offloads_to_host(&self) -> bool {
        self.offload_to == Path::new(HOST)
    }
}
