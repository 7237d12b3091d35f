//! Trainings that stop early and resume.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, SystemTime},
};

use stovepipe_pipeline::{Batch, KeyedRng, nn::Dropout};

use super::*;

/// A layer with running statistics and random numbers.
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
    noisy_of(layers(), &evenly(stages))
}

pub fn noisy_layers(layers: Vec<Dense>) -> Vec<Noisy> {
    let noisy = layers.into_iter().map(|dense| Noisy {
        dense,
        dropout: Dropout::new(0.2),
    });
    noisy.collect()
}

pub fn noisy_of(layers: Vec<Dense>, settings: &PipelineSettings) -> Pipeline<Noisy> {
    built(settings, noisy_layers(layers))
}

/// Data whose batches pass through a function: their number in the pass, and the batch.
pub struct Tapped<F> {
    data: Data<Tensor<2>, Tensor<1, Int>>,
    tap: F,
}

type Loaded = Result<Batch<Tensor<2>, Tensor<1, Int>>, TrainError>;

impl<F, G> Source<Tensor<2>, Tensor<1, Int>> for Tapped<F>
where
    F: Fn(EpochPass) -> G,
    G: FnMut(usize, Loaded) -> Loaded + 'static,
{
    fn training_samples(&self) -> usize {
        self.data.training_samples()
    }

    fn test_samples(&self) -> usize {
        self.data.test_samples()
    }

    // `train_from` is the default: it loads batches that are trained already, and drops them.
    fn train(&self, pass: EpochPass) -> Batches<Tensor<2>, Tensor<1, Int>> {
        let mut tap = (self.tap)(pass);
        let batches = self.data.train(pass).enumerate();
        Box::new(batches.map(move |(number, batch)| tap(number, batch)))
    }

    fn test(&self, batch_size: usize) -> Batches<Tensor<2>, Tensor<1, Int>> {
        self.data.test(batch_size)
    }
}

pub fn tapped<F, G>(data: Data<Tensor<2>, Tensor<1, Int>>, tap: F) -> Tapped<F>
where
    F: Fn(EpochPass) -> G,
    G: FnMut(usize, Loaded) -> Loaded + 'static,
{
    Tapped { data, tap }
}

/// Data that fail after so many batches: this ends a training from outside.
pub fn failing(
    data: Data<Tensor<2>, Tensor<1, Int>>,
    batches: usize,
) -> impl Source<Tensor<2>, Tensor<1, Int>> {
    let first = Cell::new(None);
    tapped(data, move |pass| {
        first.set(first.get().or(Some(pass.epoch)));
        // An epoch has 13 batches.
        let before = 13 * (pass.epoch - first.get().unwrap_or(0));
        let left = batches.saturating_sub(before);
        let failed = || Err(TrainError::data("the end"));
        move |number, batch| if number < left { batch } else { failed() }
    })
}

pub fn failing_after(batches: usize) -> impl Source<Tensor<2>, Tensor<1, Int>> {
    failing(usual_data(), batches)
}

