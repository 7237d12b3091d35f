//! Asynchronous training: windows of mini-batches without a flush between them.

use std::sync::{Arc, Mutex, PoisonError, atomic::Ordering};

use burn::optim::GradientsParams;
use stovepipe_runtime::{Outbox, mailbox};
use stovepipe_schedule::{Action, Pass, Recompute, Timeline, WeightPolicy};

use crate::{
    api::{
        batch::Batch,
        error::{StepError, WindowError},
        objective::Objective,
        pipeline::Pipeline,
        precision::Precision,
        tasks::{Parted, SplitBatch, loss_on, sum_losses, sum_scores},
    },
    engine::{
        parts::{OutputUse, Part, Parts},
        report::{Held, StageReport},
        schedules::StepSchedule,
        seats::Seat,
        stage::{StagePlacement, StageResult, StageTask, Training},
        step,
        window::{Change, StageUpdates},
    },
    model::{flow::Flow, layer::Layer, parameters::move_gradients, unkeyed},
};

/// So many mini-batches are ready beyond the one that runs forward.
const AHEAD: usize = 2;

/// The results of a window. Lists have an entry for each mini-batch.
#[derive(Clone, Debug)]
pub struct Window {
    /// The mean loss over each mini-batch, with auxiliary losses.
    pub losses: Vec<f64>,
    /// The part of each loss that comes from auxiliary heads.
    pub auxiliary_losses: Vec<f64>,
    /// The weight of each mini-batch: its samples, or its tokens that are not padding.
    pub weights: Vec<f64>,
    /// The objective's [scores](Objective::scores), summed over each mini-batch; empty if it has none.
    pub scores: Vec<Vec<f64>>,
    /// The number of samples in each micro-batch.
    pub micro_batches: Vec<Vec<usize>>,
    /// What each worker did when.
    pub timeline: Timeline,
    /// The most that each stage kept at once.
    pub held: Vec<Held>,
}

