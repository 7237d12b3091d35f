//! Trainings that end before their end, and go on.

use std::{cell::Cell, path::PathBuf};

use stovepipe_pipeline::{KeyedRng, nn::Dropout};

use super::*;

/// A layer with all that a training has besides parameters: running statistics, and random numbers.
#[derive(Module, Debug)]
pub struct Noisy {
    pub dense: Dense,
    pub dropout: Dropout,
}

#[layer]
impl Noisy {
    fn forward(&self, x: Tensor<2>, rng: &mut KeyedRng) -> Tensor<2> {
        let y = self.dense.forward(x);
        if self.dense.norm.is_none() {
            return y;
        }
        self.dropout.forward(y, rng)
    }
}

fn noisy(stages: usize) -> Pipeline<Noisy> {
    noisy_of(layers(), stages)
}

fn noisy_of(layers: Vec<Dense>, stages: usize) -> Pipeline<Noisy> {
    let noisy = layers.into_iter().map(|dense| Noisy {
        dense,
        dropout: Dropout::new(0.2),
    });
    let settings = PipelineSettings {
        stages,
        balance: BalanceSetting::Even,
        ..PipelineSettings::default()
    };
    let builder = settings.builder(noisy.collect(), sample).unwrap();
    builder.seed(3).build().unwrap()
}

/// Data of which no more can be loaded after so many batches: what ends a training from outside.
pub struct Ending {
    pub data: Data<Tensor<2>, Tensor<1, Int>>,
    pub left: Cell<usize>,
}

impl Ending {
    pub fn after(batches: usize) -> Self {
        let (data, left) = (data(610, 200), Cell::new(batches));
        Self { data, left }
    }
}

impl Source<Tensor<2>, Tensor<1, Int>> for Ending {
    fn training_samples(&self) -> usize {
        self.data.training_samples()
    }

    fn test_samples(&self) -> usize {
        self.data.test_samples()
    }

    // Not `train_from`: what is trained already is loaded and left out.
    fn train(&self, pass: Pass) -> Batches<Tensor<2>, Tensor<1, Int>> {
        let left = self.left.get();
        // The next pass has what this one leaves, as long as all of this one is wanted.
        self.left.set(left.saturating_sub(13));
        let loaded = self.data.train(pass).enumerate();
        Box::new(loaded.map(move |(number, batch)| {
            if number < left {
                batch
            } else {
                Err(TrainError::data("the end"))
            }
        }))
    }

    fn test(&self, batch_size: usize) -> Batches<Tensor<2>, Tensor<1, Int>> {
        self.data.test(batch_size)
    }
}

/// Trains in `folder` until the data end. Returns what the training went on from.
pub fn train(
    pipeline: Pipeline<Noisy>,
    settings: &TrainSettings,
    data: &Ending,
    path: &Path,
) -> (Resumed, Result<Summary, TrainError>) {
    let folder = RunFolder::resume(path).unwrap();
    let mut trainer = trainer(pipeline, settings.clone());
    let resumed = trainer.resume(&folder).unwrap();
    let summary = train_silently(&mut trainer, data, &folder);
    if summary.is_ok() {
        folder.finish().unwrap();
    }
    (resumed, summary)
}

/// What a run leaves of its models and its metrics, but for times.
pub fn left_by(run: &Path) -> (Vec<Vec<u8>>, Vec<Value>) {
    let models = ["model.safetensors", "averaged.safetensors"]
        .iter()
        .filter_map(|name| fs::read(run.join(name)).ok())
        .collect();
    let metrics = fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let without_times = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        let fields = line.as_object_mut().unwrap();
        for time in ["samples_per_second", "bubble", "seconds"] {
            fields.remove(time).unwrap();
        }
        line
    };
    (models, metrics.lines().map(without_times).collect())
}