/// Trains in `path` until the data fail. Returns where the training resumed.
pub fn train(
    pipeline: Pipeline<Noisy>,
    settings: &TrainSettings,
    data: &impl Source<Tensor<2>, Tensor<1, Int>>,
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

/// A run's models, and its metrics by epoch and by step, without what varies.
pub fn left_by(run: &Path) -> (Vec<Vec<u8>>, Vec<Value>) {
    let models = ["model.safetensors", "averaged.safetensors"].into_iter();
    let models = models.filter_map(|name| fs::read(run.join(name)).ok());
    let mut lines = ["metrics.jsonl", "steps.jsonl"]
        .map(|name| json_lines(&run.join(name)))
        .concat();
    for fields in lines.iter_mut().filter_map(Value::as_object_mut) {
        assert!(
            ["samples_per_second", "bubble"]
                .map(|name| fields.remove(name))
                .iter()
                .all(Option::is_some)
        );
        fields.retain(|name, _| name != "seconds" && name != "memory");
    }
    (models.collect(), lines)
}

/// Three epochs of 13 mini-batches, ended again and again, under two, three and one stage: the same bits.
#[test]
fn a_training_goes_on_as_if_it_had_not_ended() {
    let directory = tempfile::tempdir().unwrap();
    for (optimizer, accumulate, ema) in [
        (OptimizerSetting::AdamW, 1, 0.9),
        (OptimizerSetting::RmsProp, 4, 0.0),
        (OptimizerSetting::Sgd, 3, 0.99),
        (OptimizerSetting::Adam, 1, 0.0),
    ] {
        let settings = TrainSettings {
            accumulate,
            ema,
            clip: 0.5,
            save_every: 5,
            label_smoothing: 0.1,
            ..settings(optimizer, 3e-3, 3)
        };
        let path = |name: &str| directory.path().join(format!("{name}-{optimizer:?}"));
        let (resumed, summary) = train(noisy(2), &settings, &failing_after(1000), &path("whole"));
        assert_eq!((resumed.checkpoint, summary.unwrap().epochs), (None, 3));

        let mut began = Vec::new();
        // The first ends before its first checkpoint.
        for (stages, batches) in [(2, 4), (2, 9), (3, 12), (1, 26), (2, 7), (4, 10)] {
            let ending = failing_after(batches);
            let (resumed, summary) = train(noisy(stages), &settings, &ending, &path("broken"));
            assert_matches!(summary, Err(TrainError::Data(_)));
            began.push((resumed.epochs, resumed.batches));
        }
        // Each resumes from a fifth mini-batch or the end of an epoch.
        assert_eq!(began, [(0, 0), (0, 0), (0, 5), (0, 10), (2, 0), (2, 4)]);
        let (resumed, summary) = train(noisy(3), &settings, &failing_after(1000), &path("broken"));
        assert_eq!(resumed.damaged.len(), 0);
        assert_eq!(summary.unwrap().epochs, 3);
        let [whole, broken] = ["whole", "broken"].map(|name| left_by(&path(name)));
        assert!(whole.0 == broken.0, "{optimizer:?}: other weights");
        assert_eq!(whole.1, broken.1, "{optimizer:?}");
    }
}

/// A complete training resumes for more epochs; otherwise it is only tested again.
#[test]
fn a_training_that_is_over_can_be_longer() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = |epochs| TrainSettings {
        // A rate that does not depend on how long the training is.
        decay: DecaySetting::None,
        ..settings(OptimizerSetting::Adam, 1e-2, epochs)
    };
    let data = failing_after(1000);
    let (_, first) = train(noisy(2), &settings(2), &data, &path);
    let (resumed, again) = train(noisy(1), &settings(2), &data, &path);
    assert_eq!((resumed.epochs, resumed.batches), (2, 0));
    let results = |summary: Result<Summary, _>| summary.map(|it| (it.test, it.train_loss));
    assert_eq!(results(first).unwrap(), results(again).unwrap());
    let (_, longer) = train(noisy(2), &settings(3), &data, &path);
    let whole = directory.path().join("whole");
    let (_, at_once) = train(noisy(2), &settings(3), &data, &whole);
    assert_eq!(longer.unwrap().test, at_once.unwrap().test);
    assert_eq!(left_by(&path), left_by(&whole));
}

/// Stopped by its handle between two updates, it resumes with the accumulated gradients.
#[test]
fn a_stopped_training_resumes() {
    let directory = tempfile::tempdir().unwrap();
    let settings = TrainSettings {
        accumulate: 4,
        ..settings(OptimizerSetting::Adam, 1e-2, 1)
    };
    let [whole, stopped] = ["whole", "stopped"].map(|name| directory.path().join(name));
    train_whole(&settings, &whole);

    let pipeline = noisy(2);
    let stop = pipeline.stop_handle();
    let folder = RunFolder::create(&stopped).unwrap();
    let mut trainer = trainer(pipeline, settings.clone());
    let data = tapped(usual_data(), |_| {
        let stop = stop.clone();
        move |number, batch| {
            // The trainer looks one batch ahead.
            if number == 10 {
                stop.stop();
            }
            batch
        }
    });
    let summary = train_silently(&mut trainer, &data, &folder);
    assert!(summary.unwrap().stopped);
    folder.finish().unwrap();
    // A stopped run has all files.
    assert!(stopped.join("model.safetensors").exists());
    let checkpoints = Checkpoints::of(&stopped).list().unwrap();
    assert_eq!(checkpoints.len(), 1);
    let model = checkpoints[0].model(false);
    assert!(model.with_file_name("gradients.safetensors").exists());

    let (resumed, summary) = train(noisy(3), &settings, &failing_after(1000), &stopped);
    assert_eq!((resumed.epochs, resumed.batches), (0, 10));
    assert!(!summary.unwrap().stopped);
    assert_eq!(left_by(&whole), left_by(&stopped));
}

