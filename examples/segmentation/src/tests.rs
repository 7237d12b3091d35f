//! A short training, and its metrics against an independent count.
#![allow(clippy::unwrap_used)]

use burn::tensor::{Int, Tensor};
use stovepipe::train::{Batches, RunFolder, Source};

use crate::{CLASSES, data, run};

#[test]
fn it_learns_and_its_metrics_are_those_of_a_count() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run");
    let (summary, pipeline) = run(4, RunFolder::create(&path).unwrap()).unwrap();

    // By a confusion matrix over all test pixels.
    let mut confusion = [[0_u32; CLASSES]; CLASSES];
    let batches: Batches<Tensor<4>, Tensor<3, Int>> = data().unwrap().test(50);
    for batch in batches {
        let batch = batch.unwrap();
        let predicted = pipeline.infer(batch.input).unwrap().into_data();
        let truth: Vec<i64> = batch.target.into_data().iter().collect();
        let logits: Vec<f32> = predicted.iter().collect();
        let pixels = truth.len() / predicted.shape()[0];
        for (at, &truth) in truth.iter().enumerate() {
            let (canvas, pixel) = (at / pixels, at % pixels);
            let logit = |class: usize| logits[(canvas * CLASSES + class) * pixels + pixel];
            let better = |best, class| logit(class) > logit(best);
            let better = |best, class| if better(best, class) { class } else { best };
            let best = (1..CLASSES).fold(0, better);
            confusion[truth as usize][best] += 1;
        }
    }
    let all: u32 = confusion.iter().flatten().sum();
    let right: u32 = (0..CLASSES).map(|class| confusion[class][class]).sum();
    let iou = |class: usize| {
        let row: u32 = confusion[class].iter().sum();
        let column: u32 = confusion.iter().map(|row| row[class]).sum();
        let both = confusion[class][class];
        f64::from(both) / f64::from(row + column - both)
    };
    let mean_iou = (0..CLASSES).map(iou).sum::<f64>() / CLASSES as f64;
    let accuracy = f64::from(right) / f64::from(all);
    let metric = |name| summary.test.get(name).unwrap();
    for (name, counted) in [("mean_iou", mean_iou), ("pixel_accuracy", accuracy)] {
        let apart = (metric(name) - counted).abs();
        assert!(apart < 1e-9, "{name}: {counted} {summary:?}");
    }

    // Better than to say background everywhere.
    let background: u32 = confusion[CLASSES - 1].iter().sum();
    let of_background = f64::from(background) / f64::from(all);
    assert!(accuracy > of_background, "{summary:?}");
    assert!(mean_iou > 1.8 / CLASSES as f64, "{summary:?}");
    assert!(path.join("canvas-8.png").exists());
    let metrics = std::fs::read_to_string(path.join("metrics.jsonl")).unwrap();
    assert_eq!(metrics.matches(r#""train_mean_iou":"#).count(), 4);
}
