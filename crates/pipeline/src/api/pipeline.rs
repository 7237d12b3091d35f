//! The pipeline: its layers, its stages, and its state.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, OnceLock, atomic::Ordering},
};

use burn::tensor::Device;
use serde::{Serialize, de::DeserializeOwned};
use stovepipe_comm::{Communicator, ProcessError, Terms};
use stovepipe_runtime::StopHandle;

use crate::{
    api::{
        batch::even_parts,
        error::{StepError, WindowError},
        precision::{LossScaler, Precision},
    },
    engine::{core::Engine, stage::StagePlacement},
    model::{layer::Layer, parameters::count_parameters, unkeyed::Unkeyed},
};

/// A Burn module whose layers run in stages, on workers with a thread and a device each.
///
/// It holds a flat list of layers. Records, optimizers and displays do not see stages, so a model
/// saved with one number of stages loads with any other. Clones share the workers.
///
/// Layers may share parameters, such as an embedding and an output layer. The first layer that has one
/// owns it: its value counts, and its gradient is the sum over all. If layers of several processes share a
/// parameter, the others get the owner's value when stages run next; until then they show that of the
/// last run. So save or read it in the first layer.
///
/// ```
/// use burn::{optim::SgdConfig, tensor::{Device, Int, Tensor}};
/// # use stovepipe_pipeline::doc_example::Dense;
/// use stovepipe_pipeline::{CrossEntropy, Pipeline};
///
/// let device = Device::flex();
/// let mut pipeline = Pipeline::builder(Dense::layers(&[4, 8, 8, 3]))
///     .devices([device.clone(), device.clone()])
///     .micro_batches(2)
///     .build()?;
///
/// let images = Tensor::ones([6, 4], &device);
/// let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 0, 1, 2], &device);
/// let step = pipeline.train_step((images, targets), &CrossEntropy::new())?;
///
/// let mut optimizer = SgdConfig::new().init();
/// pipeline = optimizer.step(0.1, pipeline, step.gradients);
/// # let _ = pipeline;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pipeline<L: Layer> {
    layers: Vec<L>,
    /// The layers with the values of parameters that other processes own, once there was a run.
    tied: OnceLock<Vec<L>>,
    pub(crate) engine: Arc<Engine>,
}

/// A stage: consecutive layers on one device.
#[derive(Clone, Debug)]
pub struct Stage {
    /// The indices of its layers in the model.
    pub layers: Range<usize>,
    /// The worker that runs it; the first one, if it has replicas.
    pub worker: usize,
    /// Its workers, which share its micro-batches.
    pub replicas: Vec<usize>,
    /// The name of each of these workers' device, in pictures and errors.
    pub devices: Vec<String>,
    /// The process that has the worker: its rank, or 0.
    pub process: usize,
    /// The process of each of these workers.
    pub processes: Vec<usize>,
    /// The device that has the layers in this process; the worker's device if it has none.
    pub device: Device,
    /// The name of the device in pictures and errors.
    pub device_name: String,
    /// The number of its parameters, without running statistics.
    pub parameters: usize,
}

impl<L: Layer> Pipeline<L> {
    pub(crate) fn new(layers: Vec<L>, engine: Engine) -> Self {
        Self {
            layers,
            tied: OnceLock::new(),
            engine: Arc::new(engine),
        }
    }

    /// The layers, which are moved so that an optimizer can change them in place.
    pub(crate) fn take_layers(&mut self) -> Vec<L> {
        let layers = std::mem::take(&mut self.layers);
        let tied = std::mem::take(&mut self.tied);
        tied.into_inner().unwrap_or(layers)
    }

    /// Replaces the layers that were taken. The places of a parameter within this process are made equal.
    pub(crate) fn set_layers(&mut self, layers: Vec<L>) {
        self.layers = self.engine.ties.tie(layers);
    }

    /// Waits for all processes before a run, as [`Processes::meet_and_tell`]. If layers have changed,
    /// parameters that processes share are made equal.
    pub(crate) fn meet<T, K, E: From<ProcessError> + ToString>(
        &self,
        own: Result<T, E>,
        terms: impl FnOnce(&T) -> (Terms, K),
    ) -> Result<(T, Vec<K>), E>
    where
        K: Serialize + DeserializeOwned,
    {
        let processes = &self.engine.processes;
        let Some(shared) = &self.engine.shared else {
            return processes.meet_and_tell(own, terms);
        };
        let have_changed = self.tied.get().is_none() && !self.layers.is_empty();
        let own = own.and_then(|own| {
            if have_changed {
                shared.send_values(&self.layers)?;
            }
            Ok(own)
        });
        let met = processes.meet_and_tell(own, |own| {
            let (mut terms, told) = terms(own);
            let what = "whether layers have changed since the last run";
            terms.push((what.to_owned(), have_changed.to_string()));
            (terms, told)
        })?;
        if have_changed {
            let tied = shared.with_values(self.layers.clone());
            let tied = processes.meet(tied, |_| Vec::new())?;
            let _ = self.tied.set(self.engine.ties.tie(tied));
        }
        Ok(met)
    }

