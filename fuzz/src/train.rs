//! Weights, the state in a checkpoint, and the settings of a plan.

use serde::Deserialize;
use stovepipe_train::{
    PipelineSettings, TrainSettings, Weights, checkpoint::Checkpoint, example::Dense,
};

use super::{
    files::{in_folder, parts},
    input::text,
};

/// Weights of any format can be read one by one, and compared with a model. An error names the file.
pub fn weights(bytes: &[u8]) {
    in_folder(&[("weights", bytes)], |folder| {
        let path = folder.join("weights");
        let weights = match Weights::open(&path) {
            Ok(weights) => weights,
            Err(error) => {
                let path = path.display().to_string();
                assert!(error.to_string().starts_with(&path), "{error}");
                return;
            }
        };
        for name in weights.names() {
            assert!(weights.shape(name).is_some());
            // Reads the numbers.
            let _ = weights.differ(&[name.to_owned(), name.to_owned()]);
        }
        let _ = weights.check(&[Dense::new(3, 2)]);
    });
}

/// The state of a checkpoint, and its checksums after it: both are read, or an error says what is wrong. No other file is
/// read.
pub fn standing(bytes: &[u8]) {
    let [state, sums] = parts(bytes);
    let name = "epoch-0001-batch-0000002";
    let files = [
        (&*format!("{name}/standing.toml"), state),
        (&*format!("{name}/SHA256SUMS"), sums),
    ];
    in_folder(&files, |folder| {
        let checkpoint = Checkpoint::at(&folder.join(name)).unwrap();
        if let Err(error) = checkpoint.check() {
            assert!(error.to_string().contains(name), "{error}");
        }
        let limit = checkpoint.limit(&TrainSettings::default());
        match checkpoint.data() {
            Ok(data) => assert!(checkpoint.check_data(&data).is_ok()),
            Err(_) => assert!(limit.is_err()),
        }
    });
}

/// What `train --plan` reads. The program's own type has fewer settings of the training.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    pipeline: PipelineSettings,
    training: TrainSettings,
    #[serde(default, rename = "forecast")]
    _forecast: toml::Table,
}

/// The pipeline of a plan is the same when it is written and read again, and can be checked.
pub fn plan(bytes: &[u8]) {
    text(bytes, |text| {
        let Ok(plan) = toml::from_str::<Plan>(text) else {
            return;
        };
        let Plan {
            mut pipeline,
            training,
            ..
        } = plan;
        // TOML has no numbers above 2⁶³ - 1.
        if let Ok(text) = toml::to_string(&pipeline) {
            assert_eq!(toml::from_str(&text).as_ref(), Ok(&pipeline));
        }
        let is_trained = training.check().is_ok();
        if pipeline.check(9).is_err() {
            return;
        }
        // Schedules of more take long.
        if is_trained && pipeline.micro_batches <= 64 {
            let _ = pipeline.check_batches(training.batch_size, 1000);
        }
        if pipeline.spread(2).is_ok() {
            assert_eq!(pipeline.devices.len(), pipeline.workers());
        }
    });
}
