//! A machine may stop at any moment of a save, and a disk may fail at any call.
//!
//! States in which a save can leave a disk are made, after each call all of them or, if they are many, some at random.
//! Each must hold a checkpoint that is whole: the one before or the new one, and the new one if the save had
//! returned.

use std::{
    cell::RefCell,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    time::Instant,
};

use burn::tensor::{Device, Int, Tensor};
use stovepipe_pipeline::{CrossEntropy, Pipeline};

use super::{Checkpoints, Contents, Keep, TrainerState, sums};
use crate::{
    disk::{
        Files, paths,
        trial::{Call, Model, Trial},
    },
    error::TrainError,
    example::Dense,
    optimizer::{GradientAccumulator, StagedOptimizer},
    settings::TrainSettings,
    task::Totals,
    weights::Base,
};

const RUN: &str = "run";
/// The newest alone.
const KEEP: Keep<'_> = Keep {
    last: 1,
    best: 0,
    by: None,
};

/// A training of two stages.
struct Training {
    pipeline: Pipeline<Dense>,
    optimizer: StagedOptimizer,
    accumulator: GradientAccumulator,
    state: TrainerState,
}

impl Training {
    fn new() -> Self {
        let settings = TrainSettings::default();
        let layers = vec![Dense::new(4, 6), Dense::new(6, 3)];
        let builder = Pipeline::builder(layers).devices(vec![Device::flex(); 2]);
        let optimizer = StagedOptimizer::new(&settings, 2);
        Self {
            pipeline: builder.build().unwrap(),
            accumulator: GradientAccumulator::new(&optimizer),
            optimizer,
            state: TrainerState::begin(&settings, &Totals::zero(&[])),
        }
    }

    fn step(&mut self) {
        let device = Device::flex();
        let batch = (
            Tensor::<2>::ones([2, 4], &device),
            Tensor::<1, Int>::ones([2], &device),
        );
        let step = self
            .pipeline
            .train_step(batch, &CrossEntropy::new())
            .unwrap();
        let (pipeline, gradients) = (&mut self.pipeline, step.gradients);
        let stepped = self
            .optimizer
            .step(0.01, pipeline, gradients, Instant::now());
        stepped.unwrap();
        self.state.batch += 1;
        self.state.steps += 1;
    }

    /// Makes a checkpoint, and removes the one before.
    fn save(&mut self, root: &Path, files: Files) -> Result<(), TrainError> {
        let (state, base) = (self.state.clone(), Base::default());
        checkpoints(root, files).save(&self.contents(&base), &state, KEEP)
    }

    fn contents<'a>(&'a mut self, base: &'a Base) -> Contents<'a, Dense> {
        Contents {
            pipeline: &mut self.pipeline,
            average: None,
            optimizer: &mut self.optimizer,
            accumulator: &mut self.accumulator,
            base,
        }
    }
}

fn with_run() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join(RUN)).unwrap();
    root
}

fn checkpoints(root: &Path, files: Files) -> Checkpoints {
    Checkpoints::on(&root.join(RUN), files)
}

/// The checksums of the newest checkpoint that is whole, and how many were damaged.
fn newest(root: &Path) -> Result<(Option<String>, usize), TrainError> {
    let (newest, damaged) = checkpoints(root, Files::default()).newest()?;
    let sums = newest.map(|own| fs::read_to_string(own.path().join(sums::SUMS)).unwrap());
    Ok((sums, damaged.len()))
}

/// A save after a save, or the first one.
struct Save<'a> {
    is_first: bool,
    /// The call that finds the disk full: room is made, and the save made again.
    full: Option<usize>,
    /// Which calls the disk gets.
    is_kept: &'a dyn Fn(&Call) -> bool,
    /// States at a moment.
    most: u32,
}

impl Default for Save<'_> {
    fn default() -> Self {
        Self {
            is_first: false,
            full: None,
            is_kept: &|_| true,
            most: 400,
        }
    }
}

/// What was found in the states in which a save may leave a disk.
struct Found {
    lost: Vec<String>,
    states: usize,
    calls: usize,
}

