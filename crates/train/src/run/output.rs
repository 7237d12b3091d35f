//! What a training writes: checkpoints, metrics, and the files at its end.

use stovepipe_pipeline::{Layer, count_parameters};

use super::{
    folder::RunFolder,
    labels::worker_labels,
    progress::Progress,
    summary::{EpochMetrics, LossScale, Summary, Tested, stage_summaries},
    trainer::Trainer,
};
use crate::{
    checkpoint::{Keep, Sums, TrainerState},
    error::TrainError,
    optimizer::WeightAverage,
    settings::SaveErrorSetting,
    task::TrainingMetrics,
    weights::save_model,
};

impl<L: Layer, O> Trainer<L, O> {
    /// Makes a checkpoint. If that fails, the settings say whether training continues.
    pub(super) fn save(
        &mut self,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let accumulated = self.accumulator.counts();
        let state = TrainerState {
            steps: self.pipeline.steps(),
            averaged: self.average.as_ref().map_or(0, WeightAverage::updates),
            waiting: accumulated.mini_batches,
            waiting_weight: accumulated.weight,
            spoiled: accumulated.spoiled,
            loss_scaler: self.pipeline.loss_scaler(),
            seconds: self.seconds(),
            ..self.state.clone()
        };
        let (task, checkpoints) = (self.task.primary().cloned(), folder.checkpoints());
        let keep = Keep {
            last: self.settings.keep_last,
            best: self.settings.keep_best,
            by: task.as_ref(),
        };
        let saved = checkpoints.save(&self.contents(), &state, keep);
        match (saved, self.settings.on_save_error) {
            (Err(error), SaveErrorSetting::Stop) => Err(TrainError::NotSaved(Box::new(error))),
            (Err(error), SaveErrorSetting::Continue) => {
                let warning =
                    format!("the checkpoint cannot be written, training continues: {error}");
                progress.warn(&warning);
                Ok(())
            }
            (Ok(()), _) => Ok(()),
        }
    }

    /// Reports the current epoch, as far as it was trained.
    pub(super) fn report_epoch(
        &self,
        batches: usize,
        tested: &Tested,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(), TrainError> {
        let (state, sums) = (&self.state, &self.state.under_way);
        let (epoch, loss) = (state.epoch + 1, tested.model.loss);
        if !loss.is_finite() {
            return Err(TrainError::TestLossNotFinite { loss, epoch });
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
            test: tested.model.clone(),
            averaged: tested.averaged.clone(),
            loss_scale: self.loss_scale(sums),
            samples_per_second: sums.samples_per_second(),
            bubble: sums.bubble(),
            seconds: sums.seconds,
        };
        progress.epoch(epoch, &metrics.to_string());
        folder.append_json_line("metrics.jsonl", &metrics)
    }

    pub(super) fn summary(&self, tested: Tested, stopped: bool) -> Summary {
        let (state, mut all) = (&self.state, self.state.over.clone());
        all.add(&state.under_way);
        let train_loss = match state.under_way.steps {
            0 => state.train_loss,
            _ => state.under_way.scores.mean_loss(),
        };
        Summary {
            parameters: count_parameters(&self.pipeline),
            stages: stage_summaries(&self.pipeline),
            epochs: state.epoch,
            train_loss,
            test: tested.model,
            averaged: tested.averaged,
            samples_per_second: all.samples_per_second(),
            bubble: all.bubble(),
            loss_scale: self.loss_scale(&all),
            seconds: self.seconds(),
            stopped,
        }
    }

    /// In f16, the current scale of the loss and the updates that were skipped.
    fn loss_scale(&self, sums: &Sums) -> Option<LossScale> {
        let scaler = self.pipeline.loss_scaler()?;
        Some(LossScale {
            scale: scaler.scale(),
            skipped: sums.skipped,
        })
    }

    pub(super) fn write(&self, folder: &RunFolder, summary: &Summary) -> Result<(), TrainError> {
        save_model(&self.pipeline, folder.file("model.safetensors"))?;
        if let Some(averaged) = self.averaged() {
            save_model(averaged, folder.file("averaged.safetensors"))?;
        }
        // Without a step, an earlier timeline stays.
        if !self.timeline.workers.is_empty() || !folder.file("timeline.svg").exists() {
            let labels = worker_labels(&self.pipeline.stages());
            folder.write("timeline.svg", self.timeline.to_svg(&labels).as_bytes())?;
            folder.write_json("timeline.json", &self.timeline.to_chrome_trace(&labels))?;
        }
        folder.write_json("summary.json", summary)
    }
}
