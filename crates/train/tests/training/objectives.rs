//! Trainings with another objective than cross-entropy, and with side inputs.

use stovepipe_pipeline::Batch;

use super::*;

/// A linear layer whose output is multiplied by the side input.
#[derive(Module, Debug)]
struct Scaled {
    linear: Linear,
}

impl Layer for Scaled {
    type Input = Tensor<2>;
    type Flow = Tensor<2>;
    type Output = Tensor<2>;
    type Side = Tensor<2>;

    fn enter(input: Tensor<2>) -> Tensor<2> {
        input
    }

    fn forward(
        &self,
        x: Tensor<2>,
        context: &mut Context<'_, Self>,
    ) -> Result<Tensor<2>, LayerError> {
        Ok(self.linear.forward(x) * context.side().clone())
    }

    fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> {
        Ok(flow)
    }
}

/// The squared error, with the absolute error as a score.
#[derive(Clone)]
struct Squared;

impl Objective<Tensor<2>, Tensor<2>> for Squared {
    fn loss(&self, output: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
        (output - target).powi_scalar(2).sum()
    }

    fn weight(&self, target: &Tensor<2>) -> f64 {
        target.dims()[0] as f64
    }

    fn scores(&self, output: Tensor<2>, target: Tensor<2>) -> Option<Tensor<1>> {
        Some((output - target).abs().sum())
    }
}

fn task() -> Task<Squared> {
    let error = Metric::number("absolute_error", |totals| totals.mean("error"));
    Task::new(Squared)
        .with_scores(["error"])
        .with_metric(error.lower_is_better().primary())
}

/// The target is (x + 2 y) · scale². Without the scale, it could not be learned.
struct ScaledPoints;

impl Batcher<Point, Batch<Tensor<2>, Tensor<2>, Tensor<2>>> for ScaledPoints {
    fn batch(&self, items: Vec<Point>, device: &Device) -> Batch<Tensor<2>, Tensor<2>, Tensor<2>> {
        let (input, class) = Points.batch(items, device);
        let side = (class.float() + 1.0).unsqueeze_dim::<2>(1);
        let factors = Tensor::<2>::from_floats([[1.0, 2.0]], device);
        let sum = (input.clone() * factors).sum_dim(1);
        let target = sum * side.clone() * side.clone();
        Batch::from((input, target, side))
    }
}

type ScaledData = Data<Tensor<2>, Tensor<2>, Tensor<2>>;

fn scaled_data(samples: usize) -> ScaledData {
    Data::new(points(samples, 0), points(200, 5000), ScaledPoints)
}

fn scaled(stages: usize) -> Pipeline<Scaled> {
    let device = Device::flex();
    let layer = |from, to| Scaled {
        linear: LinearConfig::new(from, to).init(&device),
    };
    let layers = vec![layer(2, 3), layer(3, 1)];
    let builder = evenly(stages).builder_with(layers, None).unwrap();
    builder.seed(3).build().unwrap()
}

fn settings(epochs: usize) -> TrainSettings {
    TrainSettings {
        keep_last: 1,
        warmup_epochs: 0.0,
        ..super::settings(OptimizerSetting::Adam, 1e-2, epochs)
    }
}

fn scaled_trainer(stages: usize, epochs: usize) -> Trainer<Scaled, Squared> {
    Trainer::new(scaled(stages), task(), settings(epochs)).unwrap()
}

#[test]
fn an_objective_writes_its_own_metrics_and_keeps_the_best() {
    let (_directory, folder) = run_folder();
    let mut trainer = scaled_trainer(2, 12);
    let summary = train_silently(&mut trainer, &scaled_data(610), &folder).unwrap();
    let error = summary.test.get("absolute_error").unwrap();
    assert!(error < 0.1, "{summary:?}");
    let expected = format!("loss {:.4}, absolute error {error:.4}", summary.test.loss);
    assert_eq!(summary.test.to_string(), expected);

    let lines = metrics(&folder.file(""));
    for line in &lines {
        assert!(line["train_loss"].is_f64() && line["train_absolute_error"].is_f64());
        assert!(line["test"]["absolute_error"].is_f64() && line.get("train_accuracy").is_none());
    }
    let error = |epoch: usize| lines[epoch - 1]["test"]["absolute_error"].as_f64().unwrap();
    let best = folder.checkpoints().best(&task()).unwrap().unwrap();
    let best: usize = best.name()[6..10].parse().unwrap();
    let is_best = (1..=12).all(|epoch| error(best) <= error(epoch));
    assert!(is_best, "{lines:?}");
}

#[test]
fn an_objective_resumes_with_the_same_bits_in_other_stages() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let folder = RunFolder::create(&path("whole")).unwrap();
    train_silently(&mut scaled_trainer(1, 4), &scaled_data(610), &folder).unwrap();
    let whole = folder.finish().unwrap();

    let folder = RunFolder::create(&path("parts")).unwrap();
    let mut first = scaled_trainer(1, 4);
    first.end_after_step()();
    train_silently(&mut first, &scaled_data(610), &folder).unwrap();
    drop(first);
    // Another task cannot resume.
    let mut other = Trainer::new(scaled(1), Task::new(Squared), settings(4)).unwrap();
    let error = other.resume(&folder).unwrap_err();
    assert_matches!(error, TrainError::OtherTask);
    let mut second = scaled_trainer(2, 4);
    assert_eq!(second.resume(&folder).unwrap().batches, 1);
    train_silently(&mut second, &scaled_data(610), &folder).unwrap();
    let parts = folder.finish().unwrap();
    assert!(model(&whole) == model(&parts));
}

#[test]
fn scores_without_names_are_an_error() {
    let (_directory, folder) = run_folder();
    let mut trainer = Trainer::new(scaled(1), Task::new(Squared), settings(1)).unwrap();
    let error = train_silently(&mut trainer, &scaled_data(100), &folder).unwrap_err();
    assert_matches!(error, TrainError::Scores { named: 0, found: 1 });
}