fn train_whole(settings: &TrainSettings, path: &Path) -> Summary {
    let (_, summary) = train(noisy(2), settings, &failing_after(1000), path);
    summary.unwrap()
}

fn three_epochs(path: &Path) -> TrainSettings {
    let settings = TrainSettings {
        save_every: 6,
        ..settings(OptimizerSetting::AdamW, 1e-2, 3)
    };
    let (_, summary) = train(noisy(2), &settings, &failing_after(13 + 8), path);
    assert!(summary.is_err());
    settings
}

fn names(run: &Path) -> Vec<String> {
    let checkpoints = Checkpoints::of(run).list().unwrap();
    (checkpoints.iter().map(|own| own.name().to_owned())).collect()
}

/// With a changed bit, a truncated file or a missing file, the previous checkpoint is used.
#[test]
fn a_damaged_checkpoint_is_found_and_the_one_before_it_taken() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = three_epochs(&path);
    let partial = RunFolder::find(&path).unwrap();
    let before = names(&partial);
    let expected = [0, 5].map(|batch| format!("epoch-0001-batch-{batch:07}"));
    assert_eq!(before, expected);
    let newest = partial.join("checkpoints").join(&before[1]);
    let files = fs::read_dir(&newest).unwrap();
    let files: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
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
    let (resumed, summary) = train(noisy(2), &settings, &failing_after(1000), &path);
    assert_eq!(resumed.checkpoint.as_ref(), Some(&before[1]));
    summary.unwrap();
}

/// Which checkpoint is the newest is in its name.
#[test]
fn a_clock_that_goes_back_does_not_matter() {
    let directory = tempfile::tempdir().unwrap();
    let [path, whole] = ["run", "whole"].map(|name| directory.path().join(name));
    let settings = three_epochs(&path);
    train_whole(&settings, &whole);
    let partial = RunFolder::find(&path).unwrap();
    let before = names(&partial);
    for (age, name) in before.iter().enumerate() {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 - 1000 * age as u64);
        for file in fs::read_dir(partial.join("checkpoints").join(name)).unwrap() {
            let file = fs::File::options()
                .write(true)
                .open(file.unwrap().path())
                .unwrap();
            file.set_modified(then).unwrap();
        }
    }
    let (resumed, summary) = train(noisy(2), &settings, &failing_after(1000), &path);
    assert_eq!(resumed.checkpoint.as_ref(), before.last());
    summary.unwrap();
    assert_eq!(left_by(&path), left_by(&whole));
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
    const SGD: OptimizerSetting = OptimizerSetting::Sgd;
    type Change = fn(&mut TrainSettings);
    let cases: [(Change, &str); 5] = [
        (|settings| settings.seed = 7, "seed 0, not 7"),
        (|settings| settings.batch_size = 10, "batch-size 50, not 10"),
        (|settings| settings.accumulate = 2, "accumulate 1, not 2"),
        (
            |settings| settings.optimizer = SGD,
            "optimizer adamw, not sgd",
        ),
        (|settings| settings.ema = 0.9, "ema 0, not more than 0"),
    ];
    for (change, expected) in cases {
        let mut other = settings.clone();
        change(&mut other);
        let error = error(noisy(2), other);
        assert!(error.contains(expected), "{error}");
    }
    let mut more = layers();
    more.insert(1, layers().swap_remove(1));
    let error = error(noisy_of(more, &evenly(2)), settings.clone());
    assert!(error.contains("layers.3.dense.linear.weight"), "{error}");
    // The checkpoint is still good.
    train_whole(&settings, &path);
}

