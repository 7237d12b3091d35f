//! What a training writes: checkpoints, metrics, and the files at its end.

use std::{error::Error, io};

use stovepipe_pipeline::{
    Layer, Stage, caught, count_parameters,
    error::{Panicked, ProcessError},
};

use super::{
    epoch::Trained,
    folder::{METRICS, RunFolder, STEPS},
    progress::Progress,
    saving::{Saved, Saving},
    summary::{BestEpoch, EpochMetrics, LossScale, StepMetrics, Summary, Tested, stage_summaries},
    trainer::Trainer,
};
use crate::{
    checkpoint::{Checkpoints, Keep, Sums, TrainerState, model_file, models},
    error::{TrainError, is_disk_full},
    optimizer::Averages,
    processes::Processes,
    settings::{SaveErrorSetting, TrainSettings, free_memory},
    task::{About, Metrics, TrainingMetrics},
    weights::write_together,
};

/// The file of the model with the best test.
const BEST: &str = "best.safetensors";

impl<L: Layer, O> Trainer<L, O> {
    /// Makes a checkpoint: copies what is in it, and has a thread write the copy. Training waits for the write if the
    /// host's memory has no room for a copy. If it fails, the settings say whether training continues.
    pub(super) fn save(
        &mut self,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        // One after the other.
        self.end_saving(folder, progress)?;
        let accumulated = self.accumulator.counts();
        let state = TrainerState {
            steps: self.pipeline.steps(),
            averaged: self.average.as_ref().map_or(0, Averages::updates),
            waiting: accumulated.mini_batches,
            waiting_weight: accumulated.weight,
            spoiled: accumulated.spoiled,
            loss_scaler: self.pipeline.loss_scaler(),
            seconds: self.seconds(),
            ..self.state.clone()
        };
        let (by, settings) = (self.task.primary().cloned(), self.settings.clone());
        let (checkpoints, processes) = (folder.checkpoints(), self.processes.clone());
        processes.first(|| folder.check())?;
        let is_new = !processes.of_first(checkpoints.has(&state))?;
        if is_new {
            processes.agree(self.pipeline.sync().map_err(TrainError::from))?;
        }
        let copied = if is_new {
            let (free, held) = (free_memory(), self.largest_copy);
            let has_room = |bytes| has_room(bytes, held, free);
            (self.contents()).copy(&checkpoints.folder_of(&state), has_room)
        } else {
            Ok(None)
        };
        if is_new && matches!(copied, Ok(None)) && !std::mem::replace(&mut self.has_waited, true) {
            let why = "this host's memory has no room for a copy";
            let line = format!("training waits while a checkpoint is written: {why}");
            progress.say(&line);
        }
        let saved = match copied {
            Err(error) => Err(error),
            Ok(Some(copied)) => {
                self.largest_copy = self.largest_copy.max(copied.bytes());
                let write = move || {
                    let (mut said, keep) = (Vec::new(), keep(by.as_ref(), &settings));
                    let work = || {
                        with_room(
                            (&Processes::default(), &checkpoints),
                            keep,
                            |line| said.push(line.to_owned()),
                            || false,
                            || checkpoints.save_copy(&copied, &state, keep),
                        )
                    };
                    let failed = |panicked: Panicked| {
                        let error = io::Error::other(panicked.message);
                        Err(TrainError::file(&checkpoints.folder_of(&state))(error))
                    };
                    let result = caught(work).unwrap_or_else(failed);
                    Saved { said, result }
                };
                self.saving = Some(match processes.is_first() {
                    true => Saving::begin(write),
                    false => Saving::Elsewhere,
                });
                Ok(())
            }
            Ok(None) => {
                let (keep, contents) = (keep(by.as_ref(), &settings), self.contents());
                with_room(
                    (&processes, &checkpoints),
                    keep,
                    |line| progress.say(line),
                    || false,
                    || checkpoints.save(&contents, &state, keep),
                )
            }
        };
        self.judge(saved, progress)
    }

    /// Whether this process has written a checkpoint that training has not waited for.
    pub(super) fn has_saved(&self) -> bool {
        self.saving.as_ref().is_some_and(Saving::is_over)
    }

    /// Waits until the last checkpoint is written.
    pub(super) fn end_saving(
        &mut self,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        if self.saving.is_none() {
            return Ok(());
        }
        let own = self.end_own_saving(progress);
        let saved = self.processes.agree(own);
        if saved.is_err() {
            self.processes.first(|| folder.check())?;
        }
        self.judge(saved, progress)
    }

