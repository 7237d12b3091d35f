//! Whole trainings of a small model on generated points.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod accumulation;
mod average;
mod objectives;
mod precision;
mod resume;
mod tokens;
mod transfer;

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use burn::{
    data::{
        dataloader::batcher::Batcher,
        dataset::{Dataset, InMemDataset},
    },
    module::{Module, ModuleVisitor, Param},
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::GradientsParams,
    tensor::{Device, Int, Tensor, activation::relu},
};
use serde_json::Value;
use stovepipe_pipeline::{
    Context, CrossEntropy, Flow, Layer, LayerError, Objective, Pipeline, StopHandle, layer,
};
use stovepipe_train::{
    checkpoint::*,
    data::Loader,
    optimizer::{StagedOptimizer, WeightAverage},
    run::*,
    settings::*,
    *,
};

#[derive(Module, Debug)]
struct Dense {
    linear: Linear,
    norm: Option<BatchNorm>,
}

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let y = self.linear.forward(x);
        match &self.norm {
            Some(norm) => relu(norm.forward(y)),
            None => y,
        }
    }
}

/// An input of the size of a micro-batch.
fn sample() -> Tensor<2> {
    Tensor::ones([13, 2], &Device::flex())
}

fn layers() -> Vec<Dense> {
    let device = Device::flex();
    let layer = |from, to, norm: bool| Dense {
        linear: LinearConfig::new(from, to).init(&device),
        norm: norm.then(|| BatchNormConfig::new(to).init(&device)),
    };
    vec![
        layer(2, 16, true),
        layer(16, 16, true),
        layer(16, 16, true),
        layer(16, 4, false),
    ]
}

/// Points in four quarters of a ring, each turned by its distance from the middle.
fn points(samples: usize, offset: usize) -> InMemDataset<Point> {
    let point = |index: usize| {
        let index = index + offset;
        let angle = (index as f32 * 2.399_963).rem_euclid(std::f32::consts::TAU);
        let radius = 0.4 + 0.6 * (index % 97) as f32 / 96.0;
        let class = (angle / std::f32::consts::FRAC_PI_2) as i64;
        let turned = angle + radius;
        (radius * turned.cos(), radius * turned.sin(), class.min(3))
    };
    InMemDataset::new((0..samples).map(point).collect())
}

struct Points;

/// Two coordinates and a class.
type Point = (f32, f32, i64);

impl Batcher<Point, (Tensor<2>, Tensor<1, Int>)> for Points {
    fn batch(&self, items: Vec<Point>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
        let places: Vec<f32> = items.iter().flat_map(|(x, y, _)| [*x, *y]).collect();
        let classes: Vec<i64> = items.iter().map(|item| item.2).collect();
        let places = Tensor::<1>::from_floats(places.as_slice(), device);
        (
            places.reshape([items.len(), 2]),
            Tensor::from_ints(classes.as_slice(), device),
        )
    }
}

fn data(train: usize, test: usize) -> Data<Tensor<2>, Tensor<1, Int>> {
    Data::new(points(train, 0), points(test, 5000), Points)
}

fn settings(optimizer: OptimizerSetting, lr: f64) -> TrainSettings {
    TrainSettings {
        epochs: 15,
        batch_size: 50,
        optimizer,
        lr,
        label_smoothing: 0.0,
        weight_decay: 1e-4,
        ..TrainSettings::default()
    }
}

fn pipeline(stages: usize) -> Pipeline<Dense> {
    let settings = PipelineSettings {
        stages,
        ..PipelineSettings::default()
    };
    built(&settings, layers())
}

fn built<L>(settings: &PipelineSettings, layers: Vec<L>) -> Pipeline<L>
where
    L: Layer<Input = Tensor<2>, Side = ()>,
{
    let builder = settings.builder(layers, sample).unwrap();
    builder.seed(3).build().unwrap()
}

/// A training set of 40 points as one batch.
fn forty_points() -> (Tensor<2>, Tensor<1, Int>) {
    let points = points(40, 0);
    Points.batch(points.iter().map(Result::unwrap).collect(), &Device::flex())
}

