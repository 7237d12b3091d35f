//! Evaluation and inference: forward passes without dropout, with running statistics.

use stovepipe_schedule::{Action, Schedule};

use crate::{
    api::{
        batch::{self, Batch, Evaluation, Inputs},
        error::StepError,
        objective::Objective,
        pipeline::Pipeline,
        tasks::{join_outputs, loss_on, sum_losses, sum_scores, weight_of},
    },
    engine::{
        core::StagePlacement,
        stage::OutputUse,
        step::{self, StepResult},
    },
    model::{flow::Flow, layer::Layer},
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
        let _turn = self.engine.begin_step()?;
        let samples = batch::samples(&inputs.input)?;
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        let result = self.run_forward(inputs, &sizes, |_| OutputUse {
            loss: None,
            keep_outputs: true,
        })?;
        join_outputs(result.stages, sizes.len())
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
        let _turn = self.engine.begin_step()?;
        let samples = batch::samples(&batch.input)?;
        let sizes = batch::micro_batch_sizes(samples, self.engine.micro_batches);
        let weight = weight_of(objective, &batch.target)?;
        let targets = batch::split(batch.target, &sizes, "target")?;
        let inputs = Inputs::from((batch.input, batch.side));
        let result = self.run_forward(inputs, &sizes, |stage| OutputUse {
            loss: Some(loss_on::<L, T>(stage, objective, &targets, weight)),
            keep_outputs: false,
        })?;
        Ok(Evaluation {
            loss: sum_losses(&result.stages, sizes.len()).1,
            weight,
            scores: sum_scores(&result.stages, sizes.len()),
        })
    }

    fn run_forward(
        &self,
        inputs: Inputs<L::Input, L::Side>,
        sizes: &[usize],
        outputs: impl Fn(&StagePlacement) -> OutputUse<L>,
    ) -> Result<StepResult<L>, StepError> {
        let schedule = self.inference_schedule(sizes.len())?;
        let tasks = self.tasks(inputs, sizes, None, outputs)?;
        step::run(&self.engine, &schedule, tasks)
    }

    /// Each worker runs its stages one after another, each with all micro-batches.
    fn inference_schedule(&self, micro_batches: usize) -> Result<Schedule, StepError> {
        let owners = self.engine.owners();
        let actions = |worker: usize| {
            let own = (0..owners.len()).filter(move |&stage| owners[stage] == worker);
            own.flat_map(|stage| (0..micro_batches).map(move |i| Action::forward(stage, i)))
        };
        let workers = 0..self.engine.workers.len();
        let actions = workers.map(|worker| actions(worker).collect());
        Ok(Schedule::new(actions.collect())?)
    }
}
