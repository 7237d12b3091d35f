//! When a training ends, when it tests, and what it keeps and says.

use std::{
    hint,
    io::Write,
    time::{Duration, Instant},
};

use stovepipe_plan::Profile;
use stovepipe_schedule::Rule;

use super::{
    resume::{failing_after, left_by},
    *,
};

/// Linear layers only: nothing changes at a tiny rate.
fn plain() -> Pipeline<Dense> {
    let mut layers = layers();
    layers.iter_mut().for_each(|layer| layer.norm = None);
    built(&evenly(2), layers)
}

/// A training at a rate that stays the same.
fn constant(lr: f64, epochs: usize) -> TrainSettings {
    TrainSettings {
        decay: DecaySetting::None,
        warmup_epochs: 0.0,
        ..settings(OptimizerSetting::AdamW, lr, epochs)
    }
}

/// What is said.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, text: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(text)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Trains in a folder, which is kept, on from its checkpoint if it has one. Returns what is said, too.
fn train(
    pipeline: Pipeline<Dense>,
    settings: &TrainSettings,
    path: &Path,
) -> (Result<Summary, TrainError>, String) {
    let said = Said::default();
    let out = said.clone();
    let folder = RunFolder::resume(path).unwrap();
    let mut trainer = trainer(pipeline, settings.clone());
    let _ = trainer.resume(&folder).unwrap();
    let summary = trainer.run(&failing_after(10_000), &folder, |epochs, batches| {
        let mut progress = Progress::written(out);
        progress.begin("epoch", epochs);
        progress.part("batch", batches);
        progress
    });
    if summary.is_ok() {
        folder.finish().unwrap();
    }
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    (summary, said)
}

/// A limit of steps is an end like any other, also within an epoch of 13 mini-batches or between two updates.
/// With a higher limit, the training goes on as if there had been none.
#[test]
fn a_limit_of_steps_ends_a_training() {
    let directory = tempfile::tempdir().unwrap();
    for (max_steps, accumulate, epochs) in [(5, 1, 0), (13, 3, 1), (20, 4, 1), (100, 1, 2)] {
        let path = directory.path().join(max_steps.to_string());
        let limited = TrainSettings {
            max_steps,
            accumulate,
            ..constant(1e-2, 2)
        };
        let summary = train(pipeline(2), &limited, &path).0.unwrap();
        assert_eq!((summary.epochs, summary.stopped), (epochs, false));
        let steps = json_lines(&path.join("steps.jsonl")).len();
        assert_eq!(steps, max_steps.min(26));
        assert!(path.join("best.safetensors").is_file());
        let again = train(pipeline(3), &limited, &path).0.unwrap();
        assert_eq!((again.test, again.epochs), (summary.test, epochs));
        let unlimited = TrainSettings {
            max_steps: 0,
            ..limited
        };
        train(pipeline(1), &unlimited, &path).0.unwrap();
        let whole = directory.path().join("whole").join(max_steps.to_string());
        train(pipeline(2), &unlimited, &whole).0.unwrap();
        assert_eq!(left_by(&path), left_by(&whole), "{max_steps}");
    }
}

/// Tests are as seldom as they should be, and the last epoch has one.
#[test]
fn epochs_between_tests_are_not_tested() {
    let directory = tempfile::tempdir().unwrap();
    for (test_every, expected) in [(2, [2, 4, 5].as_slice()), (9, &[5]), (1, &[1, 2, 3, 4, 5])] {
        let path = directory.path().join(test_every.to_string());
        let settings = TrainSettings {
            test_every,
            ..constant(1e-2, 5)
        };
        let summary = train(pipeline(2), &settings, &path).0.unwrap();
        let lines = metrics(&path);
        let with_test = lines.iter().filter(|line| line.get("test").is_some());
        let epochs: Vec<_> = with_test
            .map(|line| line["epoch"].as_u64().unwrap())
            .collect();
        assert_eq!((epochs.as_slice(), lines.len()), (expected, 5));
        let mut best = pipeline(1);
        load_model(&mut best, &path.join("best.safetensors")).unwrap();
        let (best, expected) = (tested(&best), summary.best.unwrap().test);
        assert!(
            best.iter()
                .all(|(name, value)| expected.get(name) == Some(value)),
            "{best:?}"
        );
    }
}

