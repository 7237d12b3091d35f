//! A machine may stop at any moment of a run, from its first step to its last file.
//!
//! In each state in which that may leave the disk, the run resumes to the bits and the lines of one that was left
//! alone, or its folder is complete.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use burn::{
    data::{dataloader::batcher::Batcher, dataset::InMemDataset},
    tensor::{Device, Int, Tensor},
};
use serde_json::Value;
use stovepipe_pipeline::{CrossEntropy, Pipeline};

use super::{Progress, Resumed, RunFolder, Trainer};
use crate::{
    data::Data,
    disk::{
        Files,
        trial::{Call, Model, Trial},
    },
    error::TrainError,
    example::Dense,
    settings::{ChecksumSetting, TrainSettings},
    task::Task,
};

const RUN: &str = "run";
const PARTIAL: &str = "run.partial";
const MODEL: &str = "model.safetensors";
const BEST: &str = "best.safetensors";
/// Steps of an epoch, each with a mini-batch of two samples.
const STEPS: usize = 3;

#[derive(Clone)]
struct Points;

impl Batcher<f32, (Tensor<2>, Tensor<1, Int>)> for Points {
    fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let labels: Vec<_> = items.iter().map(|&item| i32::from(item > 0.5)).collect();
        let points = Tensor::<1>::from_floats(items.as_slice(), device);
        let labels = Tensor::from_ints(labels.as_slice(), device);
        (points.reshape([-1, 1]).repeat_dim(1, 3), labels)
    }
}

fn trainer(epochs: usize) -> Trainer<Dense, CrossEntropy> {
    let settings = TrainSettings {
        epochs,
        batch_size: 2,
        save_every: 2,
        keep_last: 1,
        checksums: ChecksumSetting::Steps,
        ..TrainSettings::default()
    };
    let layers = vec![Dense::new(3, 4), Dense::new(4, 2)];
    let builder = Pipeline::builder(layers).devices(vec![Device::flex(); 2]);
    let task = Task::classification(&settings);
    Trainer::new(builder.build().unwrap(), task, settings).unwrap()
}

/// Trains to the end of this epoch, from where the folder is.
fn train(root: &Path, epochs: usize, files: Files) -> Result<Resumed, TrainError> {
    let folder = RunFolder::resume_on(&root.join(RUN), files)?;
    let mut trainer = trainer(epochs);
    let resumed = trainer.resume(&folder)?;
    let numbers = |count: usize| (0..count).map(move |number| number as f32 / count as f32);
    let set = |count| InMemDataset::new(numbers(count).collect());
    let data = Data::new(set(2 * STEPS), set(2), Points);
    trainer.run(&data, &folder, |_, _| Progress::silent())?;
    folder.finish()?;
    Ok(resumed)
}

/// A run's weights, and its lines without times.
type Results = (Vec<Vec<u8>>, Vec<Value>);

fn results(root: &Path) -> Result<Results, String> {
    let read = |name: &str| {
        let read = fs::read(root.join(RUN).join(name));
        read.map_err(|error| format!("{name}: {error}"))
    };
    let (mut weights, mut lines) = (Vec::new(), Vec::new());
    for name in [MODEL, BEST] {
        weights.push(read(name)?);
    }
    for name in ["metrics.jsonl", "steps.jsonl", "checksums.jsonl"] {
        for line in read(name)?.split(|byte| *byte == b'\n') {
            let Ok(Value::Object(mut line)) = serde_json::from_slice(line) else {
                continue;
            };
            let differs = |key: &str| ["second", "memory", "bubble"].map(|part| key.contains(part));
            line.retain(|key, _| !differs(key).contains(&true));
            lines.push(line.into());
        }
    }
    Ok((weights, lines))
}

/// Trains to the end of an epoch, after a complete run of `before` epochs if that is not zero.
#[derive(Clone, Copy)]
struct Run {
    epochs: usize,
    before: usize,
    /// States after each call.
    most: u32,
    has_links: bool,
}

