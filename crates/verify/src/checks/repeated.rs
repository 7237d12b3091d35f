//! The same step twice.

use stovepipe_pipeline::{Flow, Layer, Objective};

use super::{allowed, compare};
use crate::{case::Case, report::Check, subject::Subject};

/// Whether the model is a function of its parameters, its input and its key: all else rests on that.
pub(crate) fn repeated<L, T, O>(subject: &Subject<L, T, O>) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "two runs of the very same steps";
    let mut check = Check::new("repeatable", compared, allowed(&subject.device));
    let case = Case::plainest(2);
    match (subject.run(&case), subject.run(&case)) {
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