    /// Makes parameters that layers of several processes share equal, as the next run would. All processes
    /// call it. Without such parameters, it does nothing.
    ///
    /// # Errors
    ///
    /// If another process has failed.
    pub fn share_parameters(&self) -> Result<(), StepError> {
        if self.engine.shared.is_none() {
            return Ok(());
        }
        let call = ("the call".to_owned(), "share_parameters".to_owned());
        let met = self.meet(Ok::<_, StepError>(()), |()| (vec![call], ()));
        met.map(drop)
    }

    /// The same pipeline with this process's layers changed, for Burn's module mapping. Layers are moved, so
    /// an optimizer can change them in place.
    pub(crate) fn with_layers(mut self, mut change: impl FnMut(usize, L) -> L) -> Self {
        let layers = self.take_layers().into_iter().enumerate();
        let changed = layers.map(|(index, layer)| match self.engine.is_own_layer(index) {
            true => change(index, layer),
            false => layer,
        });
        let changed = changed.collect();
        self.set_layers(changed);
        self
    }

    /// What all processes must have the same of.
    pub(crate) fn terms(&self) -> Terms {
        let engine = &self.engine;
        let names: Vec<_> = self.layers().iter().map(Layer::name).collect();
        let cut: Vec<_> = engine
            .stages
            .iter()
            .map(|stage| stage.layers.len())
            .collect();
        let term = |name: &str, value: String| (name.to_owned(), value);
        vec![
            term(
                "the version of Stovepipe",
                env!("CARGO_PKG_VERSION").to_owned(),
            ),
            term("the model", names.join(", ")),
            term(
                "the number of parameters",
                count_parameters(&self.layers).to_string(),
            ),
            term(
                "the places of shared parameters",
                engine.tied_places.clone(),
            ),
            term("the cut", format!("{cut:?}")),
            term("the schedule", format!("{:?}", engine.schedules.scheduler)),
            term("recomputation", format!("{:?}", engine.schedules.recompute)),
            term("the process of each worker", engine.processes.to_string()),
            term(
                "the number of micro-batches",
                engine.micro_batches.to_string(),
            ),
            term("the size of a bucket", engine.reducers.bucket().to_string()),
            term(
                "the policy of weights",
                format!("{:?}", engine.weight_policy),
            ),
            term("the all-reduce", format!("{:?}", engine.all_reduce)),
            term("the seed", engine.seed.to_string()),
            term("the precision", engine.precision.to_string()),
            term(
                "whether losses are checked",
                engine.check_finite.to_string(),
            ),
        ]
    }

    /// What connects the processes that the pipeline lies in, if it was given one.
    #[must_use]
    pub fn communicator(&self) -> Option<&Arc<Communicator>> {
        self.engine.processes.comm()
    }

    /// The layers, in order. Those of other processes have no values here.
    #[must_use]
    pub fn layers(&self) -> &[L] {
        self.tied.get().unwrap_or(&self.layers)
    }

    /// The layers, in order, each on its stage's device.
    #[must_use]
    pub fn into_layers(mut self) -> Vec<L> {
        self.take_layers()
    }

    /// The stages, in order.
    #[must_use]
    pub fn stages(&self) -> Vec<Stage> {
        (self.engine.stages.iter().zip(self.engine.seats().owners()))
            .map(|(stage, seat)| Stage {
                layers: stage.layers.clone(),
                worker: seat.worker,
                replicas: self.replicas(seat.stage).collect(),
                devices: (self.replicas(seat.stage))
                    .map(|worker| self.engine.devices[worker].name.clone())
                    .collect(),
                process: self.engine.processes.of(seat.worker),
                processes: (self.replicas(seat.stage))
                    .map(|worker| self.engine.processes.of(worker))
                    .collect(),
                device: stage.device.clone(),
                device_name: stage.device_name.clone(),
                parameters: self.layers_of(stage).iter().map(count_parameters).sum(),
            })
            .collect()
    }

    fn replicas(&self, stage: usize) -> impl Iterator<Item = usize> {
        let seats = self.engine.seats().of_stage(stage);
        seats.iter().map(|seat| seat.worker)
    }

    /// The layers of each stage, in order.
    pub fn stage_layers(&self) -> impl Iterator<Item = &[L]> {
        (self.engine.stages.iter()).map(|stage| self.layers_of(stage))
    }

    /// The layers of this process's stages, in order.
    pub(crate) fn own_layers(&self) -> impl Iterator<Item = &L> {
        let stages = self.engine.stages.iter().enumerate();
        let own = stages.filter(|(stage, _)| self.engine.home(*stage).is_some());
        own.flat_map(|(_, stage)| self.layers_of(stage))
    }