/// Three epochs of 13 mini-batches, ended again and again, under two, three and one stage: the same bits.
#[test]
fn a_training_goes_on_as_if_it_had_not_ended() {
    let directory = tempfile::tempdir().unwrap();
    for (number, (optimizer, accumulate, ema)) in [
        (OptimizerSetting::AdamW, 1, 0.9),
        (OptimizerSetting::RmsProp, 4, 0.0),
        (OptimizerSetting::Sgd, 3, 0.99),
        (OptimizerSetting::Adam, 1, 0.0),
    ]
    .into_iter()
    .enumerate()
    {
        let settings = TrainSettings {
            epochs: 3,
            accumulate,
            ema,
            clip: 0.5,
            save_every: 5,
            label_smoothing: 0.1,
            ..settings(optimizer, 3e-3)
        };
        let path = |name: &str| directory.path().join(format!("{name}-{number}"));
        let (resumed, summary) = train(noisy(2), &settings, &Ending::after(1000), &path("whole"));
        assert_eq!((resumed.checkpoint, summary.unwrap().epochs), (None, 3));

        let mut began = Vec::new();
        // The first ends before its first checkpoint.
        for (stages, batches) in [(2, 4), (2, 9), (3, 12), (1, 26), (2, 7), (4, 10)] {
            let ending = Ending::after(batches);
            let (resumed, summary) = train(noisy(stages), &settings, &ending, &path("broken"));
            assert!(matches!(summary, Err(TrainError::Data(_))), "{summary:?}");
            began.push((resumed.epochs, resumed.batches));
        }
        // Each goes on from a fifth mini-batch or the end of an epoch.
        assert_eq!(began, [(0, 0), (0, 0), (0, 5), (0, 10), (2, 0), (2, 4)]);
        let (resumed, summary) = train(noisy(3), &settings, &Ending::after(1000), &path("broken"));
        assert_eq!(resumed.damaged.len(), 0);
        assert_eq!(summary.unwrap().epochs, 3);
        let [whole, broken] = ["whole", "broken"].map(|name| left_by(&path(name)));
        assert!(whole.0 == broken.0, "{optimizer:?}: other weights");
        assert_eq!(whole.1, broken.1, "{optimizer:?}");
    }
}

/// A training that is over goes on if it is to be longer, and else is only tested again.
#[test]
fn a_training_that_is_over_can_be_longer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = |epochs| TrainSettings {
        epochs,
        // A rate that does not depend on how long the training is.
        decay: DecaySetting::None,
        ..settings(OptimizerSetting::Adam, 1e-2)
    };
    let data = Ending::after(1000);
    let (_, first) = train(noisy(2), &settings(2), &data, &path);
    let (resumed, again) = train(noisy(1), &settings(2), &data, &path);
    assert_eq!((resumed.epochs, resumed.batches), (2, 0));
    let (first, again) = (first.unwrap(), again.unwrap());
    assert_eq!(
        (first.test, first.train_loss),
        (again.test, again.train_loss)
    );
    let (_, longer) = train(noisy(2), &settings(3), &data, &path);
    let whole = directory.path().join("whole");
    let (_, at_once) = train(noisy(2), &settings(3), &data, &whole);
    assert_eq!(longer.unwrap().test, at_once.unwrap().test);
    assert_eq!(left_by(&path), left_by(&whole));
}

/// Stopped by its handle in the middle of a window, it goes on with the gradients that wait.
#[test]
fn a_stopped_training_goes_on() {
    let directory = tempfile::tempdir().unwrap();
    let settings = TrainSettings {
        epochs: 1,
        accumulate: 4,
        ..settings(OptimizerSetting::Adam, 1e-2)
    };
    let [whole, stopped] = ["whole", "stopped"].map(|name| directory.path().join(name));
    train(noisy(2), &settings, &Ending::after(1000), &whole)
        .1
        .unwrap();

    let pipeline = noisy(2);
    let stop = pipeline.stop_handle();
    let folder = RunFolder::create(&stopped).unwrap();
    let mut trainer = trainer(pipeline, settings.clone());
    let data = Stopping {
        data: data(610, 200),
        stop,
        at: 9,
    };
    let summary = train_silently(&mut trainer, &data, &folder);
    assert!(summary.unwrap().stopped);
    folder.finish().unwrap();
    // A run that was stopped has all that another has.
    assert!(stopped.join("model.safetensors").exists());
    let checkpoints = Checkpoints::of(&stopped).list().unwrap();
    assert_eq!(checkpoints.len(), 1);
    assert!(
        checkpoints[0]
            .model(false)
            .with_file_name("gradients.safetensors")
            .exists()
    );

    let (resumed, summary) = train(noisy(3), &settings, &Ending::after(1000), &stopped);
    assert_eq!((resumed.epochs, resumed.batches), (0, 10));
    assert!(!summary.unwrap().stopped);
    assert_eq!(left_by(&whole), left_by(&stopped));
}

/// Data that stop the training when so many batches have been asked for.
struct Stopping {
    data: Data<Tensor<2>, Tensor<1, Int>>,
    stop: StopHandle,
    at: usize,
}

impl Source<Tensor<2>, Tensor<1, Int>> for Stopping {
    fn training_samples(&self) -> usize {
        self.data.training_samples()
    }

    fn test_samples(&self) -> usize {
        self.data.test_samples()
    }

