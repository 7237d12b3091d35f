//! Whole trainings of a small model on generated points.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

/// Like `assert!(matches!(…))`, and shows the value.
macro_rules! assert_matches {
    ($value:expr, $pattern:pat) => {
        let value = &$value;
        assert!(matches!(value, $pattern), "{value:?}");
    };
}

mod accumulation;
mod average;
mod base;
mod checksums;
mod looping;
mod objectives;
mod offload;
mod offload_memory;
mod optimizers;
mod precision;
mod processes;
mod resume;
mod tokens;
mod transfer;
mod windows;

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
    thread,
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
use tempfile::TempDir;

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

/// The folder of a run, within one that is removed at the end.
fn run_folder() -> (TempDir, RunFolder) {
    let directory = tempfile::tempdir().unwrap();
    let folder = RunFolder::create(&directory.path().join("run")).unwrap();
    (directory, folder)
}

fn metrics(run: &Path) -> Vec<Value> {
    json_lines(&run.join("metrics.jsonl"))
}

fn json_lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    (text.lines().map(|line| serde_json::from_str(line).unwrap())).collect()
}

fn model(run: &Path) -> Vec<u8> {
    fs::read(run.join("model.safetensors")).unwrap()
}

/// Training and test samples of most trainings.
fn usual_data() -> Data<Tensor<2>, Tensor<1, Int>> {
    data(610, 200)
}

fn data(train: usize, test: usize) -> Data<Tensor<2>, Tensor<1, Int>> {
    Data::new(points(train, 0), points(test, 5000), Points)
}

fn settings(optimizer: OptimizerSetting, lr: f64, epochs: usize) -> TrainSettings {
    TrainSettings {
        epochs,
        batch_size: 50,
        optimizer,
        lr,
        label_smoothing: 0.0,
        weight_decay: 1e-4,
        ..TrainSettings::default()
    }
}

/// Cuts that need no measurements.
fn evenly(stages: usize) -> PipelineSettings {
    PipelineSettings {
        stages,
        balance: BalanceSetting::Even,
        ..PipelineSettings::default()
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

fn forty_points() -> (Tensor<2>, Tensor<1, Int>) {
    let points = points(40, 0);
    Points.batch(points.iter().map(Result::unwrap).collect(), &Device::flex())
}

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

fn tested(pipeline: &Pipeline<Dense>) -> Metrics {
    let task = Task::classification(&TrainSettings::default());
    let totals = evaluate(pipeline, usual_data().test(50), &task, |_| ());
    task.metrics(&totals.unwrap())
}

fn run(stages: usize, settings: TrainSettings, folder: &Path) -> Result<Summary, TrainError> {
    let folder = RunFolder::create(folder)?;
    let mut trainer = trainer(pipeline(stages), settings);
    let summary = train_silently(&mut trainer, &usual_data(), &folder)?;
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
        let settings = settings(optimizer, lr, 20);
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
        ..settings(OptimizerSetting::Sgd, 0.1, 15)
    };
    let models = [1, 2, 4].map(|stages| {
        let folder = directory.path().join(stages.to_string());
        run(stages, settings.clone(), &folder).unwrap();
        model(&folder)
    });
    assert!(models[0] == models[1] && models[1] == models[2]);
}

#[test]
fn a_saved_model_loads_under_another_number_of_stages() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("run");
    let summary = run(2, settings(OptimizerSetting::Adam, 1e-2, 15), &folder).unwrap();
    let mut loaded = pipeline(4);
    load_model(&mut loaded, &folder.join("model.safetensors")).unwrap();
    let not_a_model = folder.join("metrics.jsonl");
    assert!(load_model(&mut loaded, &not_a_model).is_err());
    assert_eq!(tested(&loaded), summary.test);
}

/// The numbers of a module: those of its parameters, of all its tensors, or of its gradients.
#[derive(Default)]
struct Numbers<'a> {
    gradients: Option<&'a GradientsParams>,
    with_statistics: bool,
    found: Vec<f64>,
}

