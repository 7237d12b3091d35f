//! Whole trainings in mixed precision.

use stovepipe_pipeline::Precision;

use super::{
    resume::{failing, left_by, noisy_of, train},
    *,
};

fn settings_in(stages: usize, precision: Precision) -> PipelineSettings {
    PipelineSettings {
        precision,
        ..evenly(stages)
    }
}

fn pipeline_in(stages: usize, precision: Precision) -> Pipeline<Dense> {
    built(&settings_in(stages, precision), layers())
}

/// The data with one training sample that is infinite in f16.
fn data_with_one_too_large(samples: usize) -> Data<Tensor<2>, Tensor<1, Int>> {
    let mut train: Vec<Point> = points(samples, 0).iter().map(Result::unwrap).collect();
    train[samples / 2].0 = 1e6;
    Data::new(InMemDataset::new(train), points(200, 5000), Points)
}

#[test]
fn a_training_learns_as_much_as_in_f32() {
    let directory = tempfile::tempdir().unwrap();
    let run = |precision: Precision, stages: usize| {
        let path = directory.path().join(format!("{precision}-{stages}"));
        let folder = RunFolder::create(&path).unwrap();
        let settings = TrainSettings {
            ema: 0.9,
            ..settings(OptimizerSetting::AdamW, 1e-2, 20)
        };
        let mut trainer = trainer(pipeline_in(stages, precision), settings);
        let summary = train_silently(&mut trainer, &usual_data(), &folder);
        let models = ["model.safetensors", "averaged.safetensors"];
        let models = models.map(|name| fs::read(folder.file(name)).unwrap());
        (summary.unwrap(), models)
    };
    let (exact, in_f32) = run(Precision::F32, 2);
    assert!(exact.loss_scale.is_none());
    for precision in [Precision::Bf16, Precision::F16] {
        let (summary, models) = run(precision, 2);
        let lost = accuracy(&exact.test) - accuracy(&summary.test);
        assert!(lost < 0.03, "{precision}: {summary:?}, {exact:?}");
        assert_eq!(summary.loss_scale.is_some(), precision == Precision::F16);
        assert!(models != in_f32, "nothing was rounded");
        for stages in [1, 4] {
            let same = run(precision, stages).1 == models;
            assert!(same, "{precision}, {stages} stages");
        }
    }
}

/// A sample that is infinite in f16 spoils its update, once in each epoch, and nothing else.
#[test]
fn updates_that_overflow_are_skipped_and_counted() {
    let directory = tempfile::tempdir().unwrap();
    for accumulate in [1, 3] {
        let path = directory.path().join(accumulate.to_string());
        let folder = RunFolder::create(&path).unwrap();
        let settings = TrainSettings {
            accumulate,
            ..settings(OptimizerSetting::AdamW, 1e-2, 12)
        };
        let mut trainer = trainer(pipeline_in(2, Precision::F16), settings);
        let data = data_with_one_too_large(610);
        let summary = train_silently(&mut trainer, &data, &folder);
        let summary = summary.unwrap();
        assert!(summary.train_loss.is_finite());
        assert!(accuracy(&summary.test) > 0.85, "{summary:?}");
        // Norms of the few samples of an epoch's last mini-batch may overflow once themselves.
        let LossScale { scale, skipped } = summary.loss_scale.unwrap();
        assert!((12..=14).contains(&skipped), "{skipped}");
        assert_eq!(scale, 65536.0 / 2f64.powi(skipped as i32));
        let mut so_far = 0;
        for line in metrics(&folder.file("")) {
            let own = line["loss_scale"]["skipped"].as_i64().unwrap();
            assert!(own >= 1, "{line}");
            so_far += own as i32;
            assert_eq!(line["loss_scale"]["scale"], 65536.0 / 2f64.powi(so_far));
            assert_eq!(line["steps"], 13);
            assert_eq!(line["updates"], 13usize.div_ceil(accumulate));
        }
    }
}

/// If every step overflows, the model does not change until the training fails.
#[test]
fn a_skipped_update_leaves_every_bit() {
    let directory = tempfile::tempdir().unwrap();
    for accumulate in [1, 4] {
        let path = directory.path().join(accumulate.to_string());
        let folder = RunFolder::create(&path).unwrap();
        let settings = TrainSettings {
            accumulate,
            weight_decay: 0.1,
            ..settings(OptimizerSetting::AdamW, 1e-2, 15)
        };
        let mut trainer = trainer(pipeline_in(2, Precision::F16), settings);
        let before = values(trainer.pipeline());
        let mut train: Vec<Point> = vec![(1e6, 0.0, 1); 610];
        train[0].0 = 1.0;
        let data = Data::new(InMemDataset::new(train), points(200, 5000), Points);
        let error = train_silently(&mut trainer, &data, &folder);
        let Err(TrainError::Diverged { epoch, batch, .. }) = error else {
            panic!("{error:?}")
        };
        assert_eq!((epoch, batch), (2, 5));
        assert_eq!(values(trainer.pipeline()), before);
    }
}

/// Stopped between updates, also spoiled ones, in two, three and one stage: the same bits, scales and
/// counts.
#[test]
fn a_training_in_mixed_precision_resumes_with_the_same_bits() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        (Precision::Bf16, 3),
        (Precision::F16, 1),
        (Precision::F16, 4),
    ];
    for (precision, accumulate) in cases {
        let settings = TrainSettings {
            accumulate,
            ema: 0.9,
            clip: 0.5,
            save_every: 1,
            ..settings(OptimizerSetting::AdamW, 3e-3, 3)
        };
        let case = format!("{precision}-{accumulate}");
        let path = |name: &str| directory.path().join(format!("{name}-{case}"));
        let data = |batches| failing(data_with_one_too_large(610), batches);
        let whole = noisy_of(layers(), &settings_in(2, precision));
        let (_, summary) = train(whole, &settings, &data(1000), &path("whole"));
        let summary = summary.unwrap();
        let skipped = summary.loss_scale.map(|scaled| scaled.skipped);
        assert_eq!(skipped, (precision == Precision::F16).then_some(3));
        for (stages, batches) in [(2, 6), (3, 11), (1, 22), (2, 12), (4, 22)] {
            let broken = noisy_of(layers(), &settings_in(stages, precision));
            let (_, summary) = train(broken, &settings, &data(batches), &path("broken"));
            assert_matches!(summary, Err(TrainError::Data(_)));
        }
        let broken = noisy_of(layers(), &settings_in(3, precision));
        let (resumed, again) = train(broken, &settings, &data(1000), &path("broken"));
        assert!(resumed.checkpoint.is_some());
        assert_eq!(again.unwrap().loss_scale, summary.loss_scale);
        let [whole, broken] = ["whole", "broken"].map(|name| left_by(&path(name)));
        assert!(whole.0 == broken.0, "{case}: other weights");
        assert_eq!(whole.1, broken.1);
    }
}
