//! Chapters 8 and 9: a training run that writes files, can be stopped, and resumes.

use std::path::Path;

use burn::tensor::Device;
use stovepipe::{
    prelude::*,
    train::{Data, Progress, RunFolder, Task, TrainSettings, Trainer},
};
use stovepipe_digits::{DigitBatcher, Digits};
use stovepipe_report::Report;

use crate::{
    Failure,
    model::{Model, digits},
};

pub fn main(path: &Path, stages: usize) -> Result<(), Failure> {
    let device = Device::flex();
    let layers = Model::new(&device).into_layers();
    let (sample, _) = digits(16, &device)?;
    let pipeline = Pipeline::auto(layers, vec![device; stages], sample)?.build()?;
    let stop = pipeline.stop_handle();
    ctrlc::set_handler(move || stop.stop())?; // Ctrl-C stops the training after the current step

    let settings = TrainSettings {
        epochs: 6,
        save_every: 10, // a checkpoint every ten mini-batches, and at the end of each epoch
        ..TrainSettings::default()
    };
    let data = Data::new(Digits::train()?, Digits::test()?, DigitBatcher);
    let folder = RunFolder::resume(path)?; // starts a run, or resumes it
    folder.write_toml("config.toml", &settings)?;
    let mut trainer = Trainer::new(pipeline, Task::classification(&settings), settings)?;
    let resumed = trainer.resume(&folder)?;
    if let Some(checkpoint) = resumed.checkpoint {
        println!("resumes from {checkpoint}");
    }
    let summary = trainer.run(&data, &folder, Progress::new)?;
    println!("after {} of 6 epochs: {}", summary.epochs, summary.test);

    let page = Report::read(&folder.file(""))?.to_html();
    folder.write("report.html", page.as_bytes())?;
    println!("see {}", folder.finish()?.display());
    Ok(())
}