impl Run {
    /// Tries states in which it may leave a disk that gets those calls that are kept. Returns what is wrong with them,
    /// and how many there were.
    fn tried(self, is_kept: impl Fn(&Call) -> bool) -> (Vec<String>, usize) {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let mut complete = Vec::new();
        if self.before > 0 {
            let _ = train(root, self.before, Files::on(Trial::on(root))).unwrap();
            complete.push(results(root).unwrap());
        }
        fs::create_dir(root.join(PARTIAL)).unwrap();
        let model = Model::of(root);
        let mut trial = Trial::on(root);
        trial.has_no_links = !self.has_links;
        let _ = train(root, self.epochs, Files::on(trial.clone())).unwrap();
        let expected = results(root).unwrap();

        let mut wrong = Vec::new();
        let calls: Vec<_> = trial.calls().into_iter().filter(is_kept).collect();
        let states = model.each_state(&calls, self.most, |number, disk| {
            let is_over = number == calls.len();
            let of_run = disk.join(RUN).exists().then(|| results(disk));
            let is_complete = match &of_run {
                None => !is_over,
                Some(own) if own.as_ref() == Ok(&expected) => true,
                Some(own) => !is_over && complete.iter().any(|run| own.as_ref() == Ok(run)),
            };
            let found = if is_complete {
                let trained = train(disk, self.epochs, Files::on(Trial::on(disk)));
                trained
                    .map_err(|error| error.to_string())
                    .and_then(|resumed| match resumed {
                        Resumed { damaged, .. } if !damaged.is_empty() => {
                            Err(format!("{damaged:?}"))
                        }
                        Resumed { epochs, .. } if epochs < self.before => {
                            Err(format!("it begins after epoch {epochs}"))
                        }
                        _ => results(disk),
                    })
            } else {
                Err("the folder is not complete".to_owned())
            };
            if found.as_ref() != Ok(&expected) {
                let found = found.err();
                wrong.push(format!(
                    "after {number} of {} calls: {found:?}",
                    calls.len()
                ));
            }
        });
        (wrong, states)
    }
}

#[test]
fn a_machine_may_stop_at_any_moment() {
    for (before, has_links) in [(0, true), (1, true), (1, false)] {
        let run = Run {
            epochs: before + 1,
            before,
            most: 5,
            has_links,
        };
        let (wrong, states) = run.tried(|_| true);
        assert_eq!(wrong, [""; 0], "{before}, {has_links}");
        assert!(states > 100, "{states}");
    }
}

/// Without each of them, the states above have some that are wrong.
#[test]
fn every_sync_is_needed() {
    fn is_of(call: &Call, names: &[&str]) -> bool {
        let of_run = |path: &Path| path.parent() == Some(Path::new(PARTIAL));
        matches!(call, Call::SyncFile(path) if of_run(path) && names.iter().any(|name| path.ends_with(name)))
    }
    let kinds: [fn(&Call) -> bool; 6] = [
        |call| is_of(call, &[MODEL, BEST]), // two names of one file
        |call| is_of(call, &["metrics.jsonl"]),
        |call| is_of(call, &["steps.jsonl"]),
        |call| is_of(call, &["checksums.jsonl"]),
        |call| matches!(call, Call::SyncFolder(path) if path == Path::new("")),
        |call| matches!(call, Call::SyncFolder(path) if path == Path::new(PARTIAL)),
    ];
    for (number, is_lost) in kinds.iter().enumerate() {
        let run = Run {
            epochs: 1,
            before: 0,
            most: 2,
            has_links: true,
        };
        let (wrong, _) = run.tried(|call| !is_lost(call));
        assert!(!wrong.is_empty(), "{number}");
    }
}

/// The run ends with its weights, or with an error that names the file and the reason; then it resumes.
#[test]
fn a_disk_may_fail_at_any_call() {
    let run = |fails: Option<(usize, ErrorKind)>| {
        let root = tempfile::tempdir().unwrap();
        let mut files = Trial::on(root.path());
        files.fails = fails;
        let trained = train(root.path(), 1, Files::on(files.clone()));
        (root, trained, files.calls())
    };
    let (root, _, calls) = run(None);
    let (expected, _) = results(root.path()).unwrap();
    let mut failed = 0;
    for call in 0..calls.len() {
        for kind in [ErrorKind::Other, ErrorKind::StorageFull] {
            let (root, trained, calls) = run(Some((call, kind)));
            if let Err(error) = trained {
                let path: PathBuf = root.path().join(calls[call].path()).components().collect();
                // A file that replaces another is named as that.
                let path = match path.extension() {
                    Some(ending) if ending == "new" => path.with_extension(""),
                    _ => path,
                };
                let text = error.to_string();
                for part in [path.display().to_string(), kind.to_string()] {
                    assert!(text.contains(&part), "{text}: {:?}", calls[call]);
                }
                failed += 1;
                let _ = train(root.path(), 1, Files::on(Trial::on(root.path()))).unwrap();
            }
            assert!(results(root.path()).unwrap().0 == expected);
        }
    }
    assert!(failed > 20, "{failed} of {}", calls.len());
}
