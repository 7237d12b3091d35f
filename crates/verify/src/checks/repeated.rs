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
    let (first, second) = (step(subject, &case, 0), step(subject, &case, 5));
    check.compare(
        &case,
        (second.as_ref(), first.as_ref()),
        |found, expected| compare(&subject.device, found, expected),
    );
    check.judged(
        "a layer draws random numbers that are not keyed (use those of `Context::rng`), or keeps \
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
    subject.see_first_step(&pipeline)
}
