//! Updates by the gradients of several mini-batches.

use super::*;

/// Layers whose gradients do not depend on how samples are put into mini-batches.
fn plain_layers() -> Vec<Dense> {
    let device = Device::flex();
    [(2, 8), (8, 8), (8, 4)]
        .map(|(from, to)| Dense {
            linear: LinearConfig::new(from, to).init(&device),
            norm: None,
        })
        .to_vec()
}

/// Parameters after two epochs on so many samples, and the lines of the metrics.
fn trained(samples: usize, batch_size: usize, accumulate: usize) -> (Vec<f64>, Vec<String>) {
    let (_directory, folder) = run_folder();
    let settings = TrainSettings {
        batch_size,
        accumulate,
        clip: 0.5,
        ..settings(OptimizerSetting::Sgd, 0.3, 2)
    };
    let builder = PipelineSettings::default().builder(plain_layers(), sample);
    let pipeline = builder.unwrap().seed(5).build().unwrap();
    let mut trainer = trainer(pipeline, settings);
    train_silently(&mut trainer, &data(samples, 20), &folder).unwrap();
    let metrics = fs::read_to_string(folder.file("metrics.jsonl")).unwrap();
    let lines = metrics.lines().map(str::to_owned).collect();
    (values(trainer.pipeline()), lines)
}

fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let differences = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    differences.fold(0.0, f64::max)
}

fn check_all(lines: &[String], part: &str) {
    assert!(lines.iter().all(|line| line.contains(part)), "{lines:?}");
}

/// An epoch of 230 samples is two updates of 100 and one of 30; in mini-batches of 25, the last update
/// has one of 25 and one of 5. Learning rates are the same only if they move once an update.
#[test]
fn accumulated_mini_batches_are_one_large_one() {
    let (whole, lines) = trained(230, 100, 1);
    check_all(&lines, r#""steps":3,"updates":3"#);
    let (gathered, lines) = trained(230, 25, 4);
    check_all(&lines, r#""steps":10,"updates":3"#);
    let difference = difference(&whole, &gathered);
    assert!(difference < 1e-5, "{difference}");
    // Other updates give another model.
    let (other, _) = trained(230, 25, 3);
    assert!(self::difference(&whole, &other) > 1e-3);
}

#[test]
fn an_update_ends_with_the_epoch() {
    let (whole, _) = trained(230, 230, 1);
    let (gathered, lines) = trained(230, 25, 1000);
    check_all(&lines, r#""updates":1"#);
    let difference = difference(&whole, &gathered);
    assert!(difference < 1e-5, "{difference}");
}