    fn train(&self, pass: Pass) -> Batches<Tensor<2>, Tensor<1, Int>> {
        let (stop, at) = (self.stop.clone(), self.at);
        Box::new(
            self.data
                .train(pass)
                .enumerate()
                .map(move |(number, batch)| {
                    // The trainer looks one batch ahead.
                    if number == at + 1 {
                        stop.stop();
                    }
                    batch
                }),
        )
    }

    fn test(&self, batch_size: usize) -> Batches<Tensor<2>, Tensor<1, Int>> {
        self.data.test(batch_size)
    }
}

fn three_epochs(path: &Path) -> TrainSettings {
    let settings = TrainSettings {
        epochs: 3,
        save_every: 6,
        ..settings(OptimizerSetting::AdamW, 1e-2)
    };
    let (_, summary) = train(noisy(2), &settings, &Ending::after(13 + 8), path);
    assert!(summary.is_err());
    settings
}

fn names(run: &Path) -> Vec<String> {
    let checkpoints = Checkpoints::of(run).list().unwrap();
    (checkpoints.iter())
        .map(|checkpoint| checkpoint.name().to_owned())
        .collect()
}

/// One bit in any of the files, a file that is too short, or none: the checkpoint before is taken.
#[test]
fn a_damaged_checkpoint_is_found_and_the_one_before_it_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = three_epochs(&path);
    let partial = RunFolder::find(&path).unwrap();
    let before = names(&partial);
    assert_eq!(
        before,
        ["epoch-0001-batch-0000000", "epoch-0001-batch-0000005"]
    );
    let newest = partial.join("checkpoints").join(&before[1]);
    let files: Vec<PathBuf> = fs::read_dir(&newest)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(files.len(), 5, "{files:?}");
    for file in &files {
        let content = fs::read(file).unwrap();
        for damage in [flipped, shortened, |_: &[u8]| None] {
            match damage(&content) {
                Some(damaged) => fs::write(file, damaged).unwrap(),
                None => fs::remove_file(file).unwrap(),
            }
            let folder = RunFolder::resume(&path).unwrap();
            let mut trainer = trainer(noisy(1), settings.clone());
            let resumed = trainer.resume(&folder).unwrap();
            assert_eq!(resumed.checkpoint.as_ref(), Some(&before[0]));
            let [damaged] = &resumed.damaged[..] else {
                panic!("{file:?}: {resumed:?}");
            };
            assert_eq!(damaged.path, newest.with_extension("damaged"));
            fs::rename(&damaged.path, &newest).unwrap();
            fs::write(file, &content).unwrap();
        }
    }
    let (resumed, summary) = train(noisy(2), &settings, &Ending::after(1000), &path);
    assert_eq!(resumed.checkpoint.as_ref(), Some(&before[1]));
    summary.unwrap();
}

fn flipped(content: &[u8]) -> Option<Vec<u8>> {
    let mut content = content.to_vec();
    let middle = content.len() / 2;
    content[middle] ^= 8;
    Some(content)
}

fn shortened(content: &[u8]) -> Option<Vec<u8>> {
    Some(content[..content.len() * 2 / 3].to_vec())
}

#[test]
fn a_checkpoint_of_another_training_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = three_epochs(&path);
    let error = |pipeline, settings| {
        let folder = RunFolder::resume(&path).unwrap();
        let mut trainer = trainer(pipeline, settings);
        trainer.resume(&folder).unwrap_err().to_string()
    };
    for (other, expected) in [
        (
            TrainSettings {
                seed: 7,
                ..settings.clone()
            },
            "seed 0, not 7",
        ),
        (
            TrainSettings {
                batch_size: 10,
                ..settings.clone()
            },
            "batch-size 50, not 10",
        ),
        (
            TrainSettings {
                accumulate: 2,
                ..settings.clone()
            },
            "accumulate 1, not 2",
        ),
        (
            TrainSettings {
                optimizer: OptimizerSetting::Sgd,
                ..settings.clone()
            },
            "optimizer adamw, not sgd",
        ),
        (
            TrainSettings {
                ema: 0.9,
                ..settings.clone()
            },
            "ema 0, not more than 0",
        ),
    ] {
        let error = error(noisy(2), other);
        assert!(error.contains(expected), "{error}");
    }
    let mut more = layers();
    more.insert(1, layers().swap_remove(1));
    let error = error(noisy_of(more, 2), settings.clone());
    assert!(error.contains("layers.3.dense.linear.weight"), "{error}");
    // Nothing of this has hurt it.
    train(noisy(2), &settings, &Ending::after(1000), &path)
        .1
        .unwrap();
}