impl Save<'_> {
    fn tried(&self) -> Found {
        let root = with_run();
        let (root, mut training) = (root.path(), Training::new());
        training.step();
        if !self.is_first {
            training.save(root, Files::on(Trial::on(root))).unwrap();
            training.step();
        }
        let before = newest(root).unwrap().0;
        let model = Model::of(root);
        let mut trial = Trial::on(root);
        trial.fails = self.full.map(|call| (call, ErrorKind::StorageFull));
        let files = Files::on(trial.clone());
        if training.save(root, files.clone()).is_err() {
            checkpoints(root, files.clone())
                .remove_oldest(KEEP)
                .unwrap();
            training.save(root, files).unwrap();
        }
        let after = newest(root).unwrap().0;
        assert!(after.is_some() && after != before);

        let mut lost = Vec::new();
        let mut calls = trial.calls();
        let all = calls.len();
        if let Some(failed) = self.full.filter(|&failed| failed < all) {
            match &mut calls[failed] {
                Call::Write(_, content) => content.truncate(content.len() / 2),
                _ => drop(calls.remove(failed)),
            }
        }
        calls.retain(self.is_kept);
        let mut looked = 0;
        let states = model.each_state(&calls, self.most, |number, disk| {
            looked += 1;
            let (is_over, found) = (number == calls.len(), newest(disk));
            let is_whole =
                |found: &Option<String>| *found == after || (!is_over && *found == before);
            if !matches!(&found, Ok((found, 0)) if is_whole(found)) {
                lost.push(format!(
                    "after {number} of {} calls: {found:?}",
                    calls.len()
                ));
                return;
            }
            // The next save goes on from there, and leaves nothing else.
            if looked % 16 == 0 {
                training.save(disk, Files::on(Trial::on(disk))).unwrap();
                assert_eq!(newest(disk).unwrap(), (after.clone(), 0));
                let folder = disk.join(RUN).join("checkpoints");
                assert_eq!(paths(&folder).unwrap().len(), 1);
            }
        });
        Found {
            lost,
            states,
            calls: all,
        }
    }
}

/// Also when training has gone on meanwhile. So what is found below for contents holds for their copies.
#[test]
fn a_copy_is_written_by_the_same_calls() {
    let [root, of_copy] = [with_run(), with_run()];
    let [root, of_copy] = [root.path(), of_copy.path()];
    let (mut training, base) = (Training::new(), Base::default());
    training.step();
    let trials = [Trial::on(root), Trial::on(of_copy)];
    for _ in 0..2 {
        let copied = training
            .contents(&base)
            .copy(root, |_| true)
            .unwrap()
            .unwrap();
        let state = training.state.clone();
        training.save(root, Files::on(trials[0].clone())).unwrap();
        training.step();
        let checkpoints = checkpoints(of_copy, Files::on(trials[1].clone()));
        checkpoints.save_copy(&copied, &state, KEEP).unwrap();
    }
    assert_eq!(trials[0].calls(), trials[1].calls());
    assert_eq!(newest(root).unwrap(), newest(of_copy).unwrap());
}

/// It is asked with each file, until one has no room.
#[test]
fn there_is_no_copy_without_room() {
    let (mut training, base) = (Training::new(), Base::default());
    let asked: RefCell<Vec<usize>> = RefCell::default();
    training.step();
    let has_room = |most: usize| {
        let asked = &asked;
        move |bytes| {
            asked.borrow_mut().push(bytes);
            asked.borrow().len() <= most
        }
    };
    let contents = training.contents(&base);
    assert!(contents.copy(Path::new(""), has_room(1)).unwrap().is_none());
    // Two layers; then the first one's moments and count.
    let (first, both) = (4 * (4 * 6 + 6), 4 * (4 * 6 + 6 + 6 * 3 + 3));
    assert_eq!(asked.take()[0], both);
    assert!(contents.copy(Path::new(""), has_room(3)).unwrap().is_some());
    let asked = asked.take();
    assert_eq!(asked.len(), 3);
    assert!(asked[1] - asked[0] >= 2 * first, "{asked:?}");
}

