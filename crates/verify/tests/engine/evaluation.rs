//! Evaluation computes the loss and scores of each micro-batch on the last stage.

use crate::models::*;

fn images() -> Tensor<2> {
    let numbers: Vec<_> = (0..11 * 4).map(|i| (i as f32 * 0.37).sin()).collect();
    Tensor::<1>::from_floats(numbers.as_slice(), &cpu()).reshape([11, 4])
}

fn targets() -> Tensor<1, Int> {
    let classes: Vec<i64> = (0..11).map(|i| [2, 0, -1, 5, 1][i % 5]).collect();
    Tensor::from_ints(classes.as_slice(), &cpu())
}

fn objective() -> CrossEntropy {
    CrossEntropy::new().ignoring(-1).counting()
}

fn scores_of(outputs: Tensor<2>) -> Vec<f64> {
    let scores = objective().scores(outputs, targets()).unwrap();
    scores.into_data().iter().collect()
}

/// The same loss and scores as those of the inferred outputs, for any stages and micro-batches.
#[test]
fn an_evaluation_is_that_of_the_inferred_outputs() {
    for (stages, micro_batches) in [(1, 1), (1, 4), (3, 4), (2, 16)] {
        let layers = dense(&[4, 8, 8, 6]);
        let pipeline = built(layers, stages, GPipe, micro_batches, Recompute::Always);
        let outputs = pipeline.infer(images()).unwrap();
        let evaluated = pipeline.evaluate((images(), targets()), &objective());
        let evaluated = evaluated.unwrap();
        assert_eq!(evaluated.weight, 9.0); // two of eleven are ignored
        let loss = objective().loss(outputs.clone(), targets());
        let loss = f64::from(loss.into_scalar::<f32>()) / 9.0;
        assert!((evaluated.loss - loss).abs() < 1e-6);
        assert_eq!(evaluated.scores, scores_of(outputs));
        assert!(evaluated.scores[0] < evaluated.scores[1] && evaluated.scores[1] <= 9.0);
    }
}

/// A step's scores are those of its outputs, with any recompute mode.
#[test]
fn a_step_has_the_scores_of_its_outputs() {
    for recompute in Recompute::MODES {
        let pipeline = built(dense(&[4, 8, 8, 6]), 2, OneForwardOneBackward, 4, recompute);
        let batch = Batch::new(images(), targets());
        let step = pipeline.train_step(batch.keep_outputs(), &objective());
        let step = step.unwrap();
        assert_eq!(step.scores, scores_of(step.outputs.unwrap()));
    }
}

#[test]
fn an_objective_without_scores_has_none_and_bad_batches_are_errors() {
    let pipeline = built(dense(&[4, 2]), 1, GPipe, 2, Recompute::Always);
    let zeros = |samples, width| Tensor::<2>::zeros([samples, width], &cpu());
    let evaluate =
        |samples, targets| pipeline.evaluate((zeros(samples, 4), zeros(targets, 2)), &SQUARED);
    let Evaluation { scores, weight, .. } = evaluate(3, 3).unwrap();
    assert_eq!((scores, weight), (Vec::new(), 3.0));
    assert!(matches!(evaluate(0, 0), Err(StepError::EmptyBatch)));
    assert!(matches!(evaluate(3, 2), Err(StepError::UnevenBatch { .. })));
    let ignored = Tensor::<1, Int>::from_ints([-1, -1], &cpu());
    let error = pipeline.evaluate((zeros(2, 4), ignored), &objective());
    assert!(matches!(error, Err(StepError::NoWeight(_))));
}
