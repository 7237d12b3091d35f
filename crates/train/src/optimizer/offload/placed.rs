//! The optimizer and the averages of a training, where the settings have them.

use std::{fs, io, path::Path};

use burn::tensor::Device;
use stovepipe_pipeline::{Layer, NamedDevice, Pipeline, Stage, parameter_bytes};

use super::{
    average::OffloadedAverage,
    mover::Mover,
    rate::store_rate,
    storage::{HostMemory, Storage},
};
use crate::{
    error::TrainError,
    optimizer::{Averages, StagedOptimizer, WeightAverage, groups},
    processes::Processes,
    settings::{HOST, OffloadSetting, TrainSettings, free_memory},
};

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
    fn offloads_to_host(&self) -> bool {
        self.offload_to == Path::new(HOST)
    }

    /// The optimizer for a pipeline.
    pub(crate) fn optimizer<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
    ) -> Result<StagedOptimizer, TrainError> {
        groups::check(&self.lr_of, pipeline)?;
        let stages = pipeline.stages();
        let optimizer = StagedOptimizer::new(self, stages.len());
        if self.offload == OffloadSetting::None {
            return Ok(optimizer);
        }
        let processes = Processes::of(pipeline);
        let own = stages
            .iter()
            .filter(|stage| is_own(stage, processes.rank()));
        let own = own.flat_map(|stage| &pipeline.layers()[stage.layers.clone()]);
        let trained = own.map(|layer| parameter_bytes(layer)[1]).sum();
        let offloaded = (self.check_host(trained, free_memory()))
            .and_then(|()| self.offloaded(optimizer, &stages, processes.rank()));
        processes.agree(offloaded)
    }

    /// Checks that what is kept off the devices, of so many bytes of trained parameters, fits into `free` bytes, if
    /// it lies in the memory of the host.
    fn check_host(&self, trained: u64, free: Option<u64>) -> Result<(), TrainError> {
        let state = self.optimizer_state();
        let of_gradients = u64::from(state.offloads_gradients) * (1 + u64::from(state.accumulates));
        let numbers = u64::from(state.offloaded) + of_gradients;
        let needs = trained.saturating_mul(numbers);
        match free.filter(|&has| self.offloads_to_host() && needs > has) {
            Some(has) => Err(TrainError::HostTooSmall { needs, has }),
            None => Ok(()),
        }
    }

    /// With the states of the stages that this process updates elsewhere.
    fn offloaded(
        &self,
        optimizer: StagedOptimizer,
        stages: &[Stage],
        rank: usize,
    ) -> Result<StagedOptimizer, TrainError> {
        let own = stages.iter().filter(|stage| is_own(stage, rank));
        self.check_offload(own.map(|stage| NamedDevice::from(stage.device.clone())))?;
        let storage = |stage: &Stage| is_own(stage, rank).then(|| self.storage()).transpose();
        let offloaded = optimizer.offload(stages, storage);
        offloaded.map_err(TrainError::file(&self.offload_to))
    }

    /// Averages of a pipeline's weights, if they are asked for.
    pub(crate) fn averages<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
    ) -> Result<Option<Averages<L>>, TrainError> {
        if self.ema == 0.0 {
            return Ok(None);
        }
        if self.offload == OffloadSetting::None {
            let average = WeightAverage::new(pipeline, self.ema);
            return Ok(Some(Averages::OnDevice(average)));
        }
        let processes = Processes::of(pipeline);
        let mover = |stage: &Stage| {
            let storage = is_own(stage, processes.rank()).then(|| self.storage());
            let storage = storage.transpose()?;
            let mover = storage.map(|storage| Mover::new(storage, stage.device.clone()));
            mover.transpose()
        };
        let movers = pipeline
            .stages()
            .iter()
            .map(mover)
            .collect::<io::Result<_>>();
        let begun = movers.map_err(TrainError::file(&self.offload_to));
        let begun = begun.and_then(|movers| Ok(OffloadedAverage::new(movers, pipeline, self.ema)?));
        processes.agree(begun).map(Averages::Offloaded).map(Some)
    }

    /// Where a stage has what it keeps elsewhere.
    fn storage(&self) -> io::Result<Box<dyn Storage>> {
        if self.offloads_to_host() {
            return Ok(Box::new(HostMemory::default()));
        }
        // Nobody else sees this file, and the system removes it when the program ends, however it does.
        fs::create_dir_all(&self.offload_to)?;
        Ok(Box::new(tempfile::tempfile_in(&self.offload_to)?))
    }

    /// The bytes a second to and from what lies off each worker's device: of the slowest device of this process, which
    /// has this rank. Workers share a disk. `None` if nothing lies elsewhere.
    ///
    /// ```
    /// use stovepipe_train::{TrainSettings, settings::OffloadSetting};
    ///
    /// let mut settings = TrainSettings::default();
    /// assert_eq!(settings.store_rate(&["cpu".parse()?], 0)?, None);
    /// settings.offload = OffloadSetting::Optimizer;
    /// settings.offload_to = std::env::temp_dir();
    /// assert!(settings.store_rate(&["cpu".parse()?], 0)? > Some(0.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If it cannot be written or read.
    pub fn store_rate(
        &self,
        devices: &[NamedDevice],
        rank: usize,
    ) -> Result<Option<f64>, TrainError> {
        if self.offload == OffloadSetting::None {
            return Ok(None);
        }
        self.check_offload(devices.iter().cloned())?;
        let sharing = match self.offloads_to_host() {
            true => 1,
            false => devices.len(),
        };
        let mut known: Vec<&Device> = Vec::new();
        let mut slowest: Option<f64> = None;
        for NamedDevice { device, .. } in devices.iter().filter(|own| own.process == rank) {
            if !known.contains(&device) {
                known.push(device);
                let storage = self.storage().map_err(TrainError::file(&self.offload_to))?;
                let rate = store_rate(storage, device)? / sharing as f64;
                slowest = Some(slowest.map_or(rate, |slowest| slowest.min(rate)));
            }
        }
        Ok(slowest)
    }
}

/// Whether the process of this rank updates a stage.
fn is_own(stage: &Stage, rank: usize) -> bool {
    stage.processes.contains(&rank)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// AdamW's two states and the gradient of each parameter.
    #[test]
    fn what_is_kept_on_the_host_has_room_there() {
        let kept = |folder: &str, free| {
            let settings = TrainSettings {
                offload: OffloadSetting::Optimizer,
                offload_to: folder.into(),
                ..TrainSettings::default()
            };
            settings.check_host(1 << 20, free)
        };
        for free in [None, Some(3 << 20)] {
            assert!(kept(HOST, free).is_ok());
        }
        assert!(kept("states", Some(0)).is_ok());
        assert!(kept(HOST, Some((3 << 20) - 1)).is_err());
        let error = kept(HOST, Some(2 << 20)).unwrap_err().to_string();
        let says =
            "takes 3.0 MiB of the memory of the host, but only 2.0 MiB are free: name a folder";
        assert!(error.contains(says), "{error}");
    }
}
