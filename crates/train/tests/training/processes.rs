//! Trainings in several processes, which are threads here: the same files as in one.

use stovepipe_comm::Communicator;
use stovepipe_plan::MemoryUse;
use stovepipe_schedule::Link;

use super::{
    resume::{Noisy, Tapped, failing, left_by, noisy_layers, noisy_of, tapped},
    *,
};

/// What each of `size` ranks returns.
pub fn in_ranks<R: Send>(size: usize, work: impl Fn(Arc<Communicator>) -> R + Sync) -> Vec<R> {
    on_hosts(&vec!["localhost"; size], work)
}

/// What a rank on each of these hosts returns.
fn on_hosts<R: Send>(hosts: &[&str], work: impl Fn(Arc<Communicator>) -> R + Sync) -> Vec<R> {
    let ranks = stovepipe_comm::local_on(hosts, None).unwrap();
    thread::scope(|scope| {
        let spawn = |rank: Communicator| scope.spawn(|| work(rank.into()));
        let ranks: Vec<_> = ranks.into_iter().map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// A stage for each device.
fn noisy_on(devices: &[&str], comm: &Arc<Communicator>) -> Pipeline<Noisy> {
    let settings = PipelineSettings {
        devices: devices.iter().map(|&name| name.to_owned()).collect(),
        ..evenly(devices.len())
    };
    let builder = settings.builder(noisy_layers(layers()), sample).unwrap();
    builder.communicator(comm.clone()).seed(3).build().unwrap()
}

/// Trains in `path` until the data fail. Returns how it went for each rank.
fn train(
    size: usize,
    devices: &[&str],
    settings: &TrainSettings,
    batches: usize,
    path: &Path,
) -> Vec<Result<Summary, TrainError>> {
    in_ranks(size, |comm| {
        let processes = Processes::new(Some(comm.clone()));
        let open = || RunFolder::resume(path);
        let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
        let mut trainer = trainer(noisy_on(devices, &comm), settings.clone());
        let _ = trainer.resume(&folder).unwrap();
        let summary = train_silently(&mut trainer, &failing(usual_data(), batches), &folder);
        if summary.is_ok() {
            folder.finish().unwrap();
        }
        summary
    })
}

/// The bytes of all tensors of all checkpoints.
fn tensors(run: &Path) -> Vec<(String, Vec<u8>)> {
    let checkpoints = Checkpoints::of(run).list().unwrap();
    let mut files = Vec::new();
    for checkpoint in checkpoints {
        checkpoint.check().unwrap();
        let folder = checkpoint.model(false);
        for file in fs::read_dir(folder.parent().unwrap()).unwrap() {
            let path = file.unwrap().path();
            if path
                .extension()
                .is_some_and(|ending| ending == "safetensors")
            {
                let name = path.file_name().unwrap().to_str().unwrap();
                let name = format!("{}/{name}", checkpoint.name());
                files.push((name, fs::read(path).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn processes_leave_the_files_of_one() {
    let directory = tempfile::tempdir().unwrap();
    for (optimizer, accumulate, ema) in [
        (OptimizerSetting::AdamW, 1, 0.9),
        (OptimizerSetting::RmsProp, 4, 0.0),
        (OptimizerSetting::Sgd, 3, 0.99),
    ] {
        let settings = TrainSettings {
            accumulate,
            ema,
            clip: 0.5,
            save_every: 5,
            keep_last: 100,
            label_smoothing: 0.1,
            ..settings(optimizer, 3e-3, 3)
        };
        let path = |name: &str| directory.path().join(format!("{name}-{optimizer:?}"));
        let (_, summary) = resume::train(
            noisy_of(layers(), &evenly(4)),
            &settings,
            &usual_data(),
            &path("one"),
        );
        let whole = summary.unwrap();
        for (name, size, devices) in [
            ("two", 2, ["0/cpu", "0/cpu", "1/cpu", "1/cpu"]),
            ("three", 3, ["1/cpu", "0/cpu", "2/cpu", "1/cpu"]),
        ] {
            for summary in train(size, &devices, &settings, usize::MAX, &path(name)) {
                let summary = summary.unwrap();
                assert_eq!(summary.test, whole.test);
                assert_eq!(summary.averaged, whole.averaged);
                assert_eq!(summary.parameters, whole.parameters);
            }
            let [one, other] = ["one", name].map(|name| left_by(&path(name)));
            assert!(one.0 == other.0, "{name} {optimizer:?}: other weights");
            assert_eq!(one.1, other.1, "{name} {optimizer:?}");
            let [one, other] = ["one", name].map(|name| tensors(&path(name)));
            let names = |files: &[(String, _)]| files.iter().map(|file| file.0.clone()).collect();
            let [names_of_one, names]: [Vec<_>; 2] = [names(&one), names(&other)];
            assert_eq!(names_of_one, names);
            assert!(one == other, "{name} {optimizer:?}: other checkpoints");
            let best = |name: &str| fs::read(path(name).join("best.safetensors")).ok();
            assert!(best("one") == best(name));
        }
    }
}

/// Two pipelines of two stages, with a worker on each of four devices.
fn replicated_on(devices: &[&str], comm: Option<&Arc<Communicator>>) -> Pipeline<Noisy> {
    let settings = PipelineSettings {
        replicas: vec![2],
        devices: devices.iter().map(|&name| name.to_owned()).collect(),
        ..evenly(2)
    };
    let builder = settings.builder(noisy_layers(layers()), sample).unwrap();
    let builder = match comm {
        Some(comm) => builder.communicator(comm.clone()),
        None => builder,
    };
    builder.seed(3).build().unwrap()
}

/// Replicas in several processes, and a resumed run of these under other numbers of processes.
#[test]
fn processes_leave_the_files_of_replicas() {
    let directory = tempfile::tempdir().unwrap();
    let [whole, path] = ["whole", "apart"].map(|name| directory.path().join(name));
    let settings = TrainSettings {
        accumulate: 2,
        ema: 0.9,
        clip: 0.5,
        save_every: 5,
        keep_last: 100,
        check_replicas: 2,
        ..settings(OptimizerSetting::AdamW, 3e-3, 3)
    };
    let pipeline = replicated_on(&["cpu"], None);
    let (_, summary) = resume::train(pipeline, &settings, &usual_data(), &whole);
    let expected = summary.unwrap();
    // Also with states in files.
    let away = TrainSettings {
        offload: OffloadSetting::Optimizer,
        offload_to: directory.path().join("states"),
        ..settings.clone()
    };
    for (size, devices, batches) in [
        (2, ["0/cpu", "0/cpu", "1/cpu", "1/cpu"], 11),
        (4, ["0/cpu", "1/cpu", "2/cpu", "3/cpu"], 9),
        (3, ["1/cpu", "0/cpu", "1/cpu", "2/cpu"], usize::MAX),
    ] {
        let summaries = in_ranks(size, |comm| {
            let processes = Processes::new(Some(comm.clone()));
            let open = || RunFolder::resume(&path);
            let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
            let settings = if size == 3 { &settings } else { &away };
            let mut trainer = trainer(replicated_on(&devices, Some(&comm)), settings.clone());
            let _ = trainer.resume(&folder).unwrap();
            let data = failing(usual_data(), batches);
            let summary = train_silently(&mut trainer, &data, &folder);
            if summary.is_ok() {
                folder.finish().unwrap();
            }
            summary
        });
        for summary in summaries {
            match summary {
                Ok(summary) => assert_eq!(summary.test, expected.test),
                Err(error) => assert!(batches < usize::MAX, "{error}"),
            }
        }
    }
    let files = [&whole, &path].map(|path| left_by(path));
    assert!(files[0].0 == files[1].0, "other weights");
    assert_eq!(files[0].1, files[1].1);
    assert!(tensors(&whole) == tensors(&path), "other checkpoints");
}

/// Each part under another number of processes and stages.
#[test]
fn a_training_resumes_in_other_processes() {
    let directory = tempfile::tempdir().unwrap();
    let [whole, broken] = ["whole", "broken"].map(|name| directory.path().join(name));
    let settings = TrainSettings {
        accumulate: 4,
        ema: 0.9,
        clip: 0.5,
        save_every: 5,
        ..settings(OptimizerSetting::Adam, 3e-3, 3)
    };
    let pipeline = noisy_of(layers(), &evenly(2));
    let (_, summary) = resume::train(pipeline, &settings, &usual_data(), &whole);
    summary.unwrap();
    for (size, devices, batches) in [
        (2, &["0/cpu", "1/cpu"][..], 9),
        (3, &["2/cpu", "1/cpu", "0/cpu"], 12),
        (1, &["0/cpu", "0/cpu"], 26),
        (4, &["0/cpu", "1/cpu", "2/cpu", "3/cpu"], 7),
        (2, &["1/cpu", "0/cpu", "1/cpu"], usize::MAX),
    ] {
        for summary in train(size, devices, &settings, batches, &broken) {
            assert_eq!(summary.is_ok(), batches == usize::MAX, "{summary:?}");
        }
    }
    let [whole, broken] = [whole, broken].map(|path| left_by(&path));
    assert!(whole.0 == broken.0, "other weights");
    assert_eq!(whole.1, broken.1);
}

/// A rank that is asked to end ends all, after the same step, with a checkpoint.
#[test]
fn all_processes_end_together() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = settings(OptimizerSetting::Adam, 1e-2, 2);
    let summaries = in_ranks(3, |comm| {
        let processes = Processes::new(Some(comm.clone()));
        let open = || RunFolder::create(&path);
        let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
        // The first stage is where data are loaded.
        let pipeline = noisy_on(&["1/cpu", "0/cpu", "2/cpu"], &comm);
        let mut trainer = trainer(pipeline, settings.clone());
        let end = Arc::new(trainer.end_after_step());
        let is_asked = comm.rank() == 1;
        let data: Tapped<_> = tapped(usual_data(), move |_| {
            let end = end.clone();
            move |number, batch| {
                if number == 6 && is_asked {
                    end();
                }
                batch
            }
        });
        let summary = train_silently(&mut trainer, &data, &folder).unwrap();
        folder.finish().unwrap();
        summary
    });
    assert!(summaries.iter().all(|summary| summary.stopped));
    let tests: Vec<_> = summaries.iter().map(|summary| &summary.test).collect();
    assert!(tests[0] == tests[1] && tests[1] == tests[2]);
    let checkpoints = Checkpoints::of(&path).list().unwrap();
    assert_eq!(checkpoints[0].name(), "epoch-0000-batch-0000006");
    assert!(path.join("model.safetensors").is_file());
}

/// A failure in one process is an error in all: its own there, elsewhere with rank and host.
#[test]
fn a_failure_of_one_is_that_of_all() {
    let directory = tempfile::tempdir().unwrap();
    let settings = settings(OptimizerSetting::Adam, 1e-2, 2);
    for failing_rank in 0..2 {
        let path = directory.path().join(failing_rank.to_string());
        let results = in_ranks(2, |comm| {
            let processes = Processes::new(Some(comm.clone()));
            let open = || RunFolder::create(&path);
            let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
            let devices = [["0/cpu", "1/cpu"], ["1/cpu", "0/cpu"]][failing_rank];
            let mut trainer = trainer(noisy_on(&devices, &comm), settings.clone());
            train_silently(&mut trainer, &failing(usual_data(), 5), &folder)
        });
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.unwrap_err().to_string();
            let elsewhere = format!("rank {failing_rank} on localhost failed: ");
            assert_eq!(error.starts_with(&elsewhere), rank != failing_rank);
            assert!(error.ends_with("the end"), "{error}");
        }
    }
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error_in_all() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let errors = in_ranks(2, |comm| {
        let open = || RunFolder::create(&file);
        let folder = RunFolder::open_in::<TrainError>(&Processes::new(Some(comm)), open);
        folder.unwrap_err().to_string()
    });
    assert!(errors[1].starts_with("rank 0 on localhost failed: "));
    assert!(errors[1].ends_with(&errors[0]), "{errors:?}");
}

/// The first process alone has the file.
#[test]
fn weights_travel_to_the_processes_that_need_them() {
    let directory = tempfile::tempdir().unwrap();
    let [path, copy] = ["a", "b"].map(|name| directory.path().join(name));
    let trained = noisy_of(layers(), &evenly(2));
    save_model(&trained, path.clone()).unwrap();
    let sent = in_ranks(3, |comm| {
        let nowhere = Path::new("nowhere");
        let own = if comm.rank() == 0 { &path } else { nowhere };
        let mut pipeline = {
            let settings = PipelineSettings {
                devices: ["0/cpu", "1/cpu", "2/cpu"].map(str::to_owned).to_vec(),
                ..evenly(3)
            };
            let builder = settings.builder(noisy_layers(layers()), sample).unwrap();
            builder.communicator(comm.clone()).seed(9).build().unwrap()
        };
        load_model(&mut pipeline, own).unwrap();
        let before = comm.bytes_sent();
        let to = if comm.rank() == 0 { &copy } else { nowhere };
        save_model(&pipeline, to.to_owned()).unwrap();
        let missing = Weights::open_in(&Processes::new(Some(comm.clone())), nowhere);
        assert!(missing.unwrap_err().to_string().contains("nowhere"));
        comm.bytes_sent() - before
    });
    assert!(fs::read(&path).unwrap() == fs::read(&copy).unwrap());
    // Each tensor is sent once, to the first process.
    let bytes = fs::metadata(&path).unwrap().len();
    assert!(sent[1] + sent[2] < 2 * bytes, "{sent:?} of {bytes}");
}

#[test]
fn processes_with_other_data_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let results = in_ranks(2, |comm| {
        let processes = Processes::new(Some(comm.clone()));
        let open = || RunFolder::create(&path);
        let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
        let settings = settings(OptimizerSetting::Adam, 1e-2, 1);
        let mut trainer = trainer(noisy_on(&["0/cpu", "1/cpu"], &comm), settings);
        let hash = format!("hash {}", comm.rank());
        let data = usual_data().with_fingerprint([("points".to_owned(), hash)].into());
        train_silently(&mut trainer, &data, &folder)
            .unwrap_err()
            .to_string()
    });
    let expected =
        "the data differ from those of rank 0 on localhost: points: hash 0 then, hash 1 now";
    assert_eq!(results[1], expected);
    assert_eq!(
        results[0],
        format!("rank 1 on localhost failed: {expected}")
    );
}

/// Only the process of the first stage loads.
#[test]
fn batches_are_loaded_once() {
    use std::sync::atomic::{AtomicUsize, Ordering};

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let loaded: [AtomicUsize; 3] = Default::default();
    let loaded = Arc::new(loaded);
    in_ranks(3, |comm| {
        let processes = Processes::new(Some(comm.clone()));
        let open = || RunFolder::create(&path);
        let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
        let pipeline = noisy_on(&["1/cpu", "0/cpu", "2/cpu"], &comm);
        let settings = settings(OptimizerSetting::Adam, 1e-2, 2);
        let mut trainer = trainer(pipeline, settings);
        let (loaded, rank) = (loaded.clone(), comm.rank());
        let data: Tapped<_> = tapped(usual_data(), move |_| {
            let loaded = loaded.clone();
            move |_, batch| {
                loaded[rank].fetch_add(1, Ordering::SeqCst);
                batch
            }
        });
        train_silently(&mut trainer, &data, &folder).unwrap();
    });
    let loaded = loaded.each_ref().map(|count| count.load(Ordering::SeqCst));
    // Two epochs, and a few batches before each test to recalibrate the batch norms.
    assert!(loaded[1] >= 26, "{loaded:?}");
    assert_eq!([loaded[0], loaded[2]], [0, 0]);
}

/// Processes of a host share its memory, and links between hosts are the slowest.
#[test]
fn memory_and_links_are_those_of_the_hosts() {
    let devices = ["0/cpu", "0/cpu:threads=2", "1/cpu", "2/cpu"];
    let settings = PipelineSettings {
        stages: devices.len(),
        devices: devices.map(str::to_owned).to_vec(),
        device_memory: vec![3000],
        ..PipelineSettings::default()
    };
    let needs = vec![
        MemoryUse {
            inputs: 1100,
            ..MemoryUse::default()
        };
        devices.len()
    ];
    for (hosts, shares, fits) in [
        (["a", "a", "a"], [750, 750, 750, 750], false),
        (["a", "a", "b"], [1000, 1000, 1000, 3000], false),
        (["a", "b", "b"], [1500, 1500, 1500, 1500], true),
        (["a", "b", "c"], [1500, 1500, 3000, 3000], true),
    ] {
        let of_ranks = on_hosts(&hosts, |comm| {
            let available = settings
                .available_memory(&Processes::new(Some(comm)))
                .unwrap();
            (
                available.shares(),
                available.check(&needs).map_err(|error| error.to_string()),
            )
        });
        for (found, checked) in of_ranks {
            assert_eq!(found, shares.map(Some), "{hosts:?}");
            assert_eq!(checked.is_ok(), fits, "{hosts:?}");
            if let Err(said) = checked {
                let host = if hosts[2] == "a" { "cpu" } else { "cpu of a" };
                assert!(said.contains(host), "{said}");
            }
        }
    }
}

/// The levels of a machine's links, from those that were measured within and between processes.
#[test]
fn levels_join_what_is_near_first() {
    let link = |bandwidth| Link {
        latency: 0.0,
        bandwidth,
    };
    let (within, near, far) = (link(8.0), link(4.0), link(2.0));
    /// Hosts, the process of each device, links between processes, and the levels.
    type Case = (
        &'static [&'static str],
        &'static [usize],
        Vec<Link>,
        &'static [(usize, f64)],
    );
    let cases: [Case; 5] = [
        (&["a"; 2], &[0, 0, 1, 1], vec![near], &[(2, 8.0), (2, 4.0)]),
        (
            &["a", "a", "b", "b"],
            &[0, 1, 2, 3],
            vec![near, far, near],
            &[(2, 4.0), (2, 2.0)],
        ),
        (&["a", "a", "b"], &[0, 1, 2], vec![near, far], &[(3, 2.0)]),
        // No two neighbours share a host: what is not known is taken to be slow.
        (
            &["a", "b", "a", "b"],
            &[0, 2, 1, 3],
            vec![far, far, far],
            &[(2, 2.0), (2, 2.0)],
        ),
        (&["a", "b"], &[0, 0, 1], vec![far], &[(3, 2.0)]),
    ];
    for (hosts, ranks, links, expected) in cases {
        let levels = on_hosts(hosts, |comm| {
            Processes::new(Some(comm)).levels(ranks, Some(within), &links)
        });
        for levels in levels {
            let levels: Vec<_> = levels
                .iter()
                .map(|own| (own.workers, own.bandwidth))
                .collect();
            assert_eq!(levels, expected, "{hosts:?}");
        }
    }
}

/// A timeline names the hosts, if there are several.
#[test]
fn a_timeline_names_hosts() {
    for (hosts, expected) in [(["a", "b"], " · 1/cpu on b\n"), (["a", "a"], " · 1/cpu\n")] {
        let path = tempfile::tempdir().unwrap();
        on_hosts(&hosts, |comm| {
            let processes = Processes::new(Some(comm.clone()));
            let open = || RunFolder::resume(path.path());
            let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
            let pipeline = noisy_on(&["0/cpu", "1/cpu"], &comm);
            let settings = TrainSettings {
                epochs: 1,
                max_steps: 2,
                ..TrainSettings::default()
            };
            let mut trainer = trainer(pipeline, settings);
            train_silently(&mut trainer, &usual_data(), &folder).unwrap();
            folder.finish().unwrap();
        });
        let svg = fs::read_to_string(path.path().join("timeline.svg")).unwrap();
        assert!(svg.contains(expected), "{svg}");
    }
}