    /// The layers of a stage; none if a failed change dropped them.
    pub(crate) fn layers_of(&self, stage: &StagePlacement) -> &[L] {
        self.layers().get(stage.layers.clone()).unwrap_or_default()
    }

    /// The number of successful training steps, or the one that was [set](Self::set_steps). Random
    /// numbers of a step depend on it.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.engine.steps.load(Ordering::Acquire)
    }

    /// Sets the number of training steps, to resume a training. Clones share it.
    pub fn set_steps(&self, steps: u64) {
        self.engine.steps.store(steps, Ordering::Release);
    }

    /// The finished share of the training, as [set](Self::set_progress); 1 before that.
    #[must_use]
    pub fn progress(&self) -> f64 {
        f64::from_bits(self.engine.training_progress.load(Ordering::Acquire))
    }

    /// Sets the finished share of the training, from 0 to 1. Layers can depend on it, as drop-path
    /// does ([`nn::DropPath::growing`](crate::nn::DropPath::growing)).
    pub fn set_progress(&self, share: f64) {
        let share = share.clamp(0.0, 1.0).to_bits();
        (self.engine.training_progress).store(share, Ordering::Release);
    }

    /// Has training steps sum the bits of what each layer computes for each micro-batch
    /// ([`Step::passes`](crate::Step::passes)), or not. Two trainings that should be the same part where the first sum
    /// differs. It reads all activations and gradients once more. [Windows](Self::train_window) have none.
    ///
    /// ```
    /// use burn::tensor::{Device, Int, Tensor};
    /// use stovepipe_pipeline::{CrossEntropy, Pipeline, Recompute, doc_example::Dense};
    ///
    /// let (layers, device) = (Dense::layers(&[3, 4, 2]), Device::flex());
    /// let sums_in = |stages: usize| {
    ///     let pipeline = Pipeline::builder(layers.clone())
    ///         .devices(vec![device.clone(); stages])
    ///         .micro_batches(2)
    ///         .recompute(Recompute::Never)
    ///         .build()?;
    ///     pipeline.set_pass_sums(true);
    ///     let batch = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
    ///     Ok::<_, Box<dyn std::error::Error>>(pipeline.train_step(batch, &CrossEntropy::new())?.passes)
    /// };
    /// let sums = sums_in(1)?;
    /// assert_eq!(sums, sums_in(2)?); // bit by bit
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_pass_sums(&self, on: bool) {
        self.engine.sums_passes.store(on, Ordering::Release);
    }

    /// The type that stages compute in.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.engine.precision
    }

    /// A copy of the scaler of the loss, in f16.
    #[must_use]
    pub fn loss_scaler(&self) -> Option<LossScaler> {
        self.engine.loss_scaler().as_deref().copied()
    }

    /// Sets the scaler of the loss, to resume a training; no effect except in f16. Clones share it.
    pub fn set_loss_scaler(&self, scaler: LossScaler) {
        if let Some(mut own) = self.engine.loss_scaler() {
            *own = scaler;
        }
    }

    /// The handle that stops this pipeline's steps.
    #[must_use]
    pub fn stop_handle(&self) -> StopHandle {
        self.engine.stop.clone()
    }

    /// Layers that draw random numbers outside of a [`KeyedRng`](crate::KeyedRng), which the builder
    /// [allowed](crate::PipelineBuilder::allow_unkeyed). If there are any, training does not give the same
    /// bits for other stages, schedules or runs. Print them as warnings.
    #[must_use]
    pub fn unkeyed(&self) -> &[Unkeyed] {
        &self.engine.unkeyed
    }

    /// Whether the schedule changes weights before its end, so that it trains
    /// [windows](Self::train_window).
    #[must_use]
    pub fn is_asynchronous(&self) -> bool {
        self.engine.is_asynchronous
    }

    /// Checks that there is a schedule for a mini-batch of `samples` samples. A fixed schedule has one
    /// number of micro-batches only.
    ///
    /// # Errors
    ///
    /// If there is none, or there are no samples.
    pub fn check_batch(&self, samples: usize) -> Result<(), StepError> {
        let most = self.engine.micro_batches;
        match even_parts(samples, most).len() {
            0 => Err(StepError::EmptyBatch),
            micro_batches if micro_batches < most && self.is_asynchronous() => {
                Err(WindowError::FewSamples {
                    samples,
                    micro_batches: most,
                }
                .into())
            }
            _ if self.is_asynchronous() => {
                let policy = self.engine.weight_policy;
                self.engine.schedules.of_window((1, most), policy).map(drop)
            }
            micro_batches => self.engine.schedules.of(micro_batches).map(|_| ()),
        }
    }
}

impl<L: Layer> fmt::Debug for Pipeline<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("layers", &self.layers())
            .field("stages", &self.engine.stages)
            .field("scheduler", &self.engine.schedules.scheduler)
            .field("micro_batches", &self.engine.micro_batches)
            .field("recompute", &self.engine.schedules.recompute)
            .finish_non_exhaustive()
    }
}
