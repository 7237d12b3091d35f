//! Moving averages of weights.

use super::*;

/// Parameters, then running means and variances, of a pipeline as it is evaluated.
fn all_values(pipeline: &Pipeline<Dense>) -> Vec<f64> {
    let with_statistics = true;
    Numbers {
        with_statistics,
        ..Default::default()
    }
    .of(&pipeline.valid())
}

#[test]
fn averages_follow_their_formula() {
    let settings = settings(OptimizerSetting::Sgd, 0.1, 15);
    for stages in [1, 3] {
        let mut pipeline = pipeline(stages);
        let mut optimizer = StagedOptimizer::new(&settings, stages);
        let mut average = WeightAverage::new(&pipeline, 0.25);
        let mut expected = all_values(&pipeline);
        for update in 0..6_u32 {
            let step = pipeline.train_step(forty_points(), &CrossEntropy::new());
            let gradients = step.unwrap().gradients;
            let updated = optimizer.step(0.1, &mut pipeline, gradients, Instant::now());
            updated.unwrap();
            let trained = all_values(&pipeline);
            average.update(&pipeline).unwrap();
            // The average is the average's alone: the model is as it was.
            assert_eq!(all_values(&pipeline), trained);
            // 1/10, 2/11 and 3/12 are not above the decay; from then on it is the decay.
            let decay = f64::min(0.25, f64::from(1 + update) / f64::from(10 + update));
            for (expected, trained) in expected.iter_mut().zip(&trained) {
                *expected = decay * *expected + (1.0 - decay) * trained;
            }
            let found = all_values(average.pipeline());
            assert_eq!(found.len(), expected.len());
            let difference = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
            assert!(difference.fold(0.0, f64::max) < 1e-5);
        }
        assert_ne!(all_values(average.pipeline()), all_values(&pipeline));
    }
}

#[test]
fn averages_are_tested_and_saved_beside_the_weights() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = TrainSettings {
        ema: 0.9,
        ..settings(OptimizerSetting::Sgd, 0.1, 3)
    };
    let summary = run(2, settings, &path).unwrap();
    let averaged = summary.averaged.unwrap();
    assert_ne!(averaged, summary.test);
    for (file, expected) in [("averaged", averaged), ("model", summary.test)] {
        let mut loaded = pipeline(3);
        load_model(&mut loaded, &path.join(format!("{file}.safetensors"))).unwrap();
        assert_eq!(tested(&loaded), expected);
    }
    let metrics = metrics(&path);
    assert!(metrics.iter().all(|line| line["averaged"]["loss"].is_f64()));
}

/// Without the setting, nothing is averaged, saved or said.
#[test]
fn there_are_no_averages_unless_they_are_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let settings = settings(OptimizerSetting::Sgd, 0.1, 1);
    assert!(run(2, settings, &path).unwrap().averaged.is_none());
    assert!(!path.join("averaged.safetensors").exists());
    let summary = fs::read_to_string(path.join("summary.json")).unwrap();
    assert!(!summary.contains("averaged"));
}