/// The folder of a complete or killed run does not change if it cannot be resumed.
#[test]
fn a_folder_that_nothing_was_written_to_is_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = settings(OptimizerSetting::Adam, 1e-2, 1);
    train_whole(&settings, &path);
    let files = || {
        let entries = fs::read_dir(&path).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let before = files();
    let folder = RunFolder::resume(&path).unwrap();
    assert_eq!(files(), before);
    let mut other = settings.clone();
    other.seed = 9;
    let mut trainer = trainer(noisy(2), other);
    assert!(trainer.resume(&folder).is_err());
    drop(folder);
    assert_eq!(files(), before);

    let killed = directory.path().join("killed");
    let folder = RunFolder::create(&killed).unwrap();
    assert_matches!(RunFolder::create(&killed), Err(TrainError::RunUnderWay(_)));
    // A killed program does not clean up after itself, but its lock is gone.
    let there = folder.file("");
    fs::create_dir(there.with_extension("copy")).unwrap();
    drop(folder);
    fs::rename(there.with_extension("copy"), &there).unwrap();
    assert_matches!(RunFolder::create(&killed), Err(TrainError::RunKilled(_)));
    drop(RunFolder::resume(&killed).unwrap());
    assert!(RunFolder::find(&killed).is_none());
}

/// It is complete while it trains further, if that fails, and if the program is killed at the end.
#[test]
fn a_complete_run_stays_until_a_longer_one_replaces_it() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let path = at("run");
    let settings = |epochs| settings(OptimizerSetting::Adam, 1e-2, epochs);
    train_whole(&settings(1), &path);
    let before = (left_by(&path), names(&path));

    let fails = |batches| train(noisy(2), &settings(3), &failing_after(batches), &path).1;
    fails(3).unwrap_err();
    assert!(!at("run.partial").exists());
    fails(13 + 3).unwrap_err();
    assert_eq!(RunFolder::find(&path).unwrap(), path);
    assert!((left_by(&path), names(&path)) == before);
    let begun = names(&at("run.partial"));
    assert_eq!(begun.last().unwrap(), "epoch-0002-batch-0000000");

    // What its user has put there stays, too.
    let export = path.join("export/model.bin");
    let kept = path.join("checkpoints/kept/of-a-good-one");
    for file in [&export, &kept] {
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(file, "mine").unwrap();
    }
    let (resumed, summary) = train(noisy(3), &settings(3), &failing_after(1000), &path);
    assert_eq!((resumed.epochs, summary.unwrap().epochs), (2, 3));
    assert_eq!(metrics(&path).len(), 3);
    for file in [export, kept] {
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
    assert!(!at("run.partial").exists() && !path.join("before").exists());

    // Killed between the two renames at the end, or while its checkpoints were copied.
    let longer = (left_by(&path), names(&path));
    fs::create_dir(at("run.partial")).unwrap();
    drop(RunFolder::resume(&path).unwrap());
    let folder = RunFolder::resume(&path).unwrap();
    fs::remove_dir_all(folder.file("checkpoints")).unwrap();
    fs::remove_dir(folder.file("before")).unwrap();
    let copy = at("copy");
    fs::rename(folder.file(""), &copy).unwrap();
    drop(folder);
    fs::rename(&copy, at("run.partial")).unwrap();
    let folder = RunFolder::resume(&path).unwrap();
    assert_eq!(names(&folder.file("")), longer.1);
    fs::remove_dir(folder.file("before")).unwrap();
    fs::rename(&path, folder.file("before")).unwrap();
    folder.finish().unwrap();
    assert_eq!((left_by(&path).1, names(&path)), (longer.0.1, longer.1));
    assert!(!path.join("before").exists());
}

/// A program that is killed, or a power cut, may leave anything at the end of a file.
#[test]
fn damaged_lines_of_metrics_are_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = settings(OptimizerSetting::Adam, 1e-2, 3);
    let (_, summary) = train(noisy(2), &settings, &failing_after(2 * 13 + 3), &path);
    summary.unwrap_err();
    let partial = RunFolder::find(&path).unwrap();
    let file = partial.join("metrics.jsonl");
    let whole = fs::read_to_string(&file).unwrap();
    let first = whole.split_inclusive('\n').next().unwrap();
    for (text, damaged) in [
        (whole.clone().into_bytes(), 0),
        ([whole.as_bytes(), b"{\"epoch\": 3, \"st"].concat(), 1),
        ([whole.as_bytes(), b"\0\0\0\xff"].concat(), 1),
        ([first.as_bytes(), b"{\n"].concat(), 1),
        (whole.trim_end().as_bytes().to_vec(), 0),
        (whole.replace("\"epoch\":2", "\"epoch\":3").into_bytes(), 0),
    ] {
        let kept = if text.starts_with(whole.trim_end().as_bytes()) {
            &whole[..]
        } else {
            first
        };
        fs::write(&file, text).unwrap();
        let folder = RunFolder::resume(&path).unwrap();
        let resumed = trainer(noisy(1), settings.clone()).resume(&folder).unwrap();
        assert_eq!(resumed.damaged_lines, damaged);
        assert_eq!(fs::read_to_string(&file).unwrap(), kept);
    }
}

