//! Trains an epoch in windows, for schedules that do not wait for updates.

use std::time::Instant;

use stovepipe_pipeline::{Batch, Flow, Layer, Objective, Window};

use super::{
    epoch::{Gathered, Trained, passes_multiple},
    folder::RunFolder,
    progress::Progress,
    trainer::Trainer,
};
use crate::{
    data::{Source, shared},
    error::TrainError,
};

/// The usual number of mini-batches of a window.
const WINDOW: usize = 32;

impl<L: Layer, O> Trainer<L, O> {
    /// Trains the rest of the current epoch. Returns whether it was stopped, or reached the limit of
    /// steps, before its end. What an epoch does after each step, this does after each window.
    pub(super) fn train_windows<T: Flow>(
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
        let staleness = self.pipeline.staleness()?;
        let mut loaded = shared(&self.pipeline, || source.train_from(first, pass));
        while self.state.batch < batches {
            let count = self.window(batches).min(batches - self.state.batch);
            let update = self.update(batches);
            self.pipeline.set_progress(rate.progress(update));
            let numbers = update..update + count;
            let of_stage = |&late: &usize| {
                let rates = numbers.clone().map(|number| rate.of_stage(number, late));
                rates.collect()
            };
            let rates = staleness.iter().map(of_stage).collect();
            let Some(window) = self.train_window(&mut loaded, (count, rates))? else {
                return Ok(true);
            };
            let own = (self.is_asked_to_end(), self.has_saved());
            let all = self.processes.gather((own, self.optimizer.take_sums()))?;
            self.ends |= all.iter().any(|&((ends, _), _)| ends);
            if all.iter().any(|&((_, is_saved), _)| is_saved) {
                self.end_saving(folder, progress)?;
            }
            let seconds = before + started.elapsed().as_secs_f64();
            let spent = (seconds - self.state.under_way.seconds) / count as f64;
            let (bubble, slowest) = (window.timeline.bubble(), window.timeline.slowest_worker());
            for (index, number) in numbers.enumerate() {
                let trained = Trained {
                    step: self.pipeline.steps() - (count - 1 - index) as u64,
                    loss: window.losses[index],
                    weight: window.weights[index],
                    scores: &window.scores[index],
                    samples: window.micro_batches[index].iter().sum(),
                    overflowed: false,
                    bubble,
                    host_time: window.timeline.host_time,
                    slowest_worker: slowest.unwrap_or(0),
                };
                let so_far = self.state.under_way.seconds + spent;
                self.record(
                    &trained,
                    Gathered::Updated,
                    (rate.at(number), so_far),
                    (folder, progress),
                )?;
                let sums = all.iter().flat_map(|(_, sums)| sums);
                let sums = sums.filter(|(own, _)| *own == index).map(|&(_, sums)| sums);
                let of_step = (trained.step, trained.loss);
                self.log_sums(of_step, sums, &[], (folder, progress));
            }
            self.timeline = window.timeline;
            let is_over = self.state.batch == batches;
            if passes_multiple(self.pipeline.steps(), count, self.settings.check_replicas) {
                self.pipeline.check_replicas()?;
            }
            if self.is_save_due(count) {
                self.save(folder, progress)?;
            }
            if (self.ends || self.is_at_limit()) && !is_over {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The mini-batches of the next window, unless the epoch has fewer left.
    fn window(&self, batches: usize) -> usize {
        let window = self.settings.window.unwrap_or(WINDOW).min(batches);
        let most = self.settings.max_steps as u64;
        let left = most.saturating_sub(self.pipeline.steps());
        match most {
            0 => window,
            _ => window
                .min(usize::try_from(left).unwrap_or(usize::MAX))
                .max(1),
        }
    }

    /// Trains a window of so many mini-batches, with these learning rates by stage. Returns `None` if it
    /// was stopped.
    fn train_window<T: Flow>(
        &mut self,
        loaded: &mut impl Iterator<Item = Result<Batch<L::Input, T, L::Side>, TrainError>>,
        (count, rates): (usize, Vec<Vec<f64>>),
    ) -> Result<Option<Window>, TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let mut failed = None;
        let batches = Loaded {
            batches: loaded,
            left: count,
            failed: &mut failed,
        };
        let (pipeline, objective) = (&mut self.pipeline, &self.task.training);
        let trained = if self.processes.communicator().is_some() {
            // Processes load together, which must not happen while they train.
            let batches: Vec<_> = batches.collect();
            (self.optimizer).train_window(rates, pipeline, batches.into_iter(), objective)
        } else {
            (self.optimizer).train_window(rates, pipeline, batches, objective)
        };
        match failed {
            Some(failed) => Err(failed),
            None => self.unless_stopped(trained),
        }
    }
}

/// The batches of a window. Ends early if one cannot be loaded.
struct Loaded<'a, B> {
    batches: &'a mut B,
    left: usize,
    failed: &'a mut Option<TrainError>,
}

impl<B, T> Iterator for Loaded<'_, B>
where
    B: Iterator<Item = Result<T, TrainError>>,
{
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.left = self.left.checked_sub(1)?;
        match self.batches.next()? {
            Ok(batch) => Some(batch),
            Err(error) => {
                *self.failed = Some(error);
                None
            }
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl<B, T> ExactSizeIterator for Loaded<'_, B> where B: Iterator<Item = Result<T, TrainError>> {}