    /// Waits until the last checkpoint is written, after an error: without the other processes.
    pub(super) fn end_saving_alone(&mut self, progress: &mut Progress) {
        if let Err(error) = self.end_own_saving(progress) {
            progress.say(&format!("warning: {}", not_saved(error)));
        }
    }

    /// What came of the checkpoint that this process writes, if there is one.
    fn end_own_saving(&mut self, progress: &mut Progress) -> Result<(), TrainError> {
        let Some(saved) = self.saving.take().and_then(Saving::end) else {
            return Ok(());
        };
        saved.said.iter().for_each(|line| progress.say(line));
        saved.result
    }

    /// What the settings say of a checkpoint that was saved or not.
    fn judge(
        &self,
        saved: Result<(), TrainError>,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let Err(error) = saved.map_err(not_saved) else {
            return Ok(());
        };
        if self.settings.on_save_error == SaveErrorSetting::Stop {
            return Err(error);
        }
        progress.say(&format!("warning: {error}; training continues"));
        Ok(())
    }

    /// Appends the last mini-batch to `steps.jsonl`. Warns once if that fails.
    pub(super) fn log_step(
        &mut self,
        step: &Trained<'_>,
        (learning_rate, gradient_norm): (f64, Option<f64>),
        seconds: f64,
        folder: &RunFolder,
        progress: &mut Progress,
    ) {
        let seconds = seconds.max(f64::MIN_POSITIVE);
        let line = StepMetrics {
            step: step.step,
            epoch: self.state.epoch + 1,
            loss: step.loss,
            learning_rate,
            gradient_norm,
            samples_per_second: step.samples as f64 / seconds,
            tokens_per_second: (self.task.counts_tokens).then(|| step.weight / seconds),
            memory: self.memory.resident(),
            bubble: step.bubble,
        };
        let appended = folder.append_json_line(STEPS, &line);
        self.warn_of_log(appended, progress);
    }

    /// Says once that a log of steps cannot be written.
    pub(super) fn warn_of_log(
        &mut self,
        appended: Result<(), TrainError>,
        progress: &mut Progress,
    ) {
        if let Err(error) = appended
            && !std::mem::replace(&mut self.has_warned, true)
        {
            progress.say(&format!(
                "warning: training continues without its log: {error}"
            ));
        }
    }