impl ModuleVisitor for Numbers<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_read = self.with_statistics || param.is_require_grad();
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()).filter(|_| is_read),
        };
        if let Some(tensor) = tensor {
            self.found.extend(tensor.into_data().iter::<f64>());
        }
    }
}

impl Numbers<'_> {
    fn of(mut self, module: &impl Module) -> Vec<f64> {
        module.visit(&mut self);
        self.found
    }
}

fn all(module: &impl Module, gradients: &GradientsParams) -> Vec<f64> {
    let gradients = Some(gradients);
    Numbers {
        gradients,
        ..Default::default()
    }
    .of(module)
}

fn values(module: &impl Module) -> Vec<f64> {
    Numbers::default().of(module)
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
        let step = pipeline.train_step(forty_points(), &CrossEntropy::new());
        let step = step.unwrap();
        let gradients = all(&pipeline, &step.gradients);
        let norm = gradients.iter().map(|g| g * g).sum::<f64>().sqrt();
        assert!(norm > 2.0 * clip);
        let before = values(&pipeline);
        let mut optimizer = StagedOptimizer::new(&settings, stages);
        let spans = optimizer.step(rate, &mut pipeline, step.gradients, Instant::now());
        assert_eq!(spans.unwrap().len(), stages);
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
    let builder = PipelineSettings::default().builder(layers(), sample);
    let builder = builder
        .unwrap()
        .stop_handle(stop)
        .on_progress(move |progress| {
            if stops(progress.total) {
                once.call_once(|| inside.stop());
            }
        });
    let settings = settings(OptimizerSetting::Adam, 1e-2, 15);
    let mut trainer = trainer(builder.build().unwrap(), settings);
    let summary = train_silently(&mut trainer, &usual_data(), folder).unwrap();
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
    let (_directory, folder) = run_folder();
    // Inference has half the actions of a training step: 8 of 4 micro-batches in two stages.
    let summary = train_until(|actions| actions == 8, &folder);
    assert_eq!(summary.epochs, 1);
    assert!(summary.train_loss > 0.0 && summary.test.loss > 0.0);
    assert_eq!(metrics(&folder.file("")).len(), 1);
}

/// The only step has a finite loss, but its update makes the model NaN.
#[test]
fn a_model_that_the_last_update_ruined_is_reported_and_saved() {
    let directory = tempfile::tempdir().unwrap();
    let settings = TrainSettings {
        batch_size: 610,
        clip: 0.0,
        warmup_epochs: 0.0,
        ..settings(OptimizerSetting::Sgd, 1e30, 1)
    };
    let path = directory.path().join("run");
    let summary = run(2, settings, &path).unwrap();
    assert!(!summary.test.loss.is_finite(), "{}", summary.test);
    assert!(summary.best.is_none(), "{:?}", summary.best);
    assert!(metrics(&path)[0]["test"]["loss"].is_null());
    assert_eq!(fs::read_dir(path.join("checkpoints")).unwrap().count(), 1);
}

#[test]
fn folders_are_whole_or_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    // A slash at the end, as shells complete it.
    let folder = RunFolder::create(&at("a/")).unwrap();
    assert!(at("a.partial").is_dir());
    // Two runs at once.
    assert_matches!(RunFolder::create(&at("a")), Err(TrainError::RunUnderWay(_)));
    folder.finish().unwrap();
    assert!(at("a").is_dir() && !at("a.partial").exists());
    // A run that fails, and somebody else's folder of that name.
    drop(RunFolder::create(&at("b/new/run")).unwrap());
    assert!(!at("b").exists());
    fs::create_dir(at("c.partial")).unwrap();
    fs::write(at("c.partial/thesis.tex"), "…").unwrap();
    assert!(RunFolder::create(&at("c")).is_err());
    assert!(at("c.partial/thesis.tex").exists());
    // A file, within a file, and no name at all.
    fs::write(at("f"), "").unwrap();
    assert_matches!(RunFolder::create(&at("f")), Err(TrainError::FolderInUse(_)));
    assert_matches!(RunFolder::create(&at("f/g")), Err(TrainError::File { .. }));
    assert!(RunFolder::create(Path::new("/")).is_err());
}

