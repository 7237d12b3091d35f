//! `PipelineStrategy`, next to burn-train's default strategy.

use burn_train::TrainingError;

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
