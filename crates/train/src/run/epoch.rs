//! Trains an epoch.

use std::time::Instant;

use stovepipe_pipeline::{Batch, Flow, Layer, Objective, Step, StepError};

use super::{
    folder::RunFolder,
    progress::{Progress, StepReport},
    trainer::Trainer,
};
use crate::{
    data::{EpochPass, Source},
    error::TrainError,
};

/// A mini-batch that ran forward and backward.
struct Trained<L: Layer> {
    step: Step<L>,
    started: Instant,
}

/// What happened to a mini-batch's gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gathered {
    /// They are accumulated for a later update.
    Waiting,
    /// Parameters were updated.
    Updated,
    /// The update was skipped: some gradients were not finite.
    Skipped,
}

impl<L: Layer, O> Trainer<L, O> {
    /// Trains the rest of the current epoch. Returns whether it was stopped.
    pub(super) fn train_epoch<T>(
        &mut self,
        batches: usize,
        source: &dyn Source<L::Input, T, L::Side>,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<bool, TrainError>
    where
        T: Flow,
        O: Objective<L::Output, T>,
    {
        let epoch = self.state.epoch;
        let pass = EpochPass {
            epoch,
            seed: self.settings.seed,
            batch_size: self.settings.batch_size,
        };
        let rate = self.learning_rate(batches);
        let (started, before) = (Instant::now(), self.state.under_way.seconds);
        let mut loaded = source.train_from(self.state.batch, pass).peekable();
        while let Some(batch) = loaded.next() {
            let batch = batch?;
            let update = self.update(batches);
            self.pipeline.set_progress(rate.progress(update));
            let Some(mut trained) = self.train_batch(batch)? else {
                return Ok(true);
            };
            // The last update of an epoch may have fewer mini-batches.
            let is_last = loaded.peek().is_none();
            let gathered = self.gather(&mut trained, is_last, rate.at(update))?;
            let seconds = before + started.elapsed().as_secs_f64();
            self.count(&trained.step, gathered, seconds)?;
            progress.step(
                epoch + 1,
                self.state.batch,
                &self.report_step(&trained.step),
            );
            // The timeline is of the last complete mini-batch.
            if trained.step.micro_batches.iter().sum::<usize>() == self.settings.batch_size {
                self.timeline = trained.step.timeline;
            }
            if self.is_save_due() {
                self.save(folder, progress)?;
            }
            if self.is_ending() && !is_last {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Runs a mini-batch. Returns `None` if it was stopped.
    fn train_batch<T>(
        &self,
        batch: Batch<L::Input, T, L::Side>,
    ) -> Result<Option<Trained<L>>, TrainError>
    where
        T: Flow,
        O: Objective<L::Output, T>,
    {
        let started = Instant::now();
        let objective = self.task.training_objective();
        match self.pipeline.train_step(batch, objective) {
            Ok(step) => Ok(Some(Trained { step, started })),
            Err(StepError::Stopped) => Ok(None),
            Err(source @ StepError::NotFinite { .. }) => Err(TrainError::Diverged {
                epoch: self.state.epoch + 1,
                batch: self.state.batch + 1,
                source,
            }),
            Err(other) => Err(other.into()),
        }
    }

    /// Accumulates a mini-batch's gradients. Updates the parameters if these are enough mini-batches
    /// or the last one of an epoch, unless some gradients were not finite.
    fn gather(
        &mut self,
        Trained { step, started }: &mut Trained<L>,
        is_last: bool,
        rate: f64,
    ) -> Result<Gathered, TrainError> {
        let own = std::mem::take(&mut step.gradients);
        let mut gradients = (!step.overflowed).then_some(own);
        let accumulator = &mut self.accumulator;
        let waiting = accumulator.counts().mini_batches;
        let updates = is_last || waiting + 1 >= self.settings.accumulate;
        if waiting > 0 || !updates {
            match gradients {
                Some(gradients) => accumulator.add(&self.pipeline, gradients, step.weight),
                None => accumulator.spoil(step.weight),
            }
            if !updates {
                return Ok(Gathered::Waiting);
            }
            gradients = accumulator.take(&self.pipeline);
        }
        let Some(gradients) = gradients else {
            return Ok(Gathered::Skipped);
        };
        let spans = (self.optimizer).step(rate, &mut self.pipeline, gradients, *started)?;
        for (stage, span) in self.pipeline.stages().iter().zip(spans) {
            step.timeline.workers[stage.worker].push(span);
        }
        if let Some(average) = &mut self.average {
            average.update(&self.pipeline)?;
        }
        Ok(Gathered::Updated)
    }

    /// Counts a mini-batch that ended after this many seconds of the epoch.
    fn count(
        &mut self,
        step: &Step<L>,
        gathered: Gathered,
        seconds: f64,
    ) -> Result<(), TrainError> {
        let state = &mut self.state;
        // A skipped update lowers the learning rate too.
        state.updates += usize::from(gathered != Gathered::Waiting);
        state.batch += 1;
        state.test = None;
        let sums = &mut state.under_way;
        // In f16, the loss of a step that overflowed may be NaN or infinite.
        if step.loss.is_finite() || !step.overflowed {
            let (samples, loss) = (step.micro_batches.iter().sum(), (step.loss, step.weight));
            self.task
                .add(&mut sums.scores, samples, loss, &step.scores)?;
        }
        sums.skipped += usize::from(gathered == Gathered::Skipped);
        sums.steps += 1;
        sums.bubbles += step.timeline.bubble();
        sums.seconds = seconds;
        Ok(())
    }

    fn report_step(&self, step: &Step<L>) -> StepReport {
        let sums = &self.state.under_way;
        StepReport {
            metrics: self.task.metrics(&sums.scores),
            samples_per_second: sums.samples_per_second(),
            slowest_worker: step.timeline.slowest_worker().unwrap_or(0),
            bubble: step.timeline.bubble(),
        }
    }

    /// Whether to make a checkpoint after this mini-batch.
    fn is_save_due(&self) -> bool {
        let every = self.settings.save_every as u64;
        every > 0 && self.pipeline.steps().is_multiple_of(every)
    }
}