/// A trainer for classification.
fn trainer<L: Layer>(pipeline: Pipeline<L>, settings: TrainSettings) -> Trainer<L, CrossEntropy> {
    let task = Task::classification(&settings);
    Trainer::new(pipeline, task, settings).unwrap()
}

fn train_silently<L, T, O>(
    trainer: &mut Trainer<L, O>,
    source: &impl Source<L::Input, T, L::Side>,
    folder: &RunFolder,
) -> Result<Summary, TrainError>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    trainer.run(source, folder, |_, _| Progress::silent())
}

fn accuracy(metrics: &Metrics) -> f64 {
    metrics.get("accuracy").unwrap()
}

/// Evaluates a model on the test set.
fn tested(pipeline: &Pipeline<Dense>) -> Metrics {
    let task = Task::classification(&TrainSettings::default());
    let totals = evaluate(pipeline, data(610, 200).test(50), &task, |_| ());
    task.metrics(&totals.unwrap())
}

fn run(stages: usize, settings: TrainSettings, folder: &Path) -> Result<Summary, TrainError> {
    let folder = RunFolder::create(folder)?;
    let mut trainer = trainer(pipeline(stages), settings);
    let summary = train_silently(&mut trainer, &data(610, 200), &folder)?;
    folder.finish()?;
    Ok(summary)
}

#[test]
fn every_optimizer_learns() {
    let directory = tempfile::tempdir().unwrap();
    for (optimizer, lr) in [
        (OptimizerSetting::RmsProp, 3e-3),
        (OptimizerSetting::Sgd, 0.1),
        (OptimizerSetting::Adam, 1e-2),
        (OptimizerSetting::AdamW, 1e-2),
    ] {
        let folder = directory.path().join(format!("{optimizer:?}"));
        let settings = TrainSettings {
            epochs: 20,
            ..settings(optimizer, lr)
        };
        let summary = run(2, settings, &folder).unwrap();
        assert!(accuracy(&summary.test) > 0.9, "{optimizer:?}: {summary:?}");
        assert_eq!(summary.epochs, 20);
        assert_eq!(summary.test.get("top5"), Some(1.0)); // of four classes
    }
}

#[test]
fn stages_make_no_difference_to_a_whole_training() {
    let directory = tempfile::tempdir().unwrap();
    // A clip that is in force from the first step on.
    let settings = TrainSettings {
        clip: 0.1,
        decay: DecaySetting::Exponential,
        ..settings(OptimizerSetting::Sgd, 0.1)
    };
    let models: Vec<_> = [1, 2, 4]
        .into_iter()
        .map(|stages| {
            let folder = directory.path().join(stages.to_string());
            run(stages, settings.clone(), &folder).unwrap();
            fs::read(folder.join("model.safetensors")).unwrap()
        })
        .collect();
    assert!(models[0] == models[1] && models[1] == models[2]);
}

#[test]
fn a_saved_model_loads_under_another_number_of_stages() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("run");
    let summary = run(2, settings(OptimizerSetting::Adam, 1e-2), &folder).unwrap();
    let mut loaded = pipeline(4);
    load_model(&mut loaded, &folder.join("model.safetensors")).unwrap();
    let not_a_model = folder.join("metrics.jsonl");
    assert!(load_model(&mut loaded, &not_a_model).is_err());
    assert_eq!(tested(&loaded), summary.test);
}

/// All gradients of a module in one list.
fn all<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<f64> {
    struct All<'a>(&'a GradientsParams, Vec<f64>);
    impl ModuleVisitor for All<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.0.get::<D>(param.id) {
                self.1.extend(gradient.into_data().iter::<f64>());
            }
        }
    }
    let mut all = All(gradients, Vec::new());
    module.visit(&mut all);
    all.1
}

/// All parameters of a module in one list.
fn values<M: Module>(module: &M) -> Vec<f64> {
    struct Values(Vec<f64>);
    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0.extend(param.val().into_data().iter::<f64>());
            }
        }
    }
    let mut values = Values(Vec::new());
    module.visit(&mut values);
    values.0
}