impl<L: Layer> Pipeline<L> {
    /// Trains a window of mini-batches asynchronously, as PipeDream: the schedule goes on from one mini-batch
    /// to the next without a flush, and each stage changes its weights as soon as it has a mini-batch's
    /// gradients. All passes of a micro-batch through a stage use one version of the weights, by the
    /// schedule's [table](stovepipe_schedule::Schedule::versions) and the
    /// [policy](crate::PipelineBuilder::weight_policy). The result is not that of one device.
    ///
    /// `update` gets a stage, its layers, the gradients of a mini-batch, the stage's state, and the number of
    /// the mini-batch in the window. It runs on the worker of the stage's first replica in each process.
    /// Running statistics change mini-batch by mini-batch, at the end of the window.
    ///
    /// Few mini-batches are loaded ahead. Replicas of a stage add up their gradients at each update.
    ///
    /// ```
    /// use burn::{optim::{GradientsParams, Optimizer, SgdConfig}, tensor::{Device, Int, Tensor}};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{CrossEntropy, Pipeline};
    /// use stovepipe_schedule::PipeDream;
    ///
    /// let device = Device::flex();
    /// let mut pipeline = Pipeline::builder(Dense::layers(&[4, 8, 3]))
    ///     .devices([device.clone(), device.clone()])
    ///     .schedule(PipeDream::default())
    ///     .micro_batches(1)
    ///     .build()?;
    /// let batches = [0, 1, 2].map(|label| {
    ///     let labels = Tensor::<1, Int>::full([5], label, &device);
    ///     (Tensor::ones([5, 4], &device), labels)
    /// });
    /// let update = |_, mut layers, gradients: GradientsParams, optimizer, _| {
    ///     let mut optimizer: burn::optim::ModuleOptimizer = optimizer;
    ///     layers = optimizer.step(0.1, layers, gradients);
    ///     (layers, optimizer)
    /// };
    /// let mut optimizers = vec![SgdConfig::new().init(), SgdConfig::new().init()];
    /// let window = pipeline.train_window(batches, &CrossEntropy::new(), &mut optimizers, update)?;
    /// assert_eq!((window.losses.len(), pipeline.steps()), (3, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`train_step`](Self::train_step), for any mini-batch; or if the schedule does not change
    /// weights after each mini-batch, or the pipeline computes in f16 or has parameters that layers share. The
    /// layers, `states` and running statistics are then those before the window.
    pub fn train_window<T, S, I>(
        &mut self,
        batches: I,
        objective: &impl Objective<L::Output, T>,
        states: &mut [S],
        update: impl Fn(usize, Vec<L>, GradientsParams, S, usize) -> (Vec<L>, S)
        + Clone
        + Send
        + 'static,
    ) -> Result<Window, StepError>
    where
        T: Flow,
        S: Clone + Send + 'static,
        I: IntoIterator<IntoIter: ExactSizeIterator>,
        I::Item: Into<Batch<L::Input, T, L::Side>>,
    {
        let engine = self.engine.clone();
        let mut batches = batches.into_iter();
        let updates = batches.len();
        let prepare = || {
            let turn = engine.begin_step()?;
            Ok::<_, StepError>((turn, self.prepare_window(updates, states.len())?))
        };
        let ((_turn, mut training), first) = self.meet(prepare(), |(_, training)| {
            let mut terms = self.call_terms("train_window");
            let what = "the mini-batches of the window";
            terms.push((what.to_owned(), updates.to_string()));
            (terms, training.trainable_from)
        })?;
        training.trainable_from = first.into_iter().min().unwrap_or(self.layers().len());
        let training = Arc::new(training);
        let schedule = training.schedule.clone();
        let mut feed = Feed {
            pipeline: &*self,
            objective,
            schedule: &schedule,
            updates,
            front: 0,
            seats: Vec::new(),
            sizes: Vec::new(),
            weights: Vec::new(),
        };
        let tasks = self.seat_tasks(
            (&schedule.turns, updates),
            Some(&training),
            |seat, stage| {
                let (outbox, inbox) = mailbox();
                feed.seats.push((seat, stage.clone(), outbox));
                Ok(Parts::to_come(engine.micro_batches, inbox))
            },
        )?;
        let slots: Vec<_> = (states.iter())
            .map(|state| Arc::new(Mutex::new(Some(state.clone()))))
            .collect();
        let tasks = self.with_updates(tasks, &slots, &update);
        let tasks = feed.go_on(&mut batches).map(|()| tasks);
        let result = step::run(&engine, &schedule, tasks, |action| {
            feed.after(action);
            feed.go_on(&mut batches)
        })?;
        let Feed { sizes, weights, .. } = feed;
        self.agree_on_window(&result.reports, (&sizes, &weights))?;
        let per = engine.micro_batches;
        let of = |mini_batch: usize| mini_batch * per..(mini_batch + 1) * per;
        let sums = (0..updates).map(|own| sum_losses(&result.reports, of(own)));
        let sums: Vec<(f64, f64)> = sums.collect();
        let window = Window {
            losses: sums
                .iter()
                .map(|(auxiliary, main)| auxiliary + main)
                .collect(),
            auxiliary_losses: sums.iter().map(|(auxiliary, _)| *auxiliary).collect(),
            scores: (0..updates)
                .map(|own| sum_scores(&result.reports, of(own)))
                .collect(),
            held: result.reports.iter().map(|stage| stage.held).collect(),
            timeline: result.timeline,
            weights,
            micro_batches: sizes,
        };
        // Nothing can fail from here on.
        for (state, slot) in states.iter_mut().zip(slots) {
            let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
            *state = slot.take().unwrap_or_else(|| state.clone());
        }
        self.commit_window(result.stages, &window.micro_batches);
        Ok(window)
    }