/// Nothing gets better at a rate of almost nothing.
#[test]
fn patience_ends_a_training_that_gets_no_better() {
    let directory = tempfile::tempdir().unwrap();
    for (patience, test_every, epochs) in [(2, 1, 3), (1, 2, 4), (9, 1, 5), (0, 1, 5)] {
        let path = directory.path().join(format!("{patience}-{test_every}"));
        let settings = TrainSettings {
            patience,
            test_every,
            ..constant(1e-30, 5)
        };
        let (summary, said) = train(plain(), &settings, &path);
        let summary = summary.unwrap();
        assert_eq!(
            (summary.epochs, summary.stopped),
            (epochs, false),
            "{patience}"
        );
        assert_eq!(said.contains("no better test in"), epochs < 5, "{said}");
        assert_eq!(summary.best.unwrap().epoch, test_every);
        let again = train(plain(), &settings, &path).0.unwrap();
        assert_eq!(again.epochs, epochs);
        let patient = TrainSettings {
            patience: 0,
            ..settings
        };
        assert_eq!(train(plain(), &patient, &path).0.unwrap().epochs, 5);
    }
}

/// A loss that rises is said; one that is huge is an error, although it is finite.
#[test]
fn a_rising_loss_does_not_pass_in_silence() {
    let directory = tempfile::tempdir().unwrap();
    for (lr, warns, fails) in [(1e-2, false, false), (1.0, true, false), (1e2, false, true)] {
        let settings = TrainSettings {
            clip: 0.0,
            ..constant(lr, 3)
        };
        let path = directory.path().join(lr.to_string());
        let (summary, said) = train(plain(), &settings, &path);
        assert_eq!(
            said.contains("warning: the training loss rose from"),
            warns,
            "{lr}: {said}"
        );
        match summary {
            Err(error @ TrainError::LossExploded { .. }) => {
                assert!(
                    fails && error.to_string().contains("try a smaller --lr"),
                    "{error}"
                );
            }
            other => assert!(!fails, "{lr}: {other:?}"),
        }
    }
}

/// The function after each epoch sees its files; if it fails, training goes on.
#[test]
fn a_function_is_called_after_each_epoch() {
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let own = seen.clone();
    let mut trainer = trainer(pipeline(2), constant(1e-2, 3)).on_epoch(move |folder| {
        let path = folder.file("");
        let (epochs, steps) = (
            metrics(&path).len(),
            json_lines(&path.join("steps.jsonl")).len(),
        );
        own.lock()
            .unwrap()
            .push((epochs, steps, path.join("timeline.svg").is_file()));
        Err("no space left".into())
    });
    let said = Said::default();
    let out = said.clone();
    trainer
        .run(&usual_data(), &folder, |_, _| Progress::written(out))
        .unwrap();
    assert_eq!(
        *seen.lock().unwrap(),
        [(1, 13, true), (2, 26, true), (3, 39, true)]
    );
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    assert_eq!(
        said.matches("warning: training continues: no space left")
            .count(),
        3,
        "{said}"
    );
}

/// Burn's linear layers compute all their gradients at once.
#[test]
fn halves_without_deferred_gradients_are_told_once() {
    let directory = tempfile::tempdir().unwrap();
    for (rule, warnings) in [(Rule::ZeroBubbleH1, 1), (Rule::OneForwardOneBackward, 0)] {
        let settings = PipelineSettings {
            schedule: ScheduleSetting::Rule(rule),
            ..evenly(2)
        };
        let path = directory.path().join(rule.name());
        let (summary, said) = train(built(&settings, layers()), &constant(1e-2, 2), &path);
        summary.unwrap();
        let found = said
            .matches("backward passes in halves gain nothing")
            .count();
        assert_eq!(found, warnings, "{said}");
    }
}

/// A layer with a busy loop, as on a device that has become slow.
#[derive(Module, Debug)]
struct Busy {
    dense: Dense,
    milliseconds: u64,
}

#[layer]
impl Busy {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(self.milliseconds) {
            hint::spin_loop();
        }
        self.dense.linear.forward(x)
    }
}

/// Layers took as long as one another when they were measured. Now the first one takes longer, and is best alone.
#[test]
fn a_worker_that_has_become_slow_is_named() {
    let layers = |milliseconds| {
        let busy = |dense| Busy {
            dense,
            milliseconds,
        };
        layers().into_iter().map(busy).collect::<Vec<_>>()
    };
    let mut slow = layers(0);
    slow[0].milliseconds = 20;
    let count = slow.len();
    let mut text = "input = 1\nsamples = 1\n".to_owned();
    for layer in 0..count {
        text += &format!(
            "[[layer]]\nname = \"{layer}\"\nforward = 1.0\nbackward = 1.0\nparameters = 1\noutput = 1\n"
        );
    }
    let measured = Profile::from_toml(&text).unwrap().into();
    let said = Said::default();
    let out = said.clone();
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let mut trainer = trainer(built(&evenly(2), slow), constant(1e-3, 2)).expecting(&measured);
    trainer
        .run(&usual_data(), &folder, |_, _| Progress::written(out))
        .unwrap();
    let said = String::from_utf8(said.0.lock().unwrap().clone()).unwrap();
    let line = format!("--balance 1,{} would now be best", count - 1);
    assert!(said.contains("passes of worker 0 took "), "{said}");
    assert_eq!(said.matches(&line).count(), 1, "{said}");
}
