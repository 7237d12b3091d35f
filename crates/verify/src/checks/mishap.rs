//! A step that goes wrong.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use burn::tensor::Tensor;
use stovepipe_pipeline::{Flow, Layer, Objective, StepError};

use super::{allowed, compare};
use crate::{case::Case, report::Check, seen::Seen, subject::Subject};

/// Whether a step whose loss is no number ends with an error that says where, leaves the model as it was,
/// and the next step is none the wiser.
pub(crate) fn mishap<L, T, O>(subject: &Subject<L, T, O>, cases: &[Case]) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "the step after one that failed with a step that was the first";
    let mut check = Check::new("mishap", compared, allowed(&subject.device));
    let most = |case: &&Case| case.workers > 1 || cases.iter().all(|case| case.workers == 1);
    for case in cases.iter().filter(most) {
        // One number of micro-batches is enough: where the loss fails does not depend on it.
        if Some(case.micro_batches) != cases.last().map(|last| last.micro_batches) {
            continue;
        }
        let (found, expected) = (after_mishap(subject, case), subject.first_step(case));
        check.compare(
            case,
            (found.as_ref(), expected.as_ref()),
            |found, expected| compare(&subject.device, found, expected),
        );
    }
    check.judged("a layer keeps something of a step that failed")
}

fn after_mishap<L, T, O>(subject: &Subject<L, T, O>, case: &Case) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let pipeline = subject.build(case).map_err(|error| error.to_string())?;
    let armed = Arc::new(AtomicBool::new(true));
    let spoilt = Spoilt {
        objective: subject.objective.clone(),
        armed: armed.clone(),
    };
    let mut before = Seen::default();
    before.module("", &pipeline.layers().to_vec());
    let batch = subject.batch.clone();
    match pipeline.train_step(batch.clone().keep_outputs(), &spoilt) {
        Err(StepError::NotFinite {
            place: Some(failure),
            ..
        }) if failure.stage + 1 == pipeline.stages().len() => {}
        Err(error) => return Err(format!("a loss that is no number was taken for: {error}")),
        Ok(_) => return Err("a loss that is no number was no error".to_owned()),
    }
    let mut after = Seen::default();
    after.module("", &pipeline.layers().to_vec());
    let changed = after.same_bits(&before);
    if let Some(place) = changed.place {
        return Err(format!("a step that failed changed {place}"));
    }
    armed.store(false, Ordering::SeqCst);
    let step = pipeline.train_step(batch.keep_outputs(), &spoilt);
    let step = step.map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    subject.see_step(&mut seen, "step 1", &pipeline, &step);
    Ok(seen)
}

/// An objective whose loss is no number, as long as it is armed.
#[derive(Clone)]
struct Spoilt<O> {
    objective: O,
    armed: Arc<AtomicBool>,
}

impl<O> Spoilt<O> {
    fn spoil(&self, loss: Tensor<1>) -> Tensor<1> {
        match self.armed.load(Ordering::SeqCst) {
            true => loss.mul_scalar(f32::NAN),
            false => loss,
        }
    }
}

impl<Out, T, O: Objective<Out, T>> Objective<Out, T> for Spoilt<O> {
    fn loss(&self, output: Out, target: T) -> Tensor<1> {
        self.spoil(self.objective.loss(output, target))
    }

    fn weight(&self, target: &T) -> f64 {
        self.objective.weight(target)
    }

    fn auxiliary_loss(&self, output: Out, target: T) -> Tensor<1> {
        self.objective.auxiliary_loss(output, target)
    }
}