/// The best checkpoints need not be among the newest.
#[test]
fn the_newest_and_the_best_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    for (keep_last, keep_best, expected) in [(1, 0, 1), (3, 0, 3), (1, 2, 2), (2, 100, 6)] {
        let path = directory.path().join(format!("{keep_last}-{keep_best}"));
        let settings = TrainSettings {
            keep_last,
            keep_best,
            ..settings(OptimizerSetting::Adam, 3e-2, 6)
        };
        train_whole(&settings, &path);
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
            let is_best = (1..=6).all(|epoch| accuracy(epoch) <= accuracy(best));
            assert!(is_best, "{metrics:?}");
        }
    }
}

/// The data fail, or panic, while the checkpoint of the step before is written: it is complete when the training has ended.
#[test]
fn a_checkpoint_that_is_being_written_outlives_an_error() {
    let panicking = tapped(usual_data(), |_| {
        |number, batch| {
            assert!(number < 6, "the end");
            batch
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let settings = TrainSettings {
        save_every: 1,
        keep_last: 2,
        ..settings(OptimizerSetting::Adam, 1e-2, 2)
    };
    let check = |name: &str, data: &dyn Source<Tensor<2>, Tensor<1, Int>>| {
        let folder = RunFolder::create(&directory.path().join(name)).unwrap();
        let mut trainer = trainer(noisy(2), settings.clone());
        let run = || {
            let summary = trainer.run(data, &folder, |_, _| Progress::silent());
            assert_matches!(summary, Err(TrainError::Data(_)));
        };
        let panicked = catch_unwind(AssertUnwindSafe(run)).is_err();
        // Whether a mini-batch is the last one is asked before it is saved: that panics.
        let steps = trainer.pipeline().steps() - u64::from(panicked);
        assert!(steps > 3, "{steps}");
        let newest = format!("epoch-0000-batch-{steps:07}");
        assert_eq!(names(&folder.file("")).last(), Some(&newest));
        let left = fs::read_dir(folder.file("checkpoints")).unwrap();
        assert_eq!(left.count(), settings.keep_last);
        panicked
    };
    assert!(!check("failed", &failing_after(6)));
    assert!(check("panicked", &panicking));
}

/// A file is in the place of the folder of checkpoints.
#[test]
fn a_checkpoint_that_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    for on_save_error in [SaveErrorSetting::Continue, SaveErrorSetting::Stop] {
        let settings = TrainSettings {
            on_save_error,
            ..settings(OptimizerSetting::Adam, 1e-2, 2)
        };
        let folder =
            RunFolder::create(&directory.path().join(format!("{on_save_error:?}"))).unwrap();
        folder.write("checkpoints", b"no folder").unwrap();
        let mut trainer = trainer(noisy(2), settings);
        let result = train_silently(&mut trainer, &usual_data(), &folder);
        match on_save_error {
            SaveErrorSetting::Continue => assert_eq!(result.unwrap().epochs, 2),
            SaveErrorSetting::Stop => {
                assert_matches!(result, Err(TrainError::NotSaved(_)));
            }
        }
    }
}

/// Somebody removes the folder of a run: this ends it, although errors of saving do not. It does not come back half
/// empty.
#[test]
fn a_folder_that_is_removed_ends_the_training() {
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let at = folder.file("");
    let removed = at.clone();
    let data = tapped(usual_data(), move |_| {
        let at = at.clone();
        move |number, batch| {
            // A checkpoint that is being written may get new files meanwhile.
            while number == 5 && at.exists() {
                let _ = fs::remove_dir_all(&at);
            }
            batch
        }
    });
    let settings = TrainSettings {
        save_every: 1,
        ..settings(OptimizerSetting::Adam, 1e-2, 2)
    };
    let mut trainer = trainer(noisy(2), settings);
    let error = train_silently(&mut trainer, &data, &folder).unwrap_err();
    assert_matches!(error, TrainError::FolderGone(_));
    // Batches are loaded ahead.
    assert!(
        trainer.pipeline().steps() <= 6,
        "{}",
        trainer.pipeline().steps()
    );
    drop(folder);
    assert!(!removed.exists());
}

/// Another run may have begun in its place: that one's files are left alone.
#[test]
fn a_folder_that_was_replaced_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let removed = || {
        let folder = RunFolder::create(&path).unwrap();
        fs::remove_dir_all(folder.file("")).unwrap();
        folder
    };
    let all = [removed(), removed(), removed()];
    let other = RunFolder::create(&path).unwrap();
    other.write("notes.txt", b"of the other").unwrap();
    let [dropped, finished, discarded] = all;
    assert_matches!(
        dropped.write("notes.txt", b"mine"),
        Err(TrainError::FolderGone(_))
    );
    drop(dropped);
    assert_matches!(finished.finish(), Err(TrainError::FolderGone(_)));
    assert_matches!(discarded.discard(), Err(TrainError::FolderGone(_)));
    let path = other.finish().unwrap();
    assert_eq!(fs::read(path.join("notes.txt")).unwrap(), b"of the other");
}

/// They are for their user to look at.
#[test]
fn damaged_checkpoints_are_not_removed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let folder = RunFolder::create(&path).unwrap();
    let checkpoint = folder.file("checkpoints/epoch-0001-batch-0000002");
    fs::create_dir_all(&checkpoint).unwrap();
    fs::write(checkpoint.join("model.safetensors"), "half").unwrap();
    folder.leave();

    let folder = RunFolder::resume(&path).unwrap();
    let mut trainer = trainer(noisy(2), settings(OptimizerSetting::Adam, 1e-2, 2));
    let resumed = trainer.resume(&folder).unwrap();
    assert!(resumed.checkpoint.is_none());
    drop(folder);
    let damaged = &resumed.damaged[0].path;
    assert_eq!(damaged, &checkpoint.with_extension("damaged"));
    assert_eq!(
        fs::read(damaged.join("model.safetensors")).unwrap(),
        b"half"
    );
}

