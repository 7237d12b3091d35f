//! Running statistics.

use stovepipe_pipeline::{Flow, KeyedRng, Layer, Objective, Recompute, run_plain};
use stovepipe_schedule::Rule;

use super::STATISTICS;
use crate::{
    case::Case,
    report::Check,
    seen::Seen,
    subject::{Subject, attach, parts},
};

/// Whether running means have moved once, to that of the mini-batch: found from those that plain Burn
/// leaves after each micro-batch by itself.
pub(crate) fn statistics<L, T, O>(subject: &Subject<L, T, O>, micro_batches: &[usize]) -> Check
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let compared = "running means with the mean over plain micro-batches";
    let mut check = Check::new("running statistics", compared, STATISTICS);
    if !subject.has_batch_statistics() {
        return check.skipped("no layer has any");
    }
    let workers = 2.min(subject.layers.len());
    for &micro_batches in micro_batches {
        let case = Case {
            rule: Rule::OneForwardOneBackward,
            workers,
            micro_batches,
            recompute: Recompute::Always,
        };
        let found = after_step(subject, &case);
        let expected = expected(subject, micro_batches);
        check.compare(&case, (found.as_ref(), expected.as_ref()), Seen::difference);
    }
    check.judged("statistics were not counted once a micro-batch")
}

fn after_step<L, T, O>(subject: &Subject<L, T, O>, case: &Case) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let pipeline = subject.build(case).map_err(|error| error.to_string())?;
    let _ = subject
        .train(&pipeline)
        .map_err(|error| error.to_string())?;
    Ok(means(&pipeline.layers().to_vec()))
}

/// The running means of a model.
fn means<L: Layer>(layers: &Vec<L>) -> Seen {
    let mut all = Seen::default();
    all.module("", layers);
    all.0.retain(|(name, _)| name.ends_with(".running_mean"));
    all
}

fn expected<L, T, O>(subject: &Subject<L, T, O>, micro_batches: usize) -> Result<Seen, String>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    let samples = subject.samples();
    let sizes = parts(samples, micro_batches);
    let inputs = subject.batch.input.clone().split(&sizes);
    let sides = subject.batch.side.clone().split(&sizes);
    let mut sum: Option<Seen> = None;
    let mut first = 0;
    for ((input, side), &size) in inputs.into_iter().zip(sides).zip(&sizes) {
        let own = first..first + size;
        first += size;
        let draws = |layer| KeyedRng::new(subject.seed, 0, layer, own.clone());
        let layers = subject.copies();
        run_plain(&layers, attach(input), &attach(side), draws)
            .map_err(|error| error.to_string())?;
        let share = size as f32 / samples as f32;
        sum = Some(add(sum, means(&layers), share));
    }
    Ok(sum.unwrap_or_default())
}

/// Adds a share of what was seen.
fn add(sum: Option<Seen>, mut seen: Seen, share: f32) -> Seen {
    for number in seen.0.iter_mut().flat_map(|(_, numbers)| numbers) {
        *number *= share;
    }
    let Some(mut sum) = sum else {
        return seen;
    };
    for ((_, sum), (_, own)) in sum.0.iter_mut().zip(&seen.0) {
        for (sum, own) in sum.iter_mut().zip(own) {
            *sum += own;
        }
    }
    sum
}
