//! The optimizer of a training, with its states where the settings have them.

use std::fs;

use stovepipe_pipeline::{Layer, NamedDevice, Pipeline, Stage};

use super::{offload::HostMemory, offload_error::OffloadError, staged::StagedOptimizer};
use crate::{
    error::TrainError,
    processes::Processes,
    settings::{OffloadSetting, TrainSettings},
};

impl TrainSettings {
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
        let processes = Processes::of(pipeline);
        let offloaded = self.offloaded(optimizer, &stages, processes.rank());
        processes.agree(offloaded)
    }

    /// With the states of the stages that this process updates elsewhere.
    fn offloaded(
        &self,
        optimizer: StagedOptimizer,
        stages: &[Stage],
        rank: usize,
    ) -> Result<StagedOptimizer, TrainError> {
        let is_own = |stage: &Stage| stage.processes.contains(&rank);
        let own = stages.iter().filter(|stage| is_own(stage));
        self.check_offload(own.map(|stage| NamedDevice::from(stage.device.clone())))?;
        if self.offloads_to_host() {
            let memory = |stage: &Stage| is_own(stage).then(HostMemory::default);
            let offloaded = optimizer.offload(stages, |stage| Ok(memory(stage)));
            let what = "opened";
            return Ok(offloaded.map_err(|source| OffloadError::Storage { what, source })?);
        }
        // Nobody else sees these files, and the system removes them when the program ends, however it does.
        let folder = &self.offload_to;
        fs::create_dir_all(folder).map_err(TrainError::file(folder))?;
        let file = || tempfile::tempfile_in(folder);
        let offloaded = optimizer.offload(stages, |stage| is_own(stage).then(file).transpose());
        offloaded.map_err(TrainError::file(folder))
    }
}