    /// Writes files of the run, such as a report. While the disk is full, removes the oldest
    /// checkpoint that is neither the newest nor one of the best, says so, and tries again. All
    /// processes call this.
    ///
    /// # Errors
    ///
    /// Those of `write`, or if a checkpoint cannot be removed.
    pub fn with_room<R, E: From<TrainError> + From<ProcessError> + Error + 'static>(
        &self,
        folder: &RunFolder,
        say: impl FnMut(&str),
        write: impl Fn() -> Result<R, E>,
    ) -> Result<R, E> {
        let keep = keep(self.task.primary(), &self.settings);
        // A checkpoint that is being written may fail for the same reason, and leave its room.
        let settle = || self.saving.as_ref().is_some_and(Saving::wait);
        let place = (&self.processes, &folder.checkpoints());
        with_room(place, keep, say, settle, write)
    }

    /// Reports the current epoch, as far as it was trained.
    pub(super) fn report_epoch(
        &self,
        batches: usize,
        tested: Option<&Tested>,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let (state, sums) = (&self.state, &self.state.under_way);
        let epoch = state.epoch + 1;
        let loss = tested.map(|tested| tested.model.loss);
        if let Some(loss) = loss.filter(|loss| !loss.is_finite()) {
            let tip = "try a smaller --lr, a longer --warmup-epochs, or --clip";
            progress.say(&format!(
                "warning: the test loss is {loss} after epoch {epoch}: {tip}"
            ));
        }
        if sums.steps == 0 {
            return Ok(());
        }
        let last_update = self.update(batches).saturating_sub(1);
        let metrics = EpochMetrics {
            epoch,
            steps: sums.steps,
            updates: state.updates,
            learning_rate: self.learning_rate(batches).at(last_update),
            train: TrainingMetrics::of(self.task.metrics(&sums.scores)),
            test: tested.map(|tested| tested.model.clone()),
            averaged: tested.and_then(|tested| tested.averaged.clone()),
            loss_scale: self.loss_scale(sums),
            samples_per_second: sums.samples_per_second(),
            bubble: sums.bubble(),
            host_time: sums.host_time,
            seconds: sums.seconds,
        };
        progress.epoch(epoch, &metrics.to_string());
        self.with_room(
            folder,
            |line| progress.say(line),
            || folder.append_json_line(METRICS, &metrics),
        )
    }

    fn summary(&self, tested: Tested, best: Option<BestEpoch>, stopped: bool) -> Summary {
        let (state, mut all) = (&self.state, self.state.over.clone());
        all.add(&state.under_way);
        let train_loss = match state.under_way.steps {
            0 => state.train_loss,
            _ => state.under_way.scores.mean_loss(),
        };
        Summary {
            // Of all processes.
            parameters: count_parameters(&self.pipeline.layers().to_vec()),
            stages: stage_summaries(&self.pipeline),
            epochs: state.epoch,
            train_loss,
            test: tested.model,
            averaged: tested.averaged,
            best,
            samples_per_second: all.samples_per_second(),
            bubble: all.bubble(),
            host_time: all.host_time,
            loss_scale: self.loss_scale(&all),
            seconds: self.seconds(),
            stopped,
        }
    }

    /// In f16, the current scale of the loss and the updates that were skipped.
    fn loss_scale(&self, sums: &Sums) -> Option<LossScale> {
        let scale = self.pipeline.loss_scaler()?.scale();
        let skipped = sums.skipped;
        Some(LossScale { scale, skipped })
    }

    /// Writes the files at the end of a run.
    pub(super) fn write(
        &self,
        folder: &RunFolder,
        (tested, stopped): (Tested, bool),
        progress: &mut Progress,
    ) -> Result<Summary, TrainError> {
        for model in models(&self.pipeline, self.average.as_ref(), &self.base)? {
            let path = folder.file(&model.name);
            let write = || write_together(&self.processes, &path, &model.tensors, model.metadata());
            let saved = self.with_room(
                folder,
                |line| progress.say(line),
                || {
                    folder.files().write(&path, write)?;
                    self.processes.first(|| folder.files().sync_file(&path))
                },
            );
            if let Err(error) = saved {
                let link = || self.link_model(folder, &model.name, error);
                self.processes.first(link)?;
            }
        }
        let best = self.with_room(
            folder,
            |line| progress.say(line),
            || self.processes.first(|| self.write_best(folder)),
        )?;
        let summary = self.summary(tested, best.flatten(), stopped);
        self.with_room(
            folder,
            |line| progress.say(line),
            || {
                self.write_timeline(folder)?;
                folder.write_json("summary.json", &summary)
            },
        )?;
        Ok(summary)
    }

    /// Links a model that does not fit the disk to that of the checkpoint at the end of its epoch.
    fn link_model(
        &self,
        folder: &RunFolder,
        name: &str,
        error: TrainError,
    ) -> Result<(), TrainError> {
        let checkpoints = folder.checkpoints().list()?;
        let own = checkpoints.last();
        // Without a test, the checkpoint has other running statistics.
        let is_same = self.state.batch == 0 && self.state.test.is_some();
        let own = own.filter(|own| is_same && own.name() == self.state.name());
        match own {
            Some(own) if is_disk_full(&error) => {
                let (from, to) = (own.path().join(name), folder.file(name));
                folder.files().link(&from, &to).map_err(|_| error)
            }
            _ => Err(error),
        }
    }

    /// Writes `best.safetensors`: the model with the best test at the end of an epoch, or the last model if
    /// there was no such test. Returns its epoch. There is no file if its checkpoint was not kept.
    fn write_best(&self, folder: &RunFolder) -> Result<Option<BestEpoch>, TrainError> {
        let (state, averages) = (&self.state, self.average.is_some());
        let own = folder.file(model_file(averages));
        let is_own = state.tests_since_best == 0 && state.test.is_some();
        let path = folder.file(BEST);
        let (model, epoch) = match &state.best {
            Some(test) if !is_own => {
                let best = folder.checkpoints().best(&self.task).ok().flatten();
                let found = best.and_then(|best| Some((best.state().ok()?, best)));
                let quality = |test: &Metrics| test.quality(self.task.primary());
                let is_it =
                    |state: &TrainerState| state.test.as_ref().map(quality) == Some(quality(test));
                match found.filter(|(state, _)| is_it(state)) {
                    Some((state, best)) => (best.model(averages), state.epoch),
                    None => return Ok(None),
                }
            }
            _ => (own, state.epoch),
        };
        // Two names of one file take no space.
        folder.files().link(&model, &path)?;
        Ok(state.best.clone().map(|test| BestEpoch { epoch, test }))
    }

    pub(super) fn write_timeline(&self, folder: &RunFolder) -> Result<(), TrainError> {
        // Without a step, an earlier timeline stays.
        if self.timeline.workers.is_empty() && folder.file("timeline.svg").exists() {
            return Ok(());
        }
        let labels = worker_labels(&self.pipeline.stages(), &self.processes);
        folder.write("timeline.svg", self.timeline.to_svg(&labels).as_bytes())?;
        folder.write_json("timeline.json", &self.timeline.to_chrome_trace(&labels))
    }
}