    /// For each stage, by how many updates its gradients are late in a long window: see
    /// [`Schedule::staleness`](stovepipe_schedule::Schedule::staleness). 0 unless the schedule is asynchronous.
    ///
    /// ```
    /// # use burn::tensor::Device;
    /// # use stovepipe_pipeline::{Pipeline, doc_example::Dense};
    /// use stovepipe_schedule::PipeDream;
    ///
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 3, 3, 3]))
    ///     .devices(vec![Device::flex(); 3])
    ///     .schedule(PipeDream::default())
    ///     .micro_batches(1)
    ///     .build()?;
    /// assert_eq!(pipeline.staleness()?, [2, 1, 0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no such schedule.
    pub fn staleness(&self) -> Result<Vec<usize>, StepError> {
        let engine = &self.engine;
        if !self.is_asynchronous() {
            return Ok(vec![0; engine.stages.len()]);
        }
        // After an update for each worker, gradients are as late as they get.
        let micro_batches = engine
            .micro_batches
            .saturating_mul(1 + engine.devices.len());
        let scheduler = &engine.schedules.scheduler;
        let schedule = scheduler.schedule(engine.stages.len(), micro_batches)?;
        Ok(schedule.staleness(engine.weight_policy)?)
    }

    fn prepare_window(&self, updates: usize, states: usize) -> Result<Training, StepError> {
        let (engine, stages) = (&self.engine, self.engine.stages.len());
        if states != stages {
            return Err(StepError::WrongStates { states, stages });
        }
        if self.layers().is_empty() {
            return Err(StepError::LayersLost);
        }
        let refused = match () {
            () if updates == 0 => Some(WindowError::Empty),
            () if engine.precision == Precision::F16 => Some(WindowError::F16),
            () if engine.has_ties => Some(WindowError::SharedParameters),
            () if engine.shared.is_some() => Some(WindowError::UnlikeReplicas),
            () if engine.weight_policy == WeightPolicy::Newest
                && engine.schedules.recompute != Recompute::Always =>
            {
                Some(WindowError::KeptActivations)
            }
            () => None,
        };
        if let Some(refused) = refused {
            return Err(refused.into());
        }
        let recompute = &engine.schedules.recompute;
        unkeyed::check(self.layers(), engine.unkeyed_policy, recompute)?;
        let size = (updates, engine.micro_batches);
        let schedule = engine.schedules.of_window(size, engine.weight_policy)?;
        Ok(Training {
            sums: None,
            schedule: schedule.into(),
            trainable_from: self.trainable_from(),
            momenta: engine.momenta.clone(),
            only_counts: false,
            checks_finite: engine.check_finite,
            inspect: false,
            loss_scale: None,
        })
    }

    /// Gives each task the updates of its seat.
    fn with_updates<S: Send + 'static>(
        &self,
        mut tasks: Vec<StageTask<L>>,
        slots: &[Arc<Mutex<Option<S>>>],
        update: &(
             impl Fn(usize, Vec<L>, GradientsParams, S, usize) -> (Vec<L>, S) + Clone + Send + 'static
         ),
    ) -> Vec<StageTask<L>> {
        for (stage, slot) in slots.iter().enumerate() {
            let mut own: Vec<_> = tasks
                .iter_mut()
                .filter(|task| task.seat.stage == stage)
                .collect();
            own.sort_by_key(|task| task.seat.replica);
            let (slot, update) = (slot.clone(), update.clone());
            let change: Change<L> = Box::new(move |layers, mut gradients, number| {
                let mut sum = GradientsParams::new();
                for (layer, own) in layers.iter().zip(&mut gradients) {
                    move_gradients(layer, own, &mut sum);
                }
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                // It is empty only after a panic in an earlier update, which has ended the window.
                let Some(state) = slot.take() else {
                    return layers;
                };
                let (layers, state) = update(stage, layers, sum, state, number);
                *slot = Some(state);
                layers
            });
            let updates = StageUpdates::of_seats(change, own.len());
            (own.into_iter().zip(updates)).for_each(|(task, own)| task.updates = Some(own));
        }
        tasks
    }

    /// Checks that all went well, with the same mini-batches everywhere.
    fn agree_on_window(
        &self,
        reports: &[StageReport],
        (sizes, weights): (&[Vec<usize>], &[f64]),
    ) -> Result<(), StepError> {
        let what = self.not_finite_in_window(reports);
        let what = what.filter(|_| self.engine.check_finite);
        let own = match what {
            None => Ok(()),
            Some(what) => Err(StepError::NotFinite { what, place: None }),
        };
        self.engine.processes.meet(own, |()| {
            let term = |name: &str, value: String| (name.to_owned(), value);
            vec![
                term("the samples of each micro-batch", format!("{sizes:?}")),
                term("the weight of each mini-batch", format!("{weights:?}")),
            ]
        })
    }

    fn not_finite_in_window(&self, reports: &[StageReport]) -> Option<String> {
        let losses = reports
            .iter()
            .flat_map(|own| own.losses.iter().chain(&own.auxiliary));
        let wrong = losses
            .filter(|(_, loss)| !loss.is_finite())
            .map(|(index, _)| *index);
        if let Some(micro_batch) = wrong.min() {
            let mini_batch = micro_batch / self.engine.micro_batches;
            return Some(format!("loss of mini-batch {mini_batch} of the window"));
        }
        let stages = reports.iter().zip(&self.engine.stages);
        let wrong = stages.filter_map(|(stage, placement)| {
            let (mini_batch, layer) = stage.not_finite?;
            let what = placement.of_layer("gradient", layer);
            Some((
                mini_batch,
                format!("{what} in mini-batch {mini_batch} of the window"),
            ))
        });
        wrong
            .min_by_key(|(mini_batch, _)| *mini_batch)
            .map(|(_, what)| what)
    }

    fn commit_window(&mut self, results: Vec<StageResult<L>>, sizes: &[Vec<usize>]) {
        let engine = self.engine.clone();
        let (mut layers, mut statistics) = (self.take_layers(), Vec::new());
        for stage in results {
            let range = engine.stages[stage.seat.stage].layers.clone();
            statistics.extend(range.clone().zip(stage.statistics));
            if let Some(own) = stage.layers {
                layers.splice(range, own);
            }
        }
        let mut momenta = (engine.momenta.lock()).unwrap_or_else(PoisonError::into_inner);
        for (layer, statistics) in statistics {
            statistics.commit_each(&layers[layer], &mut momenta, sizes);
        }
        drop(momenta);
        self.set_layers(layers);
        engine.steps.fetch_add(sizes.len() as u64, Ordering::AcqRel);
    }
}

