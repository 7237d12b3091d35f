//! Trainings without a flush: in windows of mini-batches.

use stovepipe_pipeline::Precision;
use stovepipe_schedule::Rule;

use super::{
    processes::in_ranks,
    resume::{Noisy, failing_after, left_by, noisy_layers, noisy_of, train},
    *,
};

/// PipeDream's schedule over stages of equal numbers of layers.
fn asynchronous(stages: usize) -> PipelineSettings {
    PipelineSettings {
        schedule: ScheduleSetting::Rule(Rule::PipeDream),
        micro_batches: 2,
        ..evenly(stages)
    }
}

fn windows(window: usize) -> TrainSettings {
    TrainSettings {
        window: Some(window),
        clip: 0.5,
        save_every: 4,
        ..settings(OptimizerSetting::AdamW, 3e-3, 3)
    }
}

fn piped(settings: &PipelineSettings) -> Pipeline<Noisy> {
    noisy_of(layers(), settings)
}

/// An epoch has 13 mini-batches: windows of 4, 4, 4 and 1.
#[test]
fn a_training_goes_on_at_the_end_of_a_window() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let (settings, pipeline) = (windows(4), asynchronous(3));
    let all = failing_after(1000);
    let (_, whole) = train(piped(&pipeline), &settings, &all, &path("whole"));
    let whole = whole.unwrap();
    assert!(whole.test.get("accuracy").unwrap() > 0.8, "{}", whole.test);
    let steps = json_lines(&path("whole").join("steps.jsonl"));
    let steps = steps.iter().map(|line| line["step"].as_u64());
    assert!(
        steps.eq((1..=39).map(Some)),
        "each mini-batch has its own number"
    );
    let mut began = Vec::new();
    // The data fail within a window, which then counts as not trained.
    for batches in [3, 6, 9, 7] {
        let ending = failing_after(batches);
        let (resumed, ended) = train(piped(&pipeline), &settings, &ending, &path("broken"));
        assert_matches!(ended, Err(TrainError::Data(_)));
        began.push((resumed.epochs, resumed.batches));
    }
    assert_eq!(began, [(0, 0), (0, 0), (0, 4), (0, 8)]);
    let (_, ended) = train(piped(&pipeline), &settings, &all, &path("broken"));
    assert_eq!(ended.unwrap().epochs, 3);
    let [whole, broken] = ["whole", "broken"].map(|name| left_by(&path(name)));
    assert!(whole.0 == broken.0, "other weights");
    assert_eq!(whole.1, broken.1);

    // A synchronous training goes on without a flush, and back.
    let mut began = Vec::new();
    for (pipeline, window, batches) in [
        (evenly(2), None, 13),
        (pipeline, Some(4), 13),
        (evenly(1), None, 1000),
    ] {
        let settings = TrainSettings {
            window,
            ..settings.clone()
        };
        let data = failing_after(batches);
        let (resumed, _) = train(piped(&pipeline), &settings, &data, &path("mixed"));
        began.push((resumed.epochs, resumed.batches));
    }
    assert_eq!(began, [(0, 0), (1, 0), (2, 0)]);
}

#[test]
fn processes_leave_the_files_of_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for (name, replicas, vertical_sync, devices) in [
        ("two", vec![1], false, vec!["0/cpu", "1/cpu"]),
        ("synced", vec![1], true, vec!["1/cpu", "0/cpu"]),
        (
            "replicated",
            vec![2, 1],
            false,
            vec!["0/cpu", "1/cpu", "1/cpu"],
        ),
    ] {
        let pipeline = PipelineSettings {
            replicas,
            vertical_sync,
            ..asynchronous(2)
        };
        let one = format!("{name}-one");
        let all = failing_after(1000);
        let (_, whole) = train(piped(&pipeline), &windows(5), &all, &path(&one));
        let whole = whole.unwrap();
        let several = in_ranks(2, |comm| {
            let processes = Processes::new(Some(comm.clone()));
            let open = || RunFolder::resume(&path(name));
            let folder = RunFolder::open_in::<TrainError>(&processes, open).unwrap();
            let own = PipelineSettings {
                devices: devices.iter().map(|&name| name.to_owned()).collect(),
                ..pipeline.clone()
            };
            let builder = own.builder(noisy_layers(layers()), sample).unwrap();
            let pipeline = builder.communicator(comm).seed(3).build().unwrap();
            let mut trainer = trainer(pipeline, windows(5));
            let summary = train_silently(&mut trainer, &usual_data(), &folder).unwrap();
            folder.finish().unwrap();
            summary
        });
        assert!(several.iter().all(|own| own.test == whole.test), "{name}");
        let [one, several] = [&one[..], name].map(|name| left_by(&path(name)));
        assert!(one.0 == several.0, "{name}: other weights");
        assert_eq!(one.1, several.1, "{name}");
    }
}

