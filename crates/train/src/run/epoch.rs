//! Trains an epoch.

use std::time::Instant;

use stovepipe_pipeline::{Batch, Flow, Layer, Objective, Step, StepError};
use stovepipe_schedule::{Span, SpanKind};

use super::{
    folder::RunFolder, memory_sampler::MemorySampler, progress::Progress, summary::clock,
    trainer::Trainer,
};
use crate::{
    data::{Source, shared},
    error::TrainError,
    optimizer::LayerSums,
};

/// What is counted of a mini-batch.
pub(super) struct Trained<'a> {
    /// Its number among all steps, from 1.
    pub(super) step: u64,
    pub(super) loss: f64,
    pub(super) weight: f64,
    pub(super) scores: &'a [f64],
    pub(super) samples: usize,
    pub(super) overflowed: bool,
    pub(super) bubble: f64,
    pub(super) host_time: bool,
    pub(super) slowest_worker: usize,
}

/// What happened to a mini-batch's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathered {
    /// They are accumulated for a later update.
    Waiting,
    Updated,
    /// The update was skipped: some gradients were not finite.
    Skipped,
}

impl<L: Layer, O> Trainer<L, O> {
    /// Trains the rest of the current epoch. Returns whether it was stopped, or reached the limit of
    /// steps, before its end.
    pub(super) fn train_epoch<T: Flow>(
        &mut self,
        batches: usize,
        source: &dyn Source<L::Input, T, L::Side>,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<bool, TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let rate = self.learning_rate(batches);
        let (started, before) = (Instant::now(), self.state.under_way.seconds);
        let (first, pass) = (self.state.batch, self.pass());
        let loaded = shared(&self.pipeline, || source.train_from(first, pass));
        let mut loaded = loaded.peekable();
        while let Some(batch) = loaded.next() {
            let batch = batch?;
            let update = self.update(batches);
            self.pipeline.set_progress(rate.progress(update));
            // A copy would count.
            if let (Some(sampler), Some(saving)) = (&self.sampler, &self.saving)
                && sampler.is_due()
            {
                saving.wait();
            }
            let sampling = self.sampler.as_mut().and_then(MemorySampler::begin);
            let batch_started = Instant::now();
            let Some(mut step) = self.train_batch(batch)? else {
                return Ok(true);
            };
            self.check_halves(&step, progress);
            // The last update of an epoch may have fewer mini-batches.
            let is_last = loaded.peek().is_none();
            let (gathered, spans) =
                self.gather((&mut step, batch_started), is_last, rate.at(update))?;
            let (is_saved, sums) = self.end_step(&mut step, spans)?;
            if is_saved {
                self.end_saving(folder, progress)?;
            }
            if let Some((sampler, sampling)) = self.sampler.as_mut().zip(sampling) {
                sampler.end(sampling);
            }
            let seconds = before + started.elapsed().as_secs_f64();
            let trained = Trained {
                step: self.pipeline.steps(),
                loss: step.loss,
                weight: step.weight,
                scores: &step.scores,
                samples: step.micro_batches.iter().sum(),
                overflowed: step.overflowed,
                bubble: step.timeline.bubble(),
                host_time: step.timeline.host_time,
                slowest_worker: step.timeline.slowest_worker().unwrap_or(0),
            };
            self.record(
                &trained,
                gathered,
                (rate.at(update), seconds),
                (folder, progress),
            )?;
            let sums = sums.into_iter().map(|(_, sums)| sums);
            let of_step = (trained.step, trained.loss);
            self.log_sums(of_step, sums, &step.passes, (folder, progress));
            // The timeline is of the last complete mini-batch.
            if step.micro_batches.iter().sum::<usize>() == self.settings.batch_size {
                let drift = self.drift.as_mut();
                if let Some(line) = drift.and_then(|drift| drift.note(&step.timeline)) {
                    progress.say(&line);
                }
                self.timeline = step.timeline;
            }
            if self.is_save_due(1) {
                self.save(folder, progress)?;
            }
            if (self.ends || self.is_at_limit()) && !is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs a mini-batch. Returns `None` if it was stopped.
    fn train_batch<T: Flow>(
        &self,
        batch: Batch<L::Input, T, L::Side>,
    ) -> Result<Option<Step<L>>, TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let stores = self.optimizer.gradient_stores();
        let objective = &self.task.training;
        self.unless_stopped(self.pipeline.train_step_into(batch, objective, &stores))
    }

    /// Warns once if the second halves of backward passes are empty.
    fn check_halves(&mut self, step: &Step<L>, progress: &mut Progress) {
        let mut spans = step.timeline.workers.iter().flatten();
        if !std::mem::replace(&mut self.has_checked_halves, true)
            && spans.any(|span| span.kind == SpanKind::WeightGradient)
            && step.held.iter().all(|held| held.weight_contexts == 0)
        {
            let why = "no layer of this model can compute the gradients of its weights later";
            progress.say(&format!(
                "warning: {why}: backward passes in halves gain nothing"
            ));
        }
    }

    /// What was trained, or `None` if it was stopped.
    pub(super) fn unless_stopped<R>(
        &self,
        trained: Result<R, StepError>,
    ) -> Result<Option<R>, TrainError> {
        match trained {
            Ok(trained) => Ok(Some(trained)),
            Err(StepError::Stopped) => Ok(None),
            Err(source @ StepError::NotFinite { .. }) => Err(TrainError::Diverged {
                epoch: self.state.epoch + 1,
                batch: self.state.batch + 1,
                source,
            }),
            Err(other) => Err(other.into()),
        }
    }

    /// Counts, logs and shows a mini-batch that ended after this many seconds of the epoch.
    pub(super) fn record(
        &mut self,
        trained: &Trained<'_>,
        gathered: Gathered,
        (rate, seconds): (f64, f64),
        (folder, progress): (&RunFolder, &mut Progress),
    ) -> Result<(), TrainError> {
        let spent = seconds - self.state.under_way.seconds;
        self.count(trained, gathered, seconds)?;
        let norm = (gathered == Gathered::Updated).then(|| self.optimizer.gradient_norm());
        self.log_step(trained, (rate, norm.flatten()), spent, folder, progress);
        let (epoch, shown) = (self.state.epoch + 1, self.describe(trained));
        progress.at(epoch, self.state.batch, &shown);
        Ok(())
    }

    /// Completes the timeline by the updates of all stages, and agrees whether to end. Returns whether a checkpoint
    /// has been written, and the sums of the update.
    fn end_step(
        &mut self,
        step: &mut Step<L>,
        spans: Vec<(usize, Span)>,
    ) -> Result<(bool, Vec<(usize, LayerSums)>), TrainError> {
        let (stages, mut is_saved) = (self.pipeline.stages(), false);
        let own = (self.is_asked_to_end(), self.has_saved());
        let own = (own, spans, self.optimizer.take_sums());
        let mut all_sums = Vec::new();
        let all = self.processes.gather(own)?;
        for (rank, ((ends, saved), spans, sums)) in all.into_iter().enumerate() {
            all_sums.extend(sums);
            self.ends |= ends;
            is_saved |= saved;
            for (stage, span) in spans {
                let stage = &stages[stage];
                let mut replicas = stage.replicas.iter().zip(&stage.processes);
                let own = replicas.find(|(_, process)| **process == rank);
                let worker = own.map_or(stage.worker, |(&worker, _)| worker);
                step.timeline.workers[worker].push(span);
            }
        }
        Ok((is_saved, all_sums))
    }

    /// Accumulates a mini-batch's gradients. Updates the parameters if these are enough mini-batches
    /// or the last one of an epoch, unless some gradients were not finite. Returns when each stage of
    /// this process was updated, too.
    fn gather(
        &mut self,
        (step, started): (&mut Step<L>, Instant),
        is_last: bool,
        rate: f64,
    ) -> Result<(Gathered, Vec<(usize, Span)>), TrainError> {
        let own = std::mem::take(&mut step.gradients);
        let mut gradients = (!step.overflowed).then_some(own);
        let accumulator = &mut self.accumulator;
        let waiting = accumulator.counts().mini_batches;
        let updates = is_last || waiting + 1 >= self.settings.accumulate;
        if waiting > 0 || !updates {
            match gradients {
                Some(gradients) => {
                    let added = accumulator.add(&self.pipeline, gradients, step.weight);
                    self.processes.agree(added.map_err(TrainError::from))?;
                }
                None => accumulator.spoil(step.weight),
            }
            if !updates {
                return Ok((Gathered::Waiting, Vec::new()));
            }
            let taken = accumulator.take(&self.pipeline);
            gradients = self.processes.agree(taken.map_err(TrainError::from))?;
        }
        let Some(gradients) = gradients else {
            return Ok((Gathered::Skipped, Vec::new()));
        };
        let spans = (self.optimizer).step(rate, &mut self.pipeline, gradients, started)?;
        let every = self.settings.check_replicas;
        if every > 0 && (self.state.updates + 1).is_multiple_of(every) {
            self.pipeline.check_replicas()?;
        }
        if let Some(average) = &mut self.average {
            average.update(&self.pipeline)?;
        }
        Ok((Gathered::Updated, spans))
    }

    /// Counts a mini-batch that ended after this many seconds of the epoch.
    fn count(
        &mut self,
        step: &Trained<'_>,
        gathered: Gathered,
        seconds: f64,
    ) -> Result<(), TrainError> {
        let state = &mut self.state;
        // A skipped update lowers the learning rate too.
        state.updates += usize::from(gathered != Gathered::Waiting);
        state.batch += 1;
        state.test = None;
        state.first_loss = state
            .first_loss
            .or(Some(step.loss).filter(|loss| loss.is_finite()));
        let sums = &mut state.under_way;
        // In f16, the loss of a step that overflowed may be NaN or infinite.
        if step.loss.is_finite() || !step.overflowed {
            let loss = (step.loss, step.weight);
            (self.task).add(&mut sums.scores, step.samples, loss, step.scores)?;
        }
        sums.skipped += usize::from(gathered == Gathered::Skipped);
        sums.steps += 1;
        sums.bubbles += step.bubble;
        sums.host_time |= step.host_time;
        sums.seconds = seconds;
        Ok(())
    }

    /// The epoch's metrics and rate so far, and what slowed the step.
    fn describe(&self, step: &Trained<'_>) -> String {
        let sums = &self.state.under_way;
        let (metrics, rate) = (self.task.metrics(&sums.scores), sums.samples_per_second());
        let (slowest, bubble) = (step.slowest_worker, 100.0 * step.bubble);
        let clock = clock(step.host_time);
        format!(
            "{metrics} · {rate:.0} samples/s · slowest worker {slowest} · bubble {bubble:.0} %{clock}"
        )
    }

    /// Whether a checkpoint was due at one of the last `count` steps.
    pub(super) fn is_save_due(&self, count: usize) -> bool {
        passes_multiple(self.pipeline.steps(), count, self.settings.save_every)
    }
}

/// Whether one of the last `count` steps was a multiple of `every`, which is 0 for none.
pub(super) fn passes_multiple(steps: u64, count: usize, every: usize) -> bool {
    let (every, count) = (every as u64, count as u64);
    every > 0 && steps / every > (steps - count.min(steps)) / every
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_may_pass_a_multiple() {
        for (steps, count, every, passes) in [
            (8, 4, 0, false),
            (8, 4, 8, true),
            (10, 4, 8, true),
            (12, 4, 8, false),
            (3, 3, 4, false),
            (4, 4, 1, true),
        ] {
            assert_eq!(
                passes_multiple(steps, count, every),
                passes,
                "{steps}, {count}, {every}"
            );
        }
    }
}
