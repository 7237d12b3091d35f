//! Changes of all stages at once, for optimizers.

use std::collections::HashMap;

use burn::{
    module::{ModuleMapper, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::{Device, ExecutionError, Tensor},
};
use crossbeam_channel::unbounded;

use crate::{
    api::{
        error::{BoxedError, StepError},
        pipeline::Pipeline,
    },
    engine::{core::Engine, values::wait_for, worker},
    model::{layer::Layer, parameters::move_gradients},
};

/// The layers and the state of a stage after a change.
type Changed<L, S> = (Vec<L>, S);

impl<L: Layer> Pipeline<L> {
    /// Runs `change` on the layers of all stages at once, each on its own worker, with one state per stage:
    /// optimizers update in parallel this way. Layers are moved, not cloned, so they can change in place.
    /// Stages of other processes change there; their states are returned as they are.
    ///
    /// # Errors
    ///
    /// If there is not one state per stage, or a worker is stuck in an earlier step; or if `change` fails,
    /// panics, returns another number of layers, or takes longer than the
    /// [limit](crate::PipelineBuilder::stall_timeout). In the latter cases the layers are dropped and the
    /// pipeline cannot be used again: keep a clone if that may happen.
    pub fn change_stages<S: Send + 'static>(
        &mut self,
        states: Vec<S>,
        change: impl Fn(usize, Vec<L>, S) -> Result<(Vec<L>, S), BoxedError> + Clone + Send + 'static,
    ) -> Result<Vec<S>, StepError> {
        let engine = self.engine.clone();
        let stages = engine.stages.len();
        if states.len() != stages {
            let states = states.len();
            return Err(StepError::WrongStates { states, stages });
        }
        let _turn = engine.processes.meet(engine.take_turn(), |_| {
            vec![("the call".to_owned(), "change_stages".to_owned())]
        })?;
        let mut rest = self.take_layers().into_iter();
        let of_stages = engine.stages.iter().zip(states);
        let of_stages = of_stages.map(|(stage, state)| {
            let layers: Vec<L> = rest.by_ref().take(stage.layers.len()).collect();
            (layers, state)
        });
        let of_stages = of_stages.collect();
        let changed = on_workers(&engine, of_stages, move |stage, (layers, state)| {
            change(stage, layers, state)
        });
        let changed = changed
            .into_iter()
            .enumerate()
            .map(|(stage, outcome)| match outcome {
                Outcome::Elsewhere(kept) => Ok(kept),
                Outcome::Here(changed) => check(&engine, stage, changed),
            });
        let changed = changed.collect::<Result<Vec<_>, _>>();
        let changed = engine.processes.meet(changed, |_| Vec::new())?;
        let (layers, states): (Vec<_>, _) = changed.into_iter().unzip();
        self.set_layers(layers.into_iter().flatten().collect());
        Ok(states)
    }

    /// Runs `read` on the layers of all stages of this process at once, each on its own worker, with one
    /// argument per stage. Returns `None` for stages of other processes.
    ///
    /// ```
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::{Pipeline, count_parameters};
    ///
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 4, 2]))
    ///     .devices([Device::flex(), Device::flex()])
    ///     .build()?;
    /// let count = |layers: &[Dense], factor| Ok(factor * count_parameters(&layers.to_vec()));
    /// assert_eq!(pipeline.read_stages(vec![1, 10], count)?, [Some(16), Some(100)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is not one argument per stage, or a worker is stuck in an earlier step; or if `read` fails,
    /// panics, or takes longer than the [limit](crate::PipelineBuilder::stall_timeout).
    pub fn read_stages<A: Send + 'static, R: Send + 'static>(
        &self,
        arguments: Vec<A>,
        read: impl Fn(&[L], A) -> Result<R, BoxedError> + Clone + Send + 'static,
    ) -> Result<Vec<Option<R>>, StepError> {
        let engine = &self.engine;
        let stages = engine.stages.len();
        if arguments.len() != stages {
            let states = arguments.len();
            return Err(StepError::WrongStates { states, stages });
        }
        let _turn = engine.take_turn()?;
        let layers = self.stage_layers().map(<[L]>::to_vec);
        let of_stages = layers.zip(arguments).collect();
        let found = on_workers(
            engine,
            of_stages,
            move |_, (layers, argument): (Vec<L>, A)| read(&layers, argument),
        );
        let found = found
            .into_iter()
            .enumerate()
            .map(|(stage, outcome)| match outcome {
                Outcome::Elsewhere(_) => Ok(None),
                Outcome::Here(Some(Ok(found))) => Ok(Some(found)),
                Outcome::Here(failed) => Err(StepError::Device {
                    stage,
                    device: engine.stages[stage].device_name.clone(),
                    source: reason(engine, failed.and_then(Result::err)),
                }),
            });
        found.collect()
    }

    /// Copies all parameters on GPUs into memory of their stage's worker, after another thread has computed or loaded
    /// them: a kernel that reads another thread's memory waits for it, each time. [`build`](crate::PipelineBuilder::build)
    /// does the same.
    ///
    /// ```
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use burn::{module::Module, tensor::Device};
    /// use stovepipe_pipeline::Pipeline;
    ///
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 4, 2]));
    /// let pipeline = pipeline.devices([Device::flex(), Device::flex()]).build()?;
    /// let record = pipeline.clone().into_record();
    /// let mut pipeline = pipeline.load_record(record);
    /// pipeline.move_to_workers()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`change_stages`](Self::change_stages).
    pub fn move_to_workers(&mut self) -> Result<(), StepError> {
        let devices = &self.engine.devices;
        if devices.iter().all(|device| device.kind() == "cpu") {
            return Ok(());
        }
        let stages = vec![(); self.stages().len()];
        let copy = |_, layers: Vec<L>, ()| {
            let copied = layers.into_iter().map(|layer| layer.map(&mut Copied));
            Ok((copied.collect(), ()))
        };
        self.change_stages(stages, copy).map(drop)
    }

    /// Waits until the devices of this process have the newest parameters. An update only launches work on a GPU; to
    /// read parameters without this has no time limit.
    ///
    /// ```
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use burn::tensor::Device;
    /// use stovepipe_pipeline::Pipeline;
    ///
    /// let pipeline = Pipeline::builder(Dense::layers(&[3, 4, 2]))
    ///     .devices([Device::flex(), Device::flex()])
    ///     .build()?;
    /// pipeline.sync()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a worker is stuck in an earlier step, a device fails, or takes longer than the
    /// [limit](crate::PipelineBuilder::stall_timeout).
    pub fn sync(&self) -> Result<(), StepError> {
        let stages = vec![(); self.stages().len()];
        let wait = |layers: &[L], ()| {
            // Those of a stage are updated one after the other.
            let mut last = Last::default();
            layers.iter().for_each(|layer| layer.visit(&mut last));
            Ok(last.wait.map_or(Ok(()), |wait| wait())?)
        };
        self.read_stages(stages, wait).map(drop)
    }

    /// Splits gradients into one container per stage.
    #[must_use]
    pub fn split_gradients(&self, mut gradients: GradientsParams) -> Vec<GradientsParams> {
        let of_stage = |layers: &[L]| {
            let mut own = GradientsParams::new();
            (layers.iter()).for_each(|layer| move_gradients(layer, &mut gradients, &mut own));
            own
        };
        self.stage_layers().map(of_stage).collect()
    }
}