/// Plain SGD moves parameters by the clipped gradient, whose norm is known.
#[test]
fn gradients_are_clipped_by_their_norm_over_all_stages() {
    let (clip, rate) = (0.05, 1.0);
    let settings = TrainSettings {
        optimizer: OptimizerSetting::Sgd,
        momentum: 0.0,
        weight_decay: 0.0,
        clip,
        ..TrainSettings::default()
    };
    for stages in [1, 3] {
        let mut pipeline = pipeline(stages);
        let step = pipeline
            .train_step(forty_points(), &CrossEntropy::new())
            .unwrap();
        let gradients = all(&pipeline, &step.gradients);
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        assert!(norm > 2.0 * clip);
        let before = values(&pipeline);
        let mut optimizer = StagedOptimizer::new(&settings, stages);
        let spans = optimizer
            .step(rate, &mut pipeline, step.gradients, Instant::now())
            .unwrap();
        assert_eq!(spans.len(), stages);
        let after = values(&pipeline);
        for ((before, after), gradient) in before.iter().zip(&after).zip(&gradients) {
            let expected = rate * gradient * clip / norm;
            assert!((before - after - expected).abs() < 1e-6);
        }
    }
}

/// Trains in `folder` until an action, for which `stops` gets the number of all actions of its step.
fn train_until(
    stops: impl Fn(usize) -> bool + Send + Sync + 'static,
    folder: &RunFolder,
) -> Summary {
    let stop = StopHandle::new();
    let (inside, once) = (stop.clone(), std::sync::Once::new());
    let builder = PipelineSettings::default()
        .builder(layers(), sample)
        .unwrap();
    let builder = builder.stop_handle(stop).on_progress(move |progress| {
        if stops(progress.total) {
            once.call_once(|| inside.stop());
        }
    });
    let settings = settings(OptimizerSetting::Adam, 1e-2);
    let mut trainer = trainer(builder.build().unwrap(), settings);
    let summary = train_silently(&mut trainer, &data(610, 200), folder).unwrap();
    assert!(summary.stopped);
    summary
}

#[test]
fn a_stop_ends_training_with_a_whole_folder() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let folder = RunFolder::create(&path).unwrap();
    assert_eq!(train_until(|_| true, &folder).epochs, 0);
    folder.finish().unwrap();
    assert!(path.join("model.safetensors").exists() && path.join("timeline.svg").exists());
}

/// Stopped in a test: it is repeated, and the results are saved.
#[test]
fn a_stop_while_testing_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    // Inference has half the actions of a training step: 8 of 4 micro-batches in two stages.
    let summary = train_until(|actions| actions == 8, &folder);
    assert_eq!(summary.epochs, 1);
    assert!(summary.train_loss > 0.0 && summary.test.loss > 0.0);
    let metrics = fs::read_to_string(folder.file("metrics.jsonl")).unwrap();
    assert_eq!(metrics.lines().count(), 1);
}

/// The only step has a finite loss, but its update makes the model NaN.
#[test]
fn a_model_that_the_last_update_ruined_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let settings = TrainSettings {
        epochs: 1,
        batch_size: 610,
        clip: 0.0,
        warmup_epochs: 0.0,
        ..settings(OptimizerSetting::Sgd, 1e30)
    };
    let path = directory.path().join("run");
    let error = run(2, settings, &path).unwrap_err();
    assert!(
        matches!(error, TrainError::TestLossNotFinite { epoch: 1, .. }),
        "{error}"
    );
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn folders_are_whole_or_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // A slash at the end, as shells complete it.
    let folder = RunFolder::create(&at("a/")).unwrap();
    assert!(at("a.partial").is_dir());
    assert_eq!(RunFolder::next(directory.path(), "a"), at("a-1"));
    // Two runs at once.
    assert!(matches!(
        RunFolder::create(&at("a")),
        Err(TrainError::RunUnderWay(_))
    ));
    folder.finish().unwrap();
    assert!(at("a").is_dir() && !at("a.partial").exists());
    // A run that fails, and somebody else's folder of that name.
    drop(RunFolder::create(&at("b")).unwrap());
    assert!(!at("b").exists() && !at("b.partial").exists());
    fs::create_dir(at("c.partial")).unwrap();
    fs::write(at("c.partial/thesis.tex"), "…").unwrap();
    assert!(RunFolder::create(&at("c")).is_err());
    assert!(at("c.partial/thesis.tex").exists());
    // A file, within a file, and no name at all.
    fs::write(at("f"), "").unwrap();
    assert!(matches!(
        RunFolder::create(&at("f")),
        Err(TrainError::FolderInUse(_))
    ));
    assert!(matches!(
        RunFolder::create(&at("f/g")),
        Err(TrainError::File { .. })
    ));
    assert!(RunFolder::create(Path::new("/")).is_err());
}

