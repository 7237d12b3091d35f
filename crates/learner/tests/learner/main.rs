//! Pipelines in burn-train's supervised training: a small model learns in which quarter of the plane a
//! point is.
#![allow(clippy::unwrap_used, missing_docs)]

mod checkpoints;
mod differences;
mod failures;
mod renderer;
mod results;
mod strategy;

use std::{
    path::Path,
    sync::{Arc, Mutex},
};

use burn::{
    data::{
        dataloader::{DataLoader, DataLoaderBuilder, batcher::Batcher},
        dataset::InMemDataset,
    },
    module::{Module, ModuleVisitor, Param},
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::{AdamConfig, lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig},
    tensor::{Device, Int, Tensor, TensorData},
};
use burn_train::{
    ClassificationOutput, Learner, LearningResult, SupervisedTraining,
    metric::{AccuracyMetric, LossMetric},
};
use stovepipe_learner::{Bars, PipelineStrategy, Staged};
use stovepipe_pipeline::{Batch, CrossEntropy, Pipeline, layer};

#[derive(Module, Debug)]
pub struct Dense {
    linear: Linear,
    norm: Option<BatchNorm>,
}

#[layer]
impl Dense {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        assert_eq!(x.dims()[1], self.linear.weight.dims()[0], "wrong width");
        let x = self.linear.forward(x).tanh();
        let normed = self.norm.as_ref().map(|norm| norm.forward(x.clone()));
        normed.unwrap_or(x)
    }
}

#[derive(Module, Debug)]
pub struct Plain {
    layers: Vec<Dense>,
}

impl Plain {
    fn forward(&self, points: Tensor<2>) -> Tensor<2> {
        (self.layers.iter()).fold(points, |x, layer| layer.forward(x))
    }
}

pub fn layers(norm: bool) -> Vec<Dense> {
    let device = Device::flex();
    let layer = |(from, to)| Dense {
        linear: LinearConfig::new(from, to).init(&device),
        norm: norm.then(|| BatchNormConfig::new(to).init(&device)),
    };
    [(2, 16), (16, 16), (16, 16), (16, 4)].map(layer).to_vec()
}

pub fn pipeline_of(layers: Vec<Dense>, stages: usize) -> Pipeline<Dense> {
    let builder = Pipeline::builder(layers).devices(vec![Device::flex(); stages]);
    builder.micro_batches(2).build().unwrap()
}

pub fn pipeline(stages: usize) -> Pipeline<Dense> {
    pipeline_of(layers(false), stages)
}

/// A point and its quarter.
pub type Item = ([f32; 2], i32);
pub type Points = (Tensor<2>, Tensor<1, Int>);
pub type Model = Staged<Dense, CrossEntropy, Points, Tensor<1, Int>, ClassificationOutput>;

pub fn model(pipeline: Pipeline<Dense>) -> Model {
    let objective = CrossEntropy::new();
    Staged::new(pipeline, objective, Batch::from, ClassificationOutput::new)
}

#[derive(Clone)]
pub struct PointBatcher;

impl Batcher<Item, Points> for PointBatcher {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Points {
        let samples = items.len();
        let points = items.iter().flat_map(|(point, _)| *point).collect();
        let quarters = items.iter().map(|(_, quarter)| *quarter).collect();
        let points = TensorData::new::<f32, _>(points, [samples, 2]);
        let quarters = TensorData::new::<i32, _>(quarters, [samples]);
        let points = Tensor::from_data(points, device);
        (points, Tensor::from_data(quarters, device))
    }
}

/// `count` points on a circle, from the `first`.
pub fn items(first: usize, count: usize) -> Vec<Item> {
    let item = |index| {
        let angle = index as f32 * 2.399_963;
        let [x, y] = [angle.cos(), angle.sin()];
        ([x, y], 2 * i32::from(x > 0.0) + i32::from(y > 0.0))
    };
    (first..first + count).map(item).collect()
}

pub const TRAINING: usize = 50;
pub const BATCH: usize = 8;

/// Batches of 8 in order, the last one smaller.
pub fn loader(items: Vec<Item>) -> Arc<dyn DataLoader<Points>> {
    let loader = DataLoaderBuilder::new(PointBatcher).batch_size(BATCH);
    loader.build(InMemDataset::new(items))
}

pub fn batches() -> Vec<Points> {
    let items = items(0, TRAINING);
    let device = Device::flex();
    let batch = |items: &[Item]| PointBatcher.batch(items.to_vec(), &device);
    items.chunks(BATCH).map(batch).collect()
}

/// A learning rate that changes with every update.
pub fn rates() -> CosineAnnealingLrSchedulerConfig {
    CosineAnnealingLrSchedulerConfig::new(0.02, 100)
}

pub fn training(directory: &Path, epochs: usize) -> SupervisedTraining<Model> {
    let (train, valid) = (loader(items(0, TRAINING)), loader(items(1000, 30)));
    SupervisedTraining::new(directory, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_application_logger(None)
        .renderer(Box::new(Bars::written(std::io::sink())))
        .num_epochs(epochs)
}

pub fn learner(pipeline: Pipeline<Dense>) -> Learner<Model> {
    let optimizer = AdamConfig::new().init();
    Learner::new(model(pipeline), optimizer, rates().init().unwrap())
}

pub fn written(training: SupervisedTraining<Model>) -> (SupervisedTraining<Model>, Written) {
    let written = Written::default();
    let renderer = Bars::written(written.clone());
    (training.renderer(Box::new(renderer)), written)
}

pub fn learn(pipeline: Pipeline<Dense>, epochs: usize) -> LearningResult<Model> {
    let directory = tempfile::tempdir().unwrap();
    training(directory.path(), epochs).launch(learner(pipeline))
}

/// Trains the same way, without burn-train.
pub fn learn_manually(mut pipeline: Pipeline<Dense>, epochs: usize) -> Pipeline<Dense> {
    let mut optimizer = AdamConfig::new().init();
    let mut rates = rates().init().unwrap();
    for batch in (0..epochs).flat_map(|_| batches()) {
        let step = pipeline.train_step(batch, &CrossEntropy::new()).unwrap();
        pipeline = optimizer.step(rates.step(), pipeline, step.gradients);
    }
    pipeline
}

/// Every number of a module, running statistics included.
pub fn numbers(module: &impl Module) -> Vec<f32> {
    struct Collect(Vec<f32>);

    impl ModuleVisitor for Collect {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }

    let mut collect = Collect(Vec::new());
    module.visit(&mut collect);
    collect.0
}

#[derive(Clone, Default)]
pub struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
