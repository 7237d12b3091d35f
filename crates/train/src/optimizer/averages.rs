//! The averages of a training, on the devices or off them.

use std::path::Path;

use burn::store::burn_pack;
use stovepipe_pipeline::{Layer, Pipeline};

use super::{average::WeightAverage, offload::OffloadedAverage};
use crate::{error::TrainError, processes::Processes, weights::Base};

/// Moving averages of a pipeline's weights.
pub(crate) enum Averages<L: Layer> {
    OnDevice(WeightAverage<L>),
    Offloaded(OffloadedAverage),
}

/// Lists the tensors of this process.
pub(crate) type List<'a> = Box<dyn Fn() -> Vec<burn_pack::Tensor> + 'a>;

impl<L: Layer> Averages<L> {
    /// Moves towards the weights of the pipeline. All processes call it.
    pub(crate) fn update(&mut self, pipeline: &Pipeline<L>) -> Result<(), TrainError> {
        match self {
            Self::OnDevice(average) => Ok(average.update(pipeline)?),
            Self::Offloaded(average) => {
                pipeline.share_parameters()?; // else this process has tied ones of before the update
                let updated = average.update(pipeline);
                Processes::of(pipeline).agree(updated.map_err(TrainError::from))
            }
        }
    }

    pub(crate) fn updates(&self) -> u64 {
        match self {
            Self::OnDevice(average) => average.updates,
            Self::Offloaded(average) => average.updates(),
        }
    }

    /// Restores averages from a file, after this many updates. What lies off the devices comes by way of the pipeline,
    /// whose weights are to be loaded next.
    pub(crate) fn restore(
        &mut self,
        pipeline: &mut Pipeline<L>,
        path: &Path,
        (base, updates): (&Base, u64),
    ) -> Result<(), TrainError> {
        match self {
            Self::OnDevice(average) => {
                base.load_into(&mut average.pipeline, path)?;
                average.updates = updates;
                Ok(())
            }
            Self::Offloaded(average) => {
                base.load_into(pipeline, path)?;
                let begun = average.begin(pipeline, updates);
                Processes::of(pipeline).agree(begun.map_err(TrainError::from))
            }
        }
    }

    /// The tensors of their file, as of that of the pipeline.
    pub(crate) fn tensors<'a>(
        &'a self,
        pipeline: &'a Pipeline<L>,
        base: &'a Base,
    ) -> Result<List<'a>, TrainError> {
        match self {
            Self::OnDevice(average) => Ok(Box::new(base.tensors(&average.pipeline)?)),
            Self::Offloaded(average) => {
                let of_pipeline = base.tensors(pipeline)?;
                Ok(Box::new(move || average.tensors(of_pipeline())))
            }
        }
    }
}