/// The error of a checkpoint, of which it says whether it was written.
fn not_saved(error: TrainError) -> TrainError {
    match error {
        // What another process says of it is whole.
        error @ (TrainError::NotRemoved(_) | TrainError::Processes(_)) => error,
        error => TrainError::NotSaved(Box::new(error)),
    }
}

fn keep<'a>(by: Option<&'a About>, settings: &TrainSettings) -> Keep<'a> {
    Keep {
        last: settings.keep_last,
        best: settings.keep_best,
        by,
    }
}

/// Whether the host's memory has room for a copy of so many bytes, and as much again for what else needs some. An
/// earlier copy may be `held`: allocators keep freed memory.
fn has_room(bytes: usize, held: usize, free: Option<u64>) -> bool {
    free.is_none_or(|free| 2 * bytes as u64 <= free + held as u64)
}

/// Writes something. If the disk is full, first tries again if something had to `settle`. While the disk is full, removes the oldest checkpoint that is neither the
/// newest nor one of the best, and tries again.
fn with_room<R, E: From<TrainError> + From<ProcessError> + Error + 'static>(
    (processes, checkpoints): (&Processes, &Checkpoints),
    keep: Keep<'_>,
    mut say: impl FnMut(&str),
    settle: impl Fn() -> bool,
    write: impl Fn() -> Result<R, E>,
) -> Result<R, E> {
    loop {
        let error = match processes.agree(write()) {
            Err(error) => error,
            done => return done,
        };
        if !processes.of_first(is_disk_full(&error))? {
            return Err(error);
        }
        if processes.of_first(settle())? {
            continue;
        }
        let Some(name) = processes.by_first(|| checkpoints.remove_oldest(keep))? else {
            return Err(error);
        };
        say(&format!(
            "warning: the disk is full: the checkpoint {name} was removed to make room"
        ));
    }
}

/// Each worker's name: its stages, with their layers if it has one stage, its device, and the host if there
/// are several.
fn worker_labels(pipeline: &[Stage], processes: &Processes) -> Vec<String> {
    let workers = pipeline.iter().flat_map(|stage| &stage.replicas).max();
    let label = |worker| {
        let all = pipeline.iter().enumerate();
        let own: Vec<_> = all
            .filter(|(_, stage)| stage.replicas.contains(&worker))
            .collect();
        let replica = |stage: &Stage| stage.replicas.iter().position(|own| *own == worker);
        let device = own.first().and_then(|(_, stage)| {
            let name = &stage.devices[replica(stage)?];
            Some(placed(name, processes))
        });
        let stages = match own[..] {
            [(index, stage)] => one_stage_label(index, stage),
            ref several => {
                let numbers: Vec<_> = several.iter().map(|(index, _)| index.to_string()).collect();
                format!("stages {}", numbers.join(", "))
            }
        };
        format!("{stages} · {}", device.unwrap_or_default())
    };
    (0..workers.map_or(0, |most| most + 1)).map(label).collect()
}

/// A device with its host, if there are several.
fn placed(device: &str, processes: &Processes) -> String {
    let process = device
        .split_once('/')
        .and_then(|(process, _)| process.parse().ok());
    match process.filter(|_| processes.are_on_several_hosts()) {
        Some(process) => format!("{device} on {}", processes.host(process)),
        None => device.to_owned(),
    }
}

fn one_stage_label(index: usize, stage: &Stage) -> String {
    let (first, last) = (stage.layers.start, stage.layers.end - 1);
    if first == last {
        return format!("stage {index} · layer {first}");
    }
    format!("stage {index} · layers {first}–{last}")
}