/// A parameter that cannot be read stands for a lost device.
#[test]
fn a_lost_device_is_an_error_of_saving() {
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
        Ok((layers, ()))
    };
    pipeline.change_stages(vec![(), ()], change).unwrap();
    let error = save_model(&pipeline, path).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: a device"), "{error}");
    assert!(error.contains("(the device is lost)"), "{error}");
}

/// A checkpoint without a fingerprint, of before there were any, is resumed with any data.
#[test]
fn only_the_same_data_are_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let data = |hash: &str| {
        let parts = [("class 0", "cat"), ("images", hash)];
        let parts = parts.map(|(part, content)| (part.to_owned(), content.to_owned()));
        usual_data().with_fingerprint(parts.into())
    };
    let settings = |epochs| settings(OptimizerSetting::Sgd, 1e-3, epochs);
    let result = |epochs, data| train(noisy(1), &settings(epochs), &data, &path).1;
    result(1, usual_data()).unwrap();
    result(2, data("a")).unwrap();
    result(3, data("a")).unwrap();
    let error = result(4, data("b")).unwrap_err().to_string();
    let expected = "the data have changed since the checkpoint was made: images: a then, b now\n";
    assert!(error.starts_with(expected), "{error}");
}

/// A program that waits for the lock of a run does not train in a folder that has moved.
#[test]
fn a_run_that_ends_meanwhile_is_not_resumed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let folder = RunFolder::create(&path).unwrap();
    folder.write("notes.txt", b"all went well").unwrap();
    let other = std::thread::spawn({
        let path = path.clone();
        move || RunFolder::resume(&path).map(|folder| folder.path().to_owned())
    });
    // It has begun to wait by then, or finds a complete run.
    std::thread::sleep(std::time::Duration::from_millis(300));
    folder.finish().unwrap();
    assert!(other.join().unwrap().is_err());
    assert!(path.join("notes.txt").exists());
}