/// In the first update, a stage whose gradients are late by two updates has half of the rate (PipeMare).
#[test]
fn late_stages_warm_up() {
    let changes = |staleness_warmup_epochs: f64| {
        let (_directory, folder) = run_folder();
        let pipeline = PipelineSettings {
            micro_batches: 1,
            ..asynchronous(3)
        };
        let settings = TrainSettings {
            staleness_warmup_epochs,
            max_steps: 1,
            momentum: 0.0,
            weight_decay: 0.0,
            ..settings(OptimizerSetting::Sgd, 0.1, 1)
        };
        let mut trainer = trainer(piped(&pipeline), settings);
        assert_eq!(trainer.pipeline().staleness().unwrap(), [2, 1, 0]);
        let weights = |trainer: &Trainer<_, _>| -> Vec<Vec<f64>> {
            let stages = trainer.pipeline().stage_layers();
            let of_stage = |layers: &[Noisy]| Numbers::default().of(&layers.to_vec());
            stages.map(of_stage).collect()
        };
        let before = weights(&trainer);
        let summary = train_silently(&mut trainer, &usual_data(), &folder).unwrap();
        assert_eq!(summary.epochs, 0);
        let change = |(after, before): (Vec<f64>, Vec<f64>)| {
            let squares = after.iter().zip(&before).map(|(a, b)| (a - b).powi(2));
            squares.sum::<f64>().sqrt()
        };
        let stages = weights(&trainer).into_iter().zip(before);
        stages.map(change).collect::<Vec<_>>()
    };
    let (full, warm) = (changes(0.0), changes(1.0));
    let ratios: Vec<_> = warm
        .iter()
        .zip(&full)
        .map(|(warm, full)| warm / full)
        .collect();
    for (ratio, expected) in ratios.iter().zip([0.5, 1.0, 1.0]) {
        assert!((ratio - expected).abs() < 1e-3, "{ratios:?}");
    }
}

#[test]
fn settings_that_need_a_flush() {
    let (_directory, folder) = run_folder();
    let of_trainer = |settings: TrainSettings, pipeline: PipelineSettings| {
        let mut trainer = trainer(piped(&pipeline), settings);
        let error = train_silently(&mut trainer, &usual_data(), &folder).unwrap_err();
        error.to_string()
    };
    let usual = || windows(4);
    for (settings, pipeline, expected) in [
        (
            TrainSettings {
                accumulate: 2,
                ..usual()
            },
            asynchronous(2),
            "--accumulate does not work with --schedule pipedream, which does not wait for updates",
        ),
        (
            TrainSettings {
                ema: 0.9,
                ..usual()
            },
            asynchronous(2),
            "--ema does not work with --schedule pipedream, which does not wait for updates",
        ),
        (
            windows(14),
            asynchronous(2),
            "window is 14, but an epoch has 13 mini-batches",
        ),
        (
            usual(),
            evenly(2),
            "--window has no effect: it is for --schedule pipedream",
        ),
        (
            TrainSettings {
                window: None,
                staleness_warmup_epochs: 1.0,
                ..usual()
            },
            evenly(2),
            "--staleness-warmup-epochs has no effect: it is for --schedule pipedream",
        ),
    ] {
        assert_eq!(of_trainer(settings, pipeline), expected);
    }
    assert_eq!(
        windows(0).check().unwrap_err().to_string(),
        "window is 0, but must be at least 1"
    );
    let of_pipeline = |settings: PipelineSettings| settings.check(4).unwrap_err().to_string();
    let f16 = PipelineSettings {
        precision: Precision::F16,
        ..asynchronous(2)
    };
    let synced = PipelineSettings {
        vertical_sync: true,
        ..evenly(2)
    };
    let replicated = PipelineSettings {
        replicas: vec![2],
        ..asynchronous(2)
    };
    for (settings, expected) in [
        (
            f16,
            "--precision f16 does not work with --schedule pipedream",
        ),
        (
            synced,
            "--vertical-sync has no effect: it is for --schedule pipedream",
        ),
        (replicated, "the schedule pipedream has no such replicas"),
    ] {
        let found = of_pipeline(settings);
        assert!(found.starts_with(expected), "{found}");
    }
}