#[test]
fn a_machine_may_stop_at_any_moment() {
    for is_first in [false, true] {
        let save = Save {
            is_first,
            ..Save::default()
        };
        let found = save.tried();
        assert_eq!(found.lost, [""; 0]);
        assert!(found.states > 200, "{}", found.states);
    }
}

#[test]
fn a_machine_may_stop_while_room_is_made() {
    for call in 0.. {
        let save = Save {
            full: Some(call),
            most: 12,
            ..Save::default()
        };
        let found = save.tried();
        assert_eq!(found.lost, [""; 0], "call {call}");
        if found.calls <= call {
            assert!(call > 15, "{call}");
            break;
        }
    }
}

/// Without them, the states above have some where a checkpoint is lost.
#[test]
fn every_kind_of_sync_is_needed() {
    let kinds: [&dyn Fn(&Call) -> bool; 2] =
        [&|call| !matches!(call, Call::SyncFile(_)), &|call| {
            !matches!(call, Call::SyncFolder(_))
        }];
    for is_kept in kinds {
        let save = Save {
            is_kept,
            most: 50,
            ..Save::default()
        };
        assert!(!save.tried().lost.is_empty());
    }
}

/// The error names the file and the reason, no checkpoint is lost, and the next save works.
#[test]
fn a_disk_may_fail_at_any_call() {
    let kinds = [
        ErrorKind::StorageFull,
        ErrorKind::PermissionDenied,
        ErrorKind::NotFound,
        ErrorKind::AlreadyExists,
        ErrorKind::ReadOnlyFilesystem,
        ErrorKind::CrossesDevices,
        ErrorKind::QuotaExceeded,
        ErrorKind::Other, // an error of a disk, EIO, has no kind
    ];
    let root = with_run();
    let (root, mut training) = (root.path(), Training::new());
    training.step();
    training.save(root, Files::on(Trial::on(root))).unwrap();
    let (mut fails, mut before) = (0, newest(root).unwrap().0);
    for kind in kinds {
        for call in 0.. {
            training.step();
            let mut trial = Trial::on(root);
            trial.fails = Some((call, kind));
            let saved = training.save(root, Files::on(trial.clone()));
            let calls = trial.calls();
            let Some(failed) = calls.get(call) else {
                saved.unwrap();
                assert!(call > 15, "{call}");
                before = newest(root).unwrap().0;
                break;
            };
            let now = newest(root).unwrap();
            match (&saved, failed, kind) {
                (Ok(()), Call::RemoveFolder(_), ErrorKind::NotFound)
                | (Ok(()), Call::CreateFolder(_), ErrorKind::AlreadyExists) => {}
                (Err(error), ..) => {
                    fails += 1;
                    let is_old =
                        matches!(failed, Call::RemoveFolder(path) if path.extension().is_none());
                    assert_eq!(matches!(error, TrainError::NotRemoved(_)), is_old);
                    let error = error.to_string();
                    let path: PathBuf = root.join(failed.path()).components().collect();
                    for part in [path.display().to_string(), kind.to_string()] {
                        assert!(error.contains(&part), "{error}: {failed:?}");
                    }
                }
                _ => panic!("{failed:?}: {kind}"),
            }
            assert!(now.0.is_some() && now.1 == 0, "{failed:?}");
            training.save(root, Files::on(Trial::on(root))).unwrap();
            let after = newest(root).unwrap().0;
            assert!(
                after != before && [&before, &after].contains(&&now.0),
                "{failed:?}"
            );
            before = after;
        }
    }
    assert!(fails > 60, "{fails}");
}

#[test]
fn a_call_that_a_signal_interrupts_is_made_again() {
    let root = with_run();
    let (root, mut training) = (root.path(), Training::new());
    for call in 0.. {
        training.step();
        let mut trial = Trial::on(root);
        trial.fails = Some((call, ErrorKind::Interrupted));
        let saved = training.save(root, Files::on(trial.clone()));
        let calls = trial.calls();
        match calls.get(call) {
            // The system's own calls to write are made again by the libraries.
            Some(Call::Write(..)) => continue,
            Some(_) => saved.unwrap(),
            None => {
                saved.unwrap();
                break;
            }
        }
        assert_eq!(calls[call], calls[call + 1]);
    }
}
