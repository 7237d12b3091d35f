//! Evaluation.

use stovepipe_pipeline::{Flow, KeyedRng, Layer, Objective, run_plain};
use stovepipe_schedule::Scheduler;

use super::ROUNDING;
use crate::{case::Case, report::Check, seen::Seen, subject::Subject};

/// Whether a pipeline evaluates as the plain model does, and leaves it as it was.
pub(crate) fn evaluation<L, T, O>(subject: &Subject<L, T, O>, cases: &[Case]) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "outputs with those of the plain model, and the model with itself";
    let mut check = Check::new("evaluation", compared, ROUNDING);
    let expected = plain(subject);
    // Schedules and recomputation are for training.
    let mut seen_before = Vec::new();
    for case in cases {
        let own = (case.rule.stages(1), case.workers, case.micro_batches);
        if seen_before.contains(&own) {
            continue;
        }
        seen_before.push(own);
        let found = evaluated(subject, case);
        check.compare(case, (found.as_ref(), expected.as_ref()), Seen::difference);
    }
    check.judged("a layer looks at other samples than its own when it does not train")
}

fn plain<L, T, O>(subject: &Subject<L, T, O>) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let layers = subject.evaluating();
    let (input, side) = subject.evaluation.clone();
    let plain = run_plain(&layers, input, &side, |_| KeyedRng::none());
    let mut seen = Seen::default();
    seen.flow(
        "the output",
        &plain.map_err(|error| error.to_string())?.output,
    );
    seen.module("after evaluation, ", &layers);
    Ok(seen)
}

fn evaluated<L, T, O>(subject: &Subject<L, T, O>, case: &Case) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let pipeline = subject.build(case).map_err(|error| error.to_string())?;
    let output = subject.evaluate(&pipeline);
    let mut seen = Seen::default();
    seen.flow("the output", &output.map_err(|error| error.to_string())?);
    seen.module("after evaluation, ", &pipeline.layers().to_vec());
    Ok(seen)
}