/// What comes to be at its path during a run, and links.
#[test]
fn a_complete_run_has_a_place() {
    type Appear = fn(&Path);
    let appear: [Appear; 2] = [
        |path| fs::write(path, "").unwrap(),
        |path| fs::create_dir_all(path.join("other")).unwrap(),
    ];
    for appear in appear {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::create_dir(at("run-2")).unwrap();
        let folder = RunFolder::create(&at("run")).unwrap();
        folder.write("notes.txt", b"all went well").unwrap();
        appear(&at("run"));
        let error = folder.finish().unwrap_err();
        assert!(error.to_string().ends_with("run-3"), "{error}");
        assert!(at("run-3/notes.txt").exists() && !at("run.partial").exists());
    }
    #[cfg(unix)]
    {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        std::os::unix::fs::symlink("there/run", at("link")).unwrap();
        assert_matches!(
            RunFolder::create(&at("link")),
            Err(TrainError::LinkToNothing(_))
        );
        fs::create_dir_all(at("there/run")).unwrap();
        drop(RunFolder::create(&at("link")).unwrap());
        assert!(at("there/run").exists());
        let folder = RunFolder::create(&at("link")).unwrap();
        folder.write("notes.txt", b"all went well").unwrap();
        folder.finish().unwrap();
        assert!(at("link").is_symlink() && at("there/run/notes.txt").exists());
        assert_matches!(
            RunFolder::create(&at("link")),
            Err(TrainError::FolderInUse(_))
        );
    }
}

#[test]
fn runs_that_start_together_get_different_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let parent = directory.path().join("new/runs");
    let folders: Vec<_> = thread::scope(|scope| {
        let create = || RunFolder::create_next(&parent, "train").unwrap();
        let threads: Vec<_> = (0..16).map(|_| scope.spawn(create)).collect();
        (threads.into_iter().map(|thread| thread.join().unwrap())).collect()
    });
    let mut found: Vec<_> = folders
        .iter()
        .map(|folder| folder.path().to_owned())
        .collect();
    found.sort();
    let mut expected =
        Vec::from_iter((1..=16).map(|number| parent.join(format!("train-{number}"))));
    expected.sort();
    assert_eq!(found, expected);
}

