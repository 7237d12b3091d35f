//! A model that is trained in stages: which arm of a spiral is a point on?

pub mod data;
pub mod model;

use std::error::Error;

use burn::tensor::Tensor;
use stovepipe::prelude::*;
use stovepipe::train::{Data, Progress, RunFolder, Summary, Task, TrainSettings, Trainer};

use crate::{
    data::{PointBatcher, spirals},
    model::Net,
};

/// Trains on these devices, each of which has a stage, and writes the run to a folder.
pub fn train(devices: Vec<NamedDevice>, folder: &RunFolder) -> Result<Summary, Box<dyn Error>> {
    let device = devices[0].device.clone();
    let pipeline = Pipeline::auto(
        Net::new(&device).into_layers(),
        devices,
        Tensor::zeros([64, 2], &device), // a mini-batch, to measure the layers
    )?
    .micro_batches(4)
    .build()?;
    let settings = TrainSettings {
        epochs: 15,
        batch_size: 64,
        ..TrainSettings::default()
    };
    let task = Task::classification(&settings);
    let data = Data::new(spirals(0, 1500), spirals(1, 300), PointBatcher);
    let mut trainer = Trainer::new(pipeline, task, settings)?;
    Ok(trainer.run(&data, folder, Progress::new)?)
}
