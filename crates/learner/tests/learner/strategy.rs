//! `PipelineStrategy`, next to burn-train's default strategy.

use burn_train::TrainingError;
use stovepipe_pipeline::{KeyedRng, StopHandle, nn::Dropout};

use crate::*;

fn staged(training: SupervisedTraining<Model>) -> SupervisedTraining<Model> {
    training.with_training_strategy(PipelineStrategy.into())
}

/// Seven batches an epoch, three to an update, and one to each.
#[test]
fn it_gives_the_same_bits_as_the_default() {
    let directory = tempfile::tempdir().unwrap();
    let train = |is_staged, accumulate| {
        let training = training(directory.path(), 2);
        let training = match accumulate {
            1 => training,
            _ => training.grads_accumulation(accumulate),
        };
        let (training, written) = written(training);
        let training = match is_staged {
            true => staged(training),
            false => training,
        };
        let result = training.launch(learner(pipeline(2)));
        assert!(result.error.is_none() && result.interrupted.is_none());
        (numbers(&result.model), written.text())
    };
    for accumulate in [1, 3] {
        let (default, own) = (train(false, accumulate), train(true, accumulate));
        assert!(default == own, "{accumulate}: {} {}", default.1, own.1);
    }
}

/// And layers hear how far it is: the last mini-batch begins after 48 of 50 points of the third epoch.
#[test]
fn a_training_that_resumes_counts_on() {
    let directory = tempfile::tempdir().unwrap();
    let training = |epochs| training(directory.path(), epochs).with_default_checkpointers();
    let began = staged(training(2)).launch(learner(pipeline(2))).model;
    assert_eq!(began.pipeline().steps(), 14);
    let resumed = staged(training(3).checkpoint(2)).launch(learner(pipeline(2)));
    let resumed = resumed.model;
    assert_eq!(resumed.pipeline().steps(), 21);
    let progress = resumed.pipeline().progress();
    assert!((progress - 2.96 / 3.0).abs() < 1e-9, "{progress}");
}

/// A layer that drops outputs.
#[derive(Module, Debug)]
struct Dropping {
    linear: Linear,
    dropout: Dropout,
}

#[layer]
impl Dropping {
    fn forward(&self, x: Tensor<2>, rng: &mut KeyedRng) -> Tensor<2> {
        let x = self.linear.forward(x).tanh();
        if x.dims()[1] == 4 {
            x
        } else {
            self.dropout.forward(x, rng)
        }
    }
}

type DroppingModel = Staged<Dropping, CrossEntropy, Points, Tensor<1, Int>, ClassificationOutput>;

/// Two epochs and a third after a break are three epochs, with random numbers. With the default strategy, they are not.
#[test]
fn random_numbers_are_those_without_the_break() {
    Device::flex().seed(5);
    let device = Device::flex();
    let dropping = |(from, to)| Dropping {
        linear: LinearConfig::new(from, to).init(&device),
        dropout: Dropout::new(0.3),
    };
    let layers: Vec<_> = [(2, 16), (16, 16), (16, 4)].map(dropping).to_vec();
    let train = |directory: &Path, epochs, from: Option<usize>, is_staged| {
        let builder = Pipeline::builder(layers.clone()).devices(vec![device.clone(); 2]);
        let pipeline = builder.micro_batches(2).build().unwrap();
        let objective = CrossEntropy::new();
        let model: DroppingModel =
            Staged::new(pipeline, objective, Batch::from, ClassificationOutput::new);
        let (train, valid) = (loader(items(0, TRAINING)), loader(items(1000, 30)));
        let mut training = SupervisedTraining::new(directory, train, valid)
            .metrics((LossMetric::new(),))
            .with_application_logger(None)
            .with_default_checkpointers()
            .renderer(Box::new(Bars::written(std::io::sink())))
            .num_epochs(epochs);
        if let Some(epoch) = from {
            training = training.checkpoint(epoch);
        }
        if is_staged {
            training = training.with_training_strategy(PipelineStrategy.into());
        }
        let learner = Learner::new(model, AdamConfig::new().init(), rates().init().unwrap());
        numbers(&training.launch(learner).model)
    };
    for is_staged in [true, false] {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let whole = train(directories[0].path(), 3, None, is_staged);
        train(directories[1].path(), 2, None, is_staged);
        let resumed = train(directories[1].path(), 3, Some(2), is_staged);
        assert_eq!(whole == resumed, is_staged);
    }
}

/// Points that end the training when the second mini-batch is made.
#[derive(Clone)]
struct Stopping(StopHandle, Arc<Mutex<usize>>);

impl Batcher<Item, Points> for Stopping {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Points {
        let mut made = self.1.lock().unwrap();
        *made += 1;
        if *made == 2 {
            self.0.stop();
        }
        PointBatcher.batch(items, device)
    }
}

#[test]
fn a_stop_handle_is_an_interruption() {
    let directory = tempfile::tempdir().unwrap();
    let pipeline = pipeline(2);
    let batcher = Stopping(pipeline.stop_handle(), Arc::default());
    let train = DataLoaderBuilder::new(batcher).batch_size(BATCH);
    let train = train.build(InMemDataset::new(items(0, TRAINING)));
    let training = SupervisedTraining::new(directory.path(), train, loader(items(0, 8)))
        .with_application_logger(None)
        .renderer(Box::new(Bars::written(std::io::sink())));
    let result = staged(training).launch(learner(pipeline));
    assert!(result.error.is_none());
    let reason = result.interrupted.unwrap().reason;
    assert_eq!(reason.as_deref(), Some("the pipeline was stopped"));
    assert_eq!(result.model.pipeline().steps(), 1);
}

#[derive(Clone)]
struct Wide;

/// Five numbers a point, where the first layer takes two.
impl Batcher<Item, Points> for Wide {
    fn batch(&self, items: Vec<Item>, device: &Device) -> Points {
        let points = Tensor::ones([items.len(), 5], device);
        (points, Tensor::zeros([items.len()], device))
    }
}

#[test]
fn a_failed_step_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = items(0, 20);
    wrong[13].1 = 7; // no such class
    let wide = DataLoaderBuilder::new(Wide).batch_size(BATCH);
    let wide = wide.build(InMemDataset::new(items(0, 20)));
    let good = || loader(items(0, 20));
    for (train, valid, place, steps) in [
        (loader(wrong), good(), "stage 1 failed", 1),
        (good(), wide, "stage 0 failed", 3),
    ] {
        let training = SupervisedTraining::new(directory.path(), train, valid)
            .with_application_logger(None)
            .renderer(Box::new(Bars::written(std::io::sink())));
        let pipeline = pipeline(2);
        let result = staged(training).launch(learner(pipeline.clone()));
        let error = result.error.unwrap();
        assert!(
            matches!(&*error, TrainingError::Workers(failures)
                if failures[0].device_id == usize::from(place.contains('1'))),
            "{error}"
        );
        assert!(error.to_string().contains(place), "{error}");
        assert_eq!(pipeline.steps(), steps, "{place}");
    }
}

#[test]
fn an_interruption_ends_it_after_the_step() {
    let directory = tempfile::tempdir().unwrap();
    let interrupter = burn_train::Interrupter::new();
    interrupter.stop(Some("enough"));
    let training = training(directory.path(), 10).with_interrupter(interrupter);
    let result = staged(training).launch(learner(pipeline(2)));
    assert_eq!(
        result.interrupted.unwrap().reason.as_deref(),
        Some("enough")
    );
    assert_eq!(result.model.pipeline().steps(), 1);
}
