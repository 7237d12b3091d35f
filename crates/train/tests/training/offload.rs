//! An optimizer's state off its device.

use std::{
    io,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use stovepipe_train::optimizer::{HostMemory, Storage};

use super::*;

fn offloaded(optimizer: OptimizerSetting, folder: &Path) -> TrainSettings {
    TrainSettings {
        offload: OffloadSetting::Optimizer,
        offload_to: folder.to_owned(),
        clip: 0.1,
        ema: 0.9,
        save_every: 4,
        ..settings(optimizer, 1e-2, 2)
    }
}

/// All files of all checkpoints that are kept.
fn checkpoints(run: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for checkpoint in fs::read_dir(run.join("checkpoints")).unwrap() {
        for file in fs::read_dir(checkpoint.unwrap().path()).unwrap() {
            let path = file.unwrap().path();
            if path
                .extension()
                .is_some_and(|ending| ending == "safetensors")
            {
                let name = path.strip_prefix(run).unwrap().display().to_string();
                files.push((name, fs::read(path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

/// States and gradients visit their devices and go, and the bits stay, also in checkpoints: some have sums of gradients.
#[test]
fn states_in_files_change_no_bit() {
    let directory = tempfile::tempdir().unwrap();
    let states = directory.path().join("made/states");
    for (optimizer, accumulate) in [
        (OptimizerSetting::RmsProp, 1),
        (OptimizerSetting::Sgd, 3),
        (OptimizerSetting::Adam, 1),
        (OptimizerSetting::AdamW, 3),
    ] {
        for stages in [1, 3] {
            let folder = |what: &str| {
                directory
                    .path()
                    .join(format!("{optimizer:?}-{stages}-{what}"))
            };
            let away = TrainSettings {
                accumulate,
                ..offloaded(optimizer, &states)
            };
            let here = TrainSettings {
                offload: OffloadSetting::None,
                ..away.clone()
            };
            let here = run(stages, here, &folder("here")).unwrap();
            let away = run(stages, away, &folder("away")).unwrap();
            assert_eq!((&here.test, &here.averaged), (&away.test, &away.averaged));
            assert!(here.averaged.is_some_and(|averaged| averaged != here.test));
            for file in ["averaged.safetensors", "model.safetensors"] {
                let [here, away] = ["here", "away"].map(|what| fs::read(folder(what).join(file)));
                assert!(here.unwrap() == away.unwrap(), "{optimizer:?}: {file}");
            }
            let [here, away] = ["here", "away"].map(|what| checkpoints(&folder(what)));
            let names: Vec<_> = here.iter().map(|file| &file.0).collect();
            assert!(names.len() >= 4, "{names:?}");
            let has_sums = names
                .iter()
                .any(|name| name.ends_with("gradients.safetensors"));
            assert_eq!(has_sums, accumulate > 1, "{names:?}");
            let has_averages = names
                .iter()
                .any(|name| name.ends_with("averaged.safetensors"));
            assert!(has_averages, "{names:?}");
            assert!(here == away, "{optimizer:?} in {stages} stages");
        }
    }
    // Nobody else sees the files, not even while they are in use.
    let (_directory, folder) = run_folder();
    let mut alive = trainer(pipeline(2), offloaded(OptimizerSetting::AdamW, &states));
    train_silently(&mut alive, &usual_data(), &folder).unwrap();
    assert_eq!(fs::read_dir(states).unwrap().count(), 0);
    drop(alive);
}

/// A run goes on with its states and sums of gradients elsewhere, in other stages.
#[test]
fn a_run_resumes_with_its_states_elsewhere() {
    let directory = tempfile::tempdir().unwrap();
    let states = directory.path().join("states");
    let away = TrainSettings {
        accumulate: 4, // the ninth mini-batch is the first of an update
        ..offloaded(OptimizerSetting::AdamW, &states)
    };
    let here = TrainSettings {
        offload: OffloadSetting::None,
        ..away.clone()
    };
    let whole = directory.path().join("whole");
    run(1, here.clone(), &whole).unwrap();
    for (number, [first, second]) in [[&here, &away], [&away, &here], [&away, &away]]
        .iter()
        .enumerate()
    {
        let path = directory.path().join(format!("run-{number}"));
        let folder = RunFolder::create(&path).unwrap();
        let part = TrainSettings {
            max_steps: 9,
            ..(*first).clone()
        };
        train_silently(&mut trainer(pipeline(2), part), &usual_data(), &folder).unwrap();
        let mut rest = trainer(pipeline(3), (*second).clone());
        assert!(rest.resume(&folder).unwrap().checkpoint.is_some());
        train_silently(&mut rest, &usual_data(), &folder).unwrap();
        folder.finish().unwrap();
        assert!(model(&path) == model(&whole), "{number}");
        let [averages, of_whole] =
            [&path, &whole].map(|run| fs::read(run.join("averaged.safetensors")));
        assert!(averages.unwrap() == of_whole.unwrap(), "{number}");
    }
}

/// What a storage does wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Full,
    Truncated,
    Changed,
}

struct Faulty(HostMemory, Fault);

impl Storage for Faulty {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(place, bytes)?;
        match self.1 {
            Fault::Truncated => Err(io::ErrorKind::UnexpectedEof.into()),
            Fault::Changed => {
                bytes[0] ^= 1;
                Ok(())
            }
            Fault::Full => Ok(()),
        }
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        match self.1 {
            Fault::Full => Err(io::ErrorKind::StorageFull.into()),
            _ => self.0.write(place, bytes),
        }
    }
}

/// Each fault, and what is said of it.
const FAULTS: [(Fault, &str); 3] = [
    (Fault::Full, "could not be written: no storage space"),
    (
        Fault::Truncated,
        "could not be read: unexpected end of file",
    ),
    (Fault::Changed, "has changed since it was written"),
];

/// An optimizer whose states and gradients lie in storages with a fault.
fn offloaded_to(fault: Fault, pipeline: &Pipeline<Dense>) -> StagedOptimizer {
    let optimizer = StagedOptimizer::new(&TrainSettings::default(), 2);
    let memory = |_: &_| Ok(Some(Faulty(HostMemory::default(), fault)));
    optimizer.offload(&pipeline.stages(), memory).unwrap()
}

/// An update whose states are lost or wrong is an error, and the pipeline cannot go on.
#[test]
fn a_state_that_is_lost_or_changed_is_an_error() {
    for (fault, says) in FAULTS {
        let mut pipeline = pipeline(2);
        let mut optimizer = offloaded_to(fault, &pipeline);
        let mut step = || {
            let step = pipeline.train_step(forty_points(), &CrossEntropy::new())?;
            optimizer.step(0.1, &mut pipeline, step.gradients, Instant::now())
        };
        let failed = step().err().or_else(|| step().err()).unwrap().to_string();
        assert!(
            failed.starts_with("stage 0 on cpu could not be changed"),
            "{failed}"
        );
        assert!(failed.contains(says), "{failed}");
        let again = step().unwrap_err().to_string();
        assert!(again.starts_with("the layers were dropped"), "{again}");
    }
}

/// So is one whose gradients are; a full disk ends the step before, or the look for its norm.
#[test]
fn a_gradient_that_is_lost_or_changed_is_an_error() {
    for (fault, says) in FAULTS {
        let mut pipeline = pipeline(2);
        let output = |pipeline: &Pipeline<Dense>| pipeline.infer(sample()).unwrap().into_data();
        let before = output(&pipeline);
        let mut optimizer = offloaded_to(fault, &pipeline);
        let stores = optimizer.gradient_stores();
        let step = pipeline.train_step_into(forty_points(), &CrossEntropy::new(), &stores);
        let failed = step
            .and_then(|step| optimizer.step(0.1, &mut pipeline, step.gradients, Instant::now()));
        let failed = failed.unwrap_err().to_string();
        assert!(failed.contains(says), "{failed}");
        assert_eq!(output(&pipeline), before);
    }
}

/// A minute: what is read ahead comes at once.
const LIMIT: Duration = Duration::from_secs(60);

/// Memory that counts what is read.
#[derive(Default)]
struct Counted(HostMemory, Arc<AtomicUsize>);

impl Storage for Counted {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read(place, bytes)?;
        self.1.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write(place, bytes)
    }
}

/// The sum that is needed next is read before it is asked for, as soon as the order is known; nothing is read twice, and
/// after another order the sums are right, too.
#[test]
fn gradients_come_before_they_are_needed() {
    let pipeline = pipeline(1);
    let layers: Vec<_> = pipeline.layers()[..3].iter().rev().collect();
    let reads: Arc<AtomicUsize> = Arc::default();
    let optimizer = StagedOptimizer::new(&TrainSettings::default(), 1);
    let storage = |_: &_| Ok(Some(Counted(HostMemory::default(), reads.clone())));
    let optimizer = optimizer.offload(&pipeline.stages(), storage).unwrap();
    let store = optimizer.gradient_stores().remove(0).unwrap();
    let weight = |layer: &Dense| {
        let data = layer.linear.weight.val().into_data();
        Tensor::<2>::from_data(data, &Device::flex())
    };
    let add = |layer: &Dense, factor: f64| {
        let id = layer.linear.weight.id;
        let mut gradients = store.take(layer).unwrap();
        let (before, own) = (gradients.remove::<2>(id), weight(layer) * factor);
        gradients.register(id, before.map_or(own.clone(), |before| before + own));
        store.put(layer, gradients).unwrap();
    };
    store.clear();
    let mut looked = 0;
    for round in 0..5 {
        for (place, layer) in layers.iter().enumerate() {
            add(layer, 1.0);
            // The second round reads two when they are asked for, and shows what comes after them.
            if round >= 2 {
                looked = 3 * round - 1 + place;
                let began = Instant::now();
                while reads.load(Ordering::SeqCst) < looked {
                    assert!(began.elapsed() < LIMIT, "{round} {place}");
                    thread::yield_now();
                }
            }
        }
    }
    assert_eq!(reads.load(Ordering::SeqCst), looked);
    for layer in layers.iter().rev() {
        add(layer, 2.0);
    }
    for layer in &layers {
        let sum = store.take(layer).unwrap();
        let sum = sum.get::<2>(layer.linear.weight.id).unwrap();
        let expected = (0..4).fold(weight(layer), |sum, _| sum + weight(layer));
        let expected = expected + weight(layer) * 2.0;
        assert_eq!(sum.into_data(), expected.into_data());
    }
}

#[test]
fn places_that_are_none_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refused = |place: &Path| {
        let settings = offloaded(OptimizerSetting::AdamW, place);
        let task = Task::classification(&settings);
        let trainer = Trainer::new(pipeline(2), task, settings);
        trainer.err().unwrap().to_string()
    };
    let host = refused(Path::new("host"));
    assert!(
        host.starts_with("offload-to is host, but cpu computes"),
        "{host}"
    );
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(refused(&file).starts_with(&file.display().to_string()));
    let mut windows = offloaded(OptimizerSetting::AdamW, directory.path());
    windows.ema = 0.0; // refused as well
    let windows = windows.check_windows(true, 9);
    assert!(windows.unwrap_err().to_string().contains("--offload"));
}
