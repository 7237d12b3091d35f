//! Running statistics.

use stovepipe_pipeline::{Flow, Layer, Objective, Recompute};
use stovepipe_schedule::Rule;

use super::STATISTICS;
use crate::{
    case::{Case, CaseError},
    report::Check,
    snapshot::Snapshot,
    subject::{Subject, parts},
};

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Whether running means were updated once, by the mean of the mini-batch. It is computed from what
    /// plain Burn gives for each micro-batch alone.
    pub(crate) fn check_statistics(&self, micro_batches: &[usize]) -> Check {
        let compared = "running means with the mean over plain micro-batches";
        let mut check = Check::new("running statistics", compared, STATISTICS);
        if !self.has_batch_statistics() {
            return check.skipped("no layer has any");
        }
        for &micro_batches in micro_batches {
            let case = Case {
                rule: Rule::OneForwardOneBackward,
                workers: 2.min(self.layers.len()),
                micro_batches,
                recompute: Recompute::Always,
            };
            let expected = self.plain_means(micro_batches);
            check.compare(&case, &self.means_after_step(&case), &expected);
        }
        check.finished("statistics were not counted once per micro-batch")
    }

    fn means_after_step(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build(case)?;
        let _ = self.train(&pipeline)?;
        Ok(means(&pipeline.layers().to_vec()))
    }

    fn plain_means(&self, micro_batches: usize) -> Result<Snapshot, CaseError> {
        let samples = self.samples();
        let mut sum: Option<Snapshot> = None;
        self.plain_passes(&parts(samples, micro_batches), |layers, _, _, size| {
            let mut means = means(&layers);
            let share = size as f32 / samples as f32;
            numbers(&mut means).for_each(|mean| *mean *= share);
            if let Some(sum) = &mut sum {
                let means = numbers(&mut means);
                numbers(sum)
                    .zip(means)
                    .for_each(|(sum, mean)| *sum += *mean);
            } else {
                sum = Some(means);
            }
        })?;
        Ok(sum.unwrap_or_default())
    }
}

/// The running means of a model.
fn means<L: Layer>(layers: &Vec<L>) -> Snapshot {
    let mut all = Snapshot::default();
    all.module("", layers);
    all.0.retain(|(name, _)| name.ends_with(".running_mean"));
    all
}

fn numbers(snapshot: &mut Snapshot) -> impl Iterator<Item = &mut f32> {
    snapshot.0.iter_mut().flat_map(|(_, numbers)| numbers)
}