/// What cannot go on stays as it was: the folder of a run that is over, and that of one that was killed.
#[test]
fn a_folder_that_nothing_was_written_to_is_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = TrainSettings {
        epochs: 1,
        ..settings(OptimizerSetting::Adam, 1e-2)
    };
    train(noisy(2), &settings, &Ending::after(1000), &path)
        .1
        .unwrap();
    let files = || {
        let entries = fs::read_dir(&path).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    let folder = RunFolder::resume(&path).unwrap();
    assert!(!path.exists());
    let other = TrainSettings {
        seed: 9,
        ..settings.clone()
    };
    let mut trainer = trainer(noisy(2), other);
    assert!(trainer.resume(&folder).is_err());
    drop(folder);
    assert_eq!(files(), before);

    let killed = directory.path().join("killed");
    let folder = RunFolder::create(&killed).unwrap();
    assert!(matches!(
        RunFolder::create(&killed),
        Err(TrainError::RunUnderWay(_))
    ));
    // A killed program does not clean up after itself, but its lock is gone.
    let there = folder.file("");
    fs::create_dir(there.with_extension("copy")).unwrap();
    drop(folder);
    fs::rename(there.with_extension("copy"), &there).unwrap();
    assert!(matches!(
        RunFolder::create(&killed),
        Err(TrainError::RunKilled(_))
    ));
    drop(RunFolder::resume(&killed).unwrap());
    assert!(RunFolder::find(&killed).is_none());
}

/// The newest are kept, and the best, which need not be among them.
#[test]
fn the_newest_and_the_best_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    for (keep_last, keep_best, expected) in [(1, 0, 1), (3, 0, 3), (1, 2, 2), (2, 100, 6)] {
        let path = directory.path().join(format!("{keep_last}-{keep_best}"));
        let settings = TrainSettings {
            epochs: 6,
            keep_last,
            keep_best,
            ..settings(OptimizerSetting::Adam, 3e-2)
        };
        train(noisy(2), &settings, &Ending::after(1000), &path)
            .1
            .unwrap();
        let kept = names(&path);
        assert!(kept.contains(&"epoch-0006-batch-0000000".to_owned()));
        let is_best_last = keep_best == 2 && kept.len() == 3;
        assert_eq!(kept.len(), expected + usize::from(is_best_last), "{kept:?}");
        if keep_best > 0 {
            let (_, metrics) = left_by(&path);
            let accuracy = |epoch: usize| metrics[epoch - 1]["test"]["accuracy"].as_f64().unwrap();
            let task = Task::classification(&settings);
            let best = Checkpoints::of(&path).best(&task).unwrap().unwrap();
            let best: usize = best.name()[6..10].parse().unwrap();
            assert!(
                (1..=6).all(|epoch| accuracy(epoch) <= accuracy(best)),
                "{metrics:?}"
            );
        }
    }
}

/// A file lies where the checkpoints should: the training goes on, or ends, as is said.
#[test]
fn a_checkpoint_that_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    for (number, on_save_error) in [SaveErrorSetting::Continue, SaveErrorSetting::Stop]
        .into_iter()
        .enumerate()
    {
        let settings = TrainSettings {
            epochs: 2,
            on_save_error,
            ..settings(OptimizerSetting::Adam, 1e-2)
        };
        let folder = RunFolder::create(&directory.path().join(number.to_string())).unwrap();
        folder.write("checkpoints", b"no folder").unwrap();
        let mut trainer = trainer(noisy(2), settings);
        let result = train_silently(&mut trainer, &data(610, 200), &folder);
        match on_save_error {
            SaveErrorSetting::Continue => assert_eq!(result.unwrap().epochs, 2),
            SaveErrorSetting::Stop => {
                let error = result.unwrap_err();
                assert!(matches!(error, TrainError::NotSaved(_)), "{error}");
            }
        }
    }
}

/// A parameter whose numbers cannot be had stands for those of a device that is lost.
#[test]
fn what_a_device_does_not_hand_over_is_not_saved() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.safetensors");
    let mut pipeline = pipeline(2);
    let change = |stage: usize, mut layers: Vec<Dense>, ()| {
        if stage == 1 {
            let lost = |_: &Device, _| panic!("the device is lost");
            let shape = layers[0].linear.weight.lazy_shape();
            let (id, device) = (layers[0].linear.weight.id, Device::flex());
            layers[0].linear.weight = Param::uninitialized(id, lost, device, true, shape);
        }
        (layers, ())
    };
    pipeline.change_stages(vec![(), ()], change).unwrap();
    let error = save_model(&pipeline, path).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: a device"), "{error}");
    assert!(error.contains("(the device is lost)"), "{error}");
}
