//! Evaluation and inference: forward passes without dropout, with running statistics.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::MutexGuard,
};

use stovepipe_comm::ProcessError;
use stovepipe_schedule::Action;

use crate::{
    api::{
        batch::{self, Batch, Evaluation, Inputs},
        error::StepError,
        objective::Objective,
        pipeline::Pipeline,
        tasks::{
            SplitBatch, StepInputs, join_outputs, loss_on, own_outputs, sizes_term, sum_losses,
            sum_scores,
        },
    },
    engine::{
        parts::OutputUse,
        schedules::StepSchedule,
        seats::Turns,
        stage::StagePlacement,
        step::{self, StepResult},
    },
    model::{flow::Flow, flows, layer::Layer, packed::PackError},
};

impl<L: Layer> Pipeline<L> {
    /// Runs a batch of any size forward. `inputs` is the model's input, or `(input, side)`. The model does
    /// not change.
    ///
    /// # Errors
    ///
    /// Those of [`train_step`](Self::train_step).
    pub fn infer(
        &self,
        inputs: impl Into<Inputs<L::Input, L::Side>>,
    ) -> Result<L::Output, StepError> {
        let inputs = inputs.into();
        let (_turn, sizes) = self.prepare_forward(&inputs, "infer")?;
        let inputs = StepInputs::Whole(inputs);
        let result = self.run_forward(inputs, &sizes, |_| {
            Ok(OutputUse {
                loss: None,
                keep_outputs: true,
            })
        })?;
        let all = self.share_outputs(own_outputs(result));
        let joined = all.and_then(|all| join_outputs(all, sizes.len()));
        self.engine.processes.meet(joined, |_| Vec::new())
    }

    /// Takes the turn, and the sizes of micro-batches, when all processes have agreed on them.
    pub(super) fn prepare_forward(
        &self,
        inputs: &Inputs<L::Input, L::Side>,
        call: &str,
    ) -> Result<(MutexGuard<'_, ()>, Vec<usize>), StepError> {
        let prepare = || {
            let turn = self.engine.begin_step()?;
            let samples = batch::samples(&inputs.input)?;
            let sizes = batch::even_parts(samples, self.engine.micro_batches);
            Ok::<_, StepError>((turn, sizes))
        };
        let (prepared, _) = self.meet(prepare(), |(_, sizes)| {
            let terms = vec![("the call".into(), call.into()), sizes_term(sizes)];
            (terms, ())
        })?;
        Ok(prepared)
    }

    /// Gives every process the outputs of all micro-batches, on a device of its own.
    pub(super) fn share_outputs(
        &self,
        mut own: HashMap<usize, L::Output>,
    ) -> Result<HashMap<usize, L::Output>, StepError> {
        let processes = &self.engine.processes;
        if !processes.are_several() {
            return Ok(own);
        }
        let unreadable = |error: PackError| ProcessError::Unreadable(error.into());
        let pack = |(&index, output): (&usize, &L::Output)| {
            Ok::<_, StepError>((index, flows::pack(output.clone()).map_err(unreadable)?))
        };
        let packed: Result<Vec<_>, _> = own.iter().map(pack).collect();
        let packed = processes.meet(packed, |_| Vec::new())?;
        // Beside those that this process has.
        let last = self.engine.stages.len() - 1;
        let device = match self.engine.home(last) {
            Some(_) => &self.engine.stages[last].device,
            None => self.engine.own_device(),
        };
        for (index, mut packed) in processes.share(packed)?.into_iter().flatten() {
            if let Entry::Vacant(place) = own.entry(index) {
                place.insert(flows::unpack(&mut packed, device).map_err(unreadable)?);
            }
        }
        Ok(own)
    }

    /// Runs a batch of any size forward and computes its loss and scores. The last stage does so for each
    /// micro-batch and keeps no outputs.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{CrossEntropy, Pipeline};
    ///
    /// let device = Device::flex();
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 2])).devices([device.clone()]).build()?;
    /// let (images, targets) = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
    /// let evaluation = pipeline.evaluate((images, targets), &CrossEntropy::new().counting())?;
    /// assert_eq!(evaluation.weight, 4.0);
    /// assert!([0.0, 4.0].contains(&evaluation.scores[0])); // equal images: all right or all wrong
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`train_step`](Self::train_step).
    pub fn evaluate<T: Flow>(
        &self,
        batch: impl Into<Batch<L::Input, T, L::Side>>,
        objective: &impl Objective<L::Output, T>,
    ) -> Result<Evaluation, StepError> {
        let batch = batch.into();
        let prepare = || {
            let turn = self.engine.begin_step()?;
            let split = SplitBatch::<L, T>::new(batch, self.engine.micro_batches, objective)?;
            Ok::<_, StepError>((turn, split))
        };
        let ((_turn, split), _) = self.meet(prepare(), |(_, split)| {
            let weight = ("the batch's weight".to_owned(), split.weight.to_string());
            let call = ("the call".to_owned(), "evaluate".to_owned());
            (vec![call, sizes_term(&split.sizes), weight], ())
        })?;
        let SplitBatch {
            sizes,
            inputs,
            targets,
            weight,
        } = split;
        let result = self.run_forward(inputs, &sizes, |stage| {
            Ok(OutputUse {
                loss: Some(loss_on::<L, T>(stage, objective, &targets, weight)?),
                keep_outputs: false,
            })
        })?;
        Ok(Evaluation {
            loss: sum_losses(&result.reports, 0..sizes.len()).1,
            weight,
            scores: sum_scores(&result.reports, 0..sizes.len()),
        })
    }

    fn run_forward(
        &self,
        inputs: StepInputs<L>,
        sizes: &[usize],
        outputs: impl Fn(&StagePlacement) -> Result<OutputUse<L>, StepError>,
    ) -> Result<StepResult<L>, StepError> {
        let turns = self.engine.schedules.turns(sizes.len());
        let tasks = self.tasks(inputs, (sizes, &turns), None, outputs);
        let schedule = StepSchedule {
            actions: self.forward_actions(&turns, sizes.len()),
            versions: Vec::new(),
            recorded: Vec::new(),
            segments: Vec::new(),
            turns,
        };
        step::run(&self.engine, &schedule, tasks, |_| Ok(()))
    }

    /// Each worker runs its stages one after another, each with all its micro-batches.
    pub(super) fn forward_actions(&self, turns: &Turns, micro_batches: usize) -> Vec<Vec<Action>> {
        let mut actions = vec![Vec::new(); self.engine.schedules.workers];
        for seat in self.engine.seats().all() {
            let own = (0..micro_batches).filter(|&i| turns.has(seat, i));
            actions[seat.worker].extend(own.map(|i| Action::forward(seat.stage, i)));
        }
        actions
    }
}