#[test]
fn sets_that_are_empty_or_smaller_than_a_batch_are_errors() {
    let (_directory, folder) = run_folder();
    let train = |train, test| {
        let mut trainer = trainer(pipeline(1), settings(OptimizerSetting::Adam, 1e-2, 1));
        train_silently(&mut trainer, &data(train, test), &folder)
    };
    let too_large = "batch-size is 50, but the training set has 49 samples: \
                     choose a --batch-size of at most 49";
    for (samples, tests, expected) in [
        (0, 10, "the training set is empty"),
        (10, 0, "the test set is empty"),
        (49, 10, too_large),
    ] {
        let error = train(samples, tests).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    assert!(train(50, 10).is_ok());
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
        recalibrate: 0,
        ..settings(OptimizerSetting::Adam, 1e-2, 3)
    };
    let (_directory, folder) = run_folder();
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

/// A line for each mini-batch says what the epoch's line sums up, and gradients are measured before they
/// are clipped, or if they are not.
#[test]
fn the_log_of_steps_adds_up_to_the_epochs() {
    let directory = tempfile::tempdir().unwrap();
    let mut norms = Vec::new();
    for (clip, accumulate) in [(0.0, 1), (0.01, 1), (10.0, 3)] {
        let folder = directory.path().join(format!("{clip}"));
        let settings = TrainSettings {
            clip,
            accumulate,
            decay: DecaySetting::None,
            warmup_epochs: 0.0,
            ..settings(OptimizerSetting::AdamW, 1e-2, 2)
        };
        run(2, settings, &folder).unwrap();
        let (steps, epochs) = (json_lines(&folder.join("steps.jsonl")), metrics(&folder));
        let number = |line: &Value, name: &str| line[name].as_f64().unwrap();
        assert_eq!(steps.len(), 26);
        for (index, step) in steps.iter().enumerate() {
            assert_eq!(
                (&step["step"], &step["epoch"]),
                (&(index + 1).into(), &(index / 13 + 1).into())
            );
            assert_eq!(step["learning_rate"], 1e-2);
            assert!(
                number(step, "samples_per_second") > 0.0 && step.get("tokens_per_second").is_none()
            );
            assert!((0.0..1.0).contains(&number(step, "bubble")));
            assert!(number(step, "memory") > 1e6, "{step}");
            let updates = index % 13 % accumulate == accumulate - 1 || index % 13 == 12;
            assert_eq!(step["gradient_norm"].is_f64(), updates, "{step}");
        }
        // All mini-batches but the last have 50 samples.
        let losses = steps[..13].iter().zip([50.0; 12].into_iter().chain([10.0]));
        let sum: f64 = losses
            .map(|(step, samples)| samples * number(step, "loss"))
            .sum();
        let expected = number(&epochs[0], "train_loss");
        assert!((sum / 610.0 - expected).abs() < 1e-9, "{sum} {expected}");
        norms.push(steps[0]["gradient_norm"].clone());
    }
    assert!(
        norms[0] == norms[1] && norms[0].as_f64().unwrap() > 0.01,
        "{norms:?}"
    );
}

/// Weights move quickly in a short epoch: moving averages lag behind, exact statistics do not. They change
/// nothing else, and are those of the files, too.
#[test]
fn recalibrated_statistics_do_not_lag_behind() {
    let directory = tempfile::tempdir().unwrap();
    let [lagging, exact] = [0, 8].map(|recalibrate| {
        let folder = directory.path().join(recalibrate.to_string());
        let settings = TrainSettings {
            recalibrate,
            ema: 0.5,
            warmup_epochs: 0.0,
            ..settings(OptimizerSetting::AdamW, 2e-2, 1)
        };
        let summary = run(2, settings, &folder).unwrap();
        let mut loaded = pipeline(2);
        load_model(&mut loaded, &folder.join("model.safetensors")).unwrap();
        assert_eq!(tested(&loaded), summary.test);
        load_model(&mut loaded, &folder.join("averaged.safetensors")).unwrap();
        assert_eq!(Some(tested(&loaded)), summary.averaged);
        (
            summary,
            metrics(&folder)[0]["train_loss"].clone(),
            parameters(&loaded),
        )
    });
    assert_eq!(lagging.1, exact.1);
    assert!(lagging.2 == exact.2, "weights changed");
    let better = |exact: &Metrics, lagging: &Metrics| exact.loss < 0.9 * lagging.loss;
    let (lagging, exact) = (lagging.0, exact.0);
    assert!(better(&exact.test, &lagging.test), "{exact:?} {lagging:?}");
    let averaged = |summary: &Summary| summary.averaged.clone().unwrap();
    assert!(
        averaged(&exact).loss < averaged(&lagging).loss,
        "{exact:?} {lagging:?}"
    );
}

/// The parameters of a model, without running statistics.
fn parameters(pipeline: &Pipeline<Dense>) -> Vec<Vec<f32>> {
    #[derive(Default)]
    struct Read(Vec<Vec<f32>>);

    impl ModuleVisitor for Read {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0.push(param.val().into_data().iter().collect());
            }
        }
    }

    let mut read = Read::default();
    pipeline.visit(&mut read);
    read.0
}