/// Gives seats their parts of mini-batches, a few ahead.
struct Feed<'a, L: Layer, O> {
    pipeline: &'a Pipeline<L>,
    objective: &'a O,
    schedule: &'a StepSchedule,
    updates: usize,
    /// The last mini-batch of which a forward pass has ended here.
    front: usize,
    seats: Vec<(Seat, StagePlacement, Outbox<Part<L>>)>,
    /// Of the micro-batches of each mini-batch so far.
    sizes: Vec<Vec<usize>>,
    weights: Vec<f64>,
}

impl<L: Layer, O> Feed<'_, L, O> {
    fn after(&mut self, action: Action) {
        if action.pass == Pass::Forward {
            let mini_batch = action.micro_batch / self.pipeline.engine.micro_batches;
            self.front = self.front.max(mini_batch);
        }
    }

    /// Takes the mini-batches that may be needed soon.
    fn go_on<T: Flow, B: Into<Batch<L::Input, T, L::Side>>>(
        &mut self,
        batches: &mut impl Iterator<Item = B>,
    ) -> Result<(), StepError>
    where
        O: Objective<L::Output, T>,
    {
        while self.sizes.len() < self.updates.min(self.front + 1 + AHEAD) {
            let batch = batches.next().ok_or(WindowError::Ended {
                found: self.sizes.len(),
                expected: self.updates,
            })?;
            self.give(batch.into())?;
        }
        Ok(())
    }

    fn give<T: Flow>(&mut self, batch: Batch<L::Input, T, L::Side>) -> Result<(), StepError>
    where
        O: Objective<L::Output, T>,
    {
        let (number, micro_batches) = (self.sizes.len(), self.pipeline.engine.micro_batches);
        let SplitBatch {
            sizes,
            inputs,
            targets,
            weight,
        } = SplitBatch::<L, T>::new(batch, micro_batches, self.objective)?;
        if sizes.len() != micro_batches {
            return Err(WindowError::FewSamples {
                samples: sizes.iter().sum(),
                micro_batches,
            }
            .into());
        }
        let key = self.pipeline.step_key(number as u64);
        let mut parted = Parted::new(inputs, &sizes, Some(key))?;
        for (seat, stage, outbox) in &self.seats {
            let outputs = OutputUse {
                loss: Some(loss_on::<L, T>(stage, self.objective, &targets, weight)?),
                keep_outputs: false,
            };
            let first = number * micro_batches;
            let turns = &self.schedule.turns;
            let part = parted.of((*seat, stage), (turns, first), outputs)?;
            let _ = outbox.send((number, part));
        }
        self.sizes.push(sizes);
        self.weights.push(weight);
        Ok(())
    }
}
