//! The mini-batch in one piece.

use stovepipe_pipeline::{Flow, Layer, Objective};

use super::ROUNDING;
use crate::{
    case::Case,
    report::Check,
    seen::Seen,
    subject::{Subject, parts},
};

/// Whether loss and gradients are those that Burn alone finds, without an engine: of the mini-batch in
/// one piece, or, where layers look at the whole batch, of its micro-batches one after the other.
pub(crate) fn mini_batch<L, T, O>(subject: &Subject<L, T, O>, micro_batches: &[usize]) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let in_parts = subject.has_batch_statistics();
    let compared = match in_parts {
        false => "loss and gradients with those of the mini-batch in one piece",
        true => "loss and gradients with those of plain micro-batches, added up",
    };
    let mut check = Check::new("whole mini-batch", compared, ROUNDING);
    let samples = subject.samples();
    for &micro_batches in micro_batches {
        let pieces = match in_parts {
            false => vec![samples],
            true => parts(samples, micro_batches),
        };
        let case = Case::plainest(micro_batches);
        match (first_step(subject, &case), subject.in_one_piece(&pieces)) {
            (Ok(found), Ok(expected)) => {
                let difference = found.difference(&expected);
                let place = difference.place.unwrap_or_default();
                check.case(difference.size, || format!("{place} ({case})"));
            }
            (Err(why), _) => check.failed(format!("{case}: {why}")),
            (_, Err(why)) => check.failed(format!("without a pipeline: {why}")),
        }
    }
    check.judged(
        "the objective's `weight` is not what its `loss` is a sum over, or a layer looks at other \
         samples than its own",
    )
}

/// Loss and gradients of a step.
fn first_step<L, T, O>(subject: &Subject<L, T, O>, case: &Case) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let pipeline = subject.build(case).map_err(|error| error.to_string())?;
    let step = subject
        .train(&pipeline)
        .map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    seen.number("loss of step 1", step.loss);
    let layers = &pipeline.layers().to_vec();
    seen.gradients("step 1, gradient of ", layers, &step.gradients);
    Ok(seen)
}