#[test]
fn empty_sets_are_errors() {
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let check = |train, test, expected: &str| {
        let mut trainer = trainer(pipeline(1), settings(OptimizerSetting::Adam, 1e-2));
        let error = train_silently(&mut trainer, &data(train, test), &folder).unwrap_err();
        assert_eq!(error.to_string(), expected);
    };
    check(0, 10, "the training set is empty");
    check(10, 0, "the test set is empty");
}

#[test]
fn a_batch_larger_than_the_set_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let train = |samples| {
        let settings = TrainSettings {
            epochs: 1,
            ..settings(OptimizerSetting::Adam, 1e-2)
        };
        let mut trainer = trainer(pipeline(1), settings);
        train_silently(&mut trainer, &data(samples, 10), &folder)
    };
    let error = train(49).unwrap_err();
    assert_eq!(
        error.to_string(),
        "batch-size is 50, but the training set has 49 samples: choose a --batch-size of at most 49"
    );
    assert!(train(50).is_ok());
}

/// Training uses a batcher for each epoch; tests always use the same.
#[test]
fn each_epoch_has_its_own_batcher() {
    /// Notes who made which batches.
    struct Noted {
        name: String,
        notes: Arc<Mutex<Vec<(String, usize)>>>,
    }
    impl Batcher<Point, (Tensor<2>, Tensor<1, Int>)> for Noted {
        fn batch(&self, items: Vec<Point>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
            let note = (self.name.clone(), items.len());
            self.notes.lock().unwrap().push(note);
            Points.batch(items, device)
        }
    }
    let notes = Arc::new(Mutex::new(Vec::new()));
    let noted = {
        let notes = notes.clone();
        move |name: String| Noted {
            name,
            notes: notes.clone(),
        }
    };
    let test = noted("test".to_owned());
    let of_epoch = move |epoch| noted(format!("epoch {epoch}"));
    let data = Data::augmented(points(80, 0), points(20, 5000), of_epoch, test);
    let settings = TrainSettings {
        epochs: 3,
        ..settings(OptimizerSetting::Adam, 1e-2)
    };
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    let mut trainer = trainer(pipeline(2), settings);
    train_silently(&mut trainer, &data, &folder).unwrap();
    let notes = notes.lock().unwrap();
    let notes: Vec<_> = notes.iter().map(|(name, n)| (name.as_str(), *n)).collect();
    let epoch = |name| [(name, 50), (name, 30), ("test", 20)];
    assert_eq!(notes, ["epoch 0", "epoch 1", "epoch 2"].map(epoch).concat());
}

#[test]
fn a_batcher_that_panics_is_an_error_of_the_run() {
    struct Bad;
    impl Batcher<Point, Tensor<1>> for Bad {
        fn batch(&self, _: Vec<Point>, _: &Device) -> Tensor<1> {
            panic!("no such picture")
        }
    }
    let set = Arc::new(points(10, 0));
    let mut loader = Loader::new(set, Arc::new(Bad), vec![3, 1, 2], 2, Device::flex());
    let error = loader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("sample 3: no such picture"), "{error}");
    assert!(loader.next().is_none());
}