/// Waits for the last parameter that is trained, or for the last one.
#[derive(Default)]
struct Last {
    wait: Option<Box<dyn FnOnce() -> Result<(), ExecutionError>>>,
    is_trained: bool,
}

impl ModuleVisitor for Last {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let is_trained = param.is_require_grad();
        if param.shape().num_elements() > 0 && (is_trained || !self.is_trained) {
            let param = param.clone();
            self.is_trained = is_trained;
            self.wait = Some(Box::new(move || wait_for(param.val().detach())));
        }
    }
}

/// Copies the parameters on GPUs to this thread's memory there, by way of the host.
struct Copied;

impl ModuleMapper for Copied {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|value| {
            let (is_tracked, trains) = (value.is_autodiff(), value.is_require_grad());
            let device = value.device().inner();
            let host = Device::flex();
            if device == host {
                return value;
            }
            let copy = value.inner().to_device(&host).to_device(&device);
            match is_tracked {
                true => copy.autodiff().set_require_grad(trains),
                false => copy,
            }
        })
    }
}

/// What became of a stage's argument.
enum Outcome<A, R> {
    /// Another process has the stage.
    Elsewhere(A),
    /// `None` if the worker hangs or has ended.
    Here(Option<Result<R, BoxedError>>),
}

/// Runs `work` for each stage of this process, each on its own worker.
fn on_workers<A: Send + 'static, R: Send + 'static>(
    engine: &Engine,
    arguments: Vec<A>,
    work: impl Fn(usize, A) -> Result<R, BoxedError> + Clone + Send + 'static,
) -> Vec<Outcome<A, R>> {
    let (results, inbox) = unbounded();
    let mut elsewhere = HashMap::new();
    let workers: HashMap<_, _> = engine
        .processes
        .own_workers()
        .zip(&engine.workers)
        .collect();
    let stages = arguments.len();
    for (stage, argument) in arguments.into_iter().enumerate() {
        let home = engine.home(stage);
        let Some(worker) = home.and_then(|seat| workers.get(&seat.worker)) else {
            elsewhere.insert(stage, argument);
            continue;
        };
        let (work, results) = (work.clone(), results.clone());
        worker::run_for(
            worker,
            engine.stages[stage].device.clone(),
            move || work(stage, argument),
            move |found| {
                let _ = results.send((stage, found));
            },
        );
    }
    worker::settle(&engine.workers, engine.stall_timeout);
    let mut found: HashMap<_, _> = inbox.try_iter().collect();
    let outcome = |stage| match elsewhere.remove(&stage) {
        Some(argument) => Outcome::Elsewhere(argument),
        None => Outcome::Here(found.remove(&stage)),
    };
    (0..stages).map(outcome).collect()
}

/// The result of a change, if all layers were returned.
fn check<L, S>(
    engine: &Engine,
    stage: usize,
    changed: Option<Result<Changed<L, S>, BoxedError>>,
) -> Result<Changed<L, S>, StepError> {
    let expected = engine.stages[stage].layers.len();
    let source = match changed {
        Some(Ok(changed)) if changed.0.len() == expected => return Ok(changed),
        Some(Ok((own, _))) => {
            Some(format!("{} of {expected} layers were returned", own.len()).into())
        }
        Some(Err(source)) => Some(source),
        None => None,
    };
    Err(StepError::ChangeFailed {
        stage,
        device: engine.stages[stage].device_name.clone(),
        source: reason(engine, source),
    })
}

/// Without an error, the worker hangs or has ended.
fn reason(engine: &Engine, error: Option<BoxedError>) -> BoxedError {
    error.unwrap_or_else(|| match engine.stall_timeout {
        Some(limit) => format!("no answer for {:.1} s", limit.as_secs_f64()).into(),
        None => "its worker has ended".into(),
    })
}
