//! Running statistics that are exact, instead of an average over the last steps.

use std::sync::{Arc, PoisonError};

use crate::{
    api::{batch::Inputs, error::StepError, pipeline::Pipeline, tasks::StepInputs},
    engine::{
        parts::OutputUse,
        schedules::StepSchedule,
        stage::Training,
        statistics::{Statistics, extend_all},
        step,
    },
    model::layer::Layer,
};

impl<L: Layer> Pipeline<L> {
    /// Whether the model has batch norms that [`recalibrate`](Self::recalibrate) changes: not frozen ones.
    #[must_use]
    pub fn can_recalibrate(&self) -> bool {
        let cells = self.engine.stages.iter().flat_map(|stage| &*stage.cells);
        (cells.zip(self.own_layers())).any(|(cells, layer)| cells.can_recalibrate(layer))
    }

    /// Replaces the running statistics of batch norms by the exact means and variances over the first batches
    /// that together have `micro_batches` micro-batches, or all. Running statistics follow the weights with
    /// a lag of many steps; these are of the current weights ("precise batch norm" of Wu and Johnson,
    /// "Rethinking 'Batch' in BatchNorm", 2021). The layers run forward as in training. Batches whose
    /// statistics are NaN or infinite do not count. Parameters, random numbers and other statistics do not
    /// change.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Inputs, Pipeline, StepError};
    ///
    /// let device = Device::flex();
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 2])).devices([device.clone()]).build()?;
    /// assert!(!pipeline.can_recalibrate()); // it has no batch norms
    /// let batches = [Ok::<_, StepError>(Inputs::from(Tensor::ones([4, 3], &device)))];
    /// pipeline.recalibrate(8, batches)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a batch is an error, and those of [`train_step`](Self::train_step). Nothing changes then.
    pub fn recalibrate<E: From<StepError>>(
        &self,
        micro_batches: usize,
        batches: impl IntoIterator<Item = Result<Inputs<L::Input, L::Side>, E>>,
    ) -> Result<(), E> {
        let (mut all, mut sizes) = (Vec::<Statistics>::new(), Vec::new());
        for inputs in batches {
            let (found, own) = self.count(inputs?)?;
            // Few bits may overflow where training skips an update.
            let are_finite = found.iter().all(Statistics::are_finite);
            let (_, of_all) = (self.engine.processes)
                .meet_and_tell(Ok::<_, StepError>(()), |()| (Vec::new(), are_finite))?;
            if of_all.contains(&false) {
                continue;
            }
            extend_all(&mut all, found, sizes.len());
            sizes.extend(own);
            if sizes.len() >= micro_batches {
                break;
            }
        }
        let _turn = self.engine.begin_step()?;
        let mut momenta = (self.engine.momenta.lock()).unwrap_or_else(PoisonError::into_inner);
        for (layer, statistics) in self.own_layers().zip(all) {
            statistics.commit(layer, &mut momenta, &sizes, true);
        }
        Ok(())
    }

    /// The statistics of each layer in a forward pass, and the sizes of the micro-batches.
    fn count(
        &self,
        inputs: Inputs<L::Input, L::Side>,
    ) -> Result<(Vec<Statistics>, Vec<usize>), StepError> {
        let (_turn, sizes) = self.prepare_forward(&inputs, "recalibrate")?;
        let turns = self.engine.schedules.turns(sizes.len());
        let schedule = Arc::new(StepSchedule {
            actions: self.forward_actions(&turns, sizes.len()),
            versions: Vec::new(),
            recorded: Vec::new(),
            segments: Vec::new(),
            turns,
        });
        let training = Training {
            sums: None,
            schedule: schedule.clone(),
            trainable_from: usize::MAX,
            momenta: self.engine.momenta.clone(),
            only_counts: true,
            checks_finite: false,
            inspect: false,
            loss_scale: None,
        };
        let split = (&sizes[..], &schedule.turns);
        let inputs = StepInputs::Whole(inputs);
        let tasks = self.tasks(inputs, split, Some(&Arc::new(training)), |_| {
            Ok(OutputUse {
                loss: None,
                keep_outputs: false,
            })
        });
        let result = step::run(&self.engine, &schedule, tasks, |_| Ok(()))?;
        let statistics = result.stages.into_iter().flat_map(|stage| stage.statistics);
        Ok((statistics.collect(), sizes))
    }
}
