//! A network and its training.

use std::fmt;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use stovepipe::{
    pipeline::count_parameters,
    prelude::{GPipe, Recompute, Schedule, Scheduler},
    train::{TrainSettings, settings::OptimizerSetting},
};
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig};

use crate::Failure;

const CLASSES: usize = 1000;

/// AmoebaNet-D(L, D) for ImageNet's classes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// L, the normal cells.
    pub layers: usize,
    /// D, the filters of the first cell.
    pub filters: usize,
}

impl Network {
    /// The layers; nothing is allocated on the device yet.
    pub fn init(self, device: &Device) -> Result<Vec<AmoebaLayer>, Failure> {
        Ok(AmoebaNetDConfig::new(self.layers, self.filters, CLASSES).init(device)?)
    }

    pub fn parameters(self) -> Result<usize, Failure> {
        let layers = self.init(&Device::flex())?;
        Ok(layers.iter().map(count_parameters).sum())
    }

    pub fn with_filters(self, filters: usize) -> Self {
        Self { filters, ..self }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {})", self.layers, self.filters)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// The whole mini-batch at once on one device, all activations kept.
    Naive,
    /// GPipe on several devices: a micro-batch for each sample, and everything but the inputs of
    /// stages recomputed.
    Pipeline(usize),
}

impl Strategy {
    pub fn devices(self) -> usize {
        match self {
            Self::Naive => 1,
            Self::Pipeline(devices) => devices,
        }
    }

    pub fn recompute(self) -> Recompute {
        match self {
            Self::Naive => Recompute::Never,
            Self::Pipeline(_) => Recompute::Always,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Naive => write!(f, "naive-1"),
            Self::Pipeline(devices) => write!(f, "pipeline-{devices}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageBatch {
    pub side: usize,
    pub count: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FootprintCase {
    pub network: Network,
    pub images: ImageBatch,
    pub strategy: Strategy,
    pub optimizer: OptimizerSetting,
}

impl FootprintCase {
    pub fn micro_batches(&self) -> usize {
        match self.strategy {
            Strategy::Naive => 1,
            Strategy::Pipeline(_) => self.images.count,
        }
    }

    pub fn micro_batch(&self) -> usize {
        self.images.count / self.micro_batches()
    }

    pub fn schedule(&self) -> Result<Schedule, Failure> {
        Ok(GPipe.schedule(self.strategy.devices(), self.micro_batches())?)
    }

    /// The part of AmoebaNet's training recipe that affects memory.
    pub fn settings(&self) -> TrainSettings {
        TrainSettings {
            optimizer: self.optimizer,
            epsilon: 1.0,
            weight_decay: 4e-5,
            ..TrainSettings::default()
        }
    }
}
