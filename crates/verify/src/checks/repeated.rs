//! The same step twice.

use burn::tensor::{Distribution, Tensor};
use stovepipe_pipeline::{Flow, Layer, Objective};

use super::{allowed, compare};
use crate::{case::Case, report::Check, seen::Seen, subject::Subject};

/// Whether the model is a function of its parameters, its input and its key: all else rests on that.
pub(crate) fn repeated<L, T, O>(subject: &Subject<L, T, O>) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "two runs of the very same step";
    let mut check = Check::new("repeatable", compared, allowed(&subject.device));
    let case = Case::plainest(2);
    match (step(subject, &case, 0), step(subject, &case, 5)) {
        (Ok(first), Ok(second)) => {
            let difference = compare(&subject.device, &second, &first);
            let place = difference.place.unwrap_or_default();
            check.case(difference.size, || format!("{place} ({case})"));
        }
        (Err(why), _) | (_, Err(why)) => check.failed(format!("{case}: {why}")),
    }
    check.judged(
        "a layer draws random numbers that are not keyed (use those of `Context::draws`), or keeps \
         something between runs",
    )
}

/// A step, after somebody else has drawn a few numbers from Burn's generator.
fn step<L, T, O>(subject: &Subject<L, T, O>, case: &Case, drawn: usize) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let pipeline = subject.build(case).map_err(|error| error.to_string())?;
    let _ = Tensor::<1>::random([drawn], Distribution::Default, &subject.device);
    let step = subject
        .train(&pipeline)
        .map_err(|error| error.to_string())?;
    let mut seen = Seen::default();
    subject.see_step(&mut seen, "the step", &pipeline, &step);
    Ok(seen)
}
