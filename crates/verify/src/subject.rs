//! The model under test, and how it is run.

use std::ops::Range;

use burn::{
    module::{Module, ModuleVisitor},
    optim::{GradientsAccumulator, GradientsParams, SgdConfig},
    tensor::Device,
};
use stovepipe_comm::Terms;
use stovepipe_pipeline::{
    Batch, BuildError, Flow, Held, KeyedRng, Layer, LayerError, Objective, Pipeline,
    PipelineBuilder, Plain, Recompute, Step, StepError, flows::attach, run_plain,
};
use stovepipe_schedule::DataParallel;

use crate::{
    case::{Case, CaseError},
    fingerprint::Fingerprint,
    processes::Processes,
    snapshot::Snapshot,
    tested::{Tested, TrainingStep},
};

/// The learning rate between the two steps, large enough to change the second one.
pub(crate) const LEARNING_RATE: f64 = 0.05;

pub(crate) struct Subject<L: Layer, T, O> {
    /// Initialized, and shared with no pipeline.
    pub(crate) layers: Vec<L>,
    pub(crate) batch: Batch<L::Input, T, L::Side>,
    pub(crate) evaluation: (L::Input, L::Side),
    pub(crate) objective: O,
    /// Instead of the pipeline's own.
    pub(crate) training_step: Option<TrainingStep<L, T, O>>,
    /// The device of all stages, each in its process.
    pub(crate) device: Device,
    pub(crate) processes: Processes,
    pub(crate) seed: u64,
    pub(crate) allow_unkeyed: bool,
}

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// What all processes must have the same of.
    pub(crate) fn terms(&self) -> Terms {
        let fingerprint = |add: &dyn Fn(&mut Fingerprint)| {
            let mut fingerprint = Fingerprint::default();
            add(&mut fingerprint);
            fingerprint.finish()
        };
        let of_batch = fingerprint(&|all| {
            all.add(&self.batch.input);
            all.add(&self.batch.target);
            all.add(&self.batch.side);
            all.add(&self.evaluation.0);
            all.add(&self.evaluation.1);
        });
        let mut parameters = Snapshot::default();
        parameters.layers("", self.layers.iter().enumerate());
        let of_parameter = |(name, numbers): &(String, Vec<f32>)| {
            let numbers = fingerprint(&|all| all.add_numbers(numbers));
            (format!("the fingerprint of {name}"), numbers)
        };
        let mut terms: Terms = parameters.0.iter().map(of_parameter).collect();
        terms.push(("the fingerprint of the batch".to_owned(), of_batch));
        terms
    }

    pub(crate) fn build(&self, case: &Case) -> Result<Pipeline<L>, BuildError> {
        self.build_with(copies(&self.layers), case)
    }

    /// A pipeline of other layers.
    pub(crate) fn build_with(
        &self,
        layers: Vec<L>,
        case: &Case,
    ) -> Result<Pipeline<L>, BuildError> {
        self.build_in(&self.processes, layers, case)
    }

    fn build_in(
        &self,
        processes: &Processes,
        layers: Vec<L>,
        case: &Case,
    ) -> Result<Pipeline<L>, BuildError> {
        let workers = case.workers * case.replicas;
        let builder = Pipeline::builder(layers).devices(processes.devices(&self.device, workers));
        let builder = match case.replicas {
            1 => builder.schedule(case.rule),
            replicas => builder.schedule(DataParallel::equal(case.rule, replicas)),
        };
        let builder = self.with_settings(builder, case.micro_batches, case.recompute.clone());
        match processes.of_workers(workers) {
            Some(comm) => builder.communicator(comm.clone()).build(),
            None => builder.build(),
        }
    }

    pub(crate) fn with_settings(
        &self,
        builder: PipelineBuilder<L>,
        micro_batches: usize,
        recompute: Recompute,
    ) -> PipelineBuilder<L> {
        builder
            .micro_batches(micro_batches)
            .recompute(recompute)
            .seed(self.seed)
            .unkeyed_draws_nothing(self.allow_unkeyed)
    }

    /// The simplest case with a stage in each process.
    pub(crate) fn simplest(&self, micro_batches: usize) -> Case {
        Case::without_recompute(self.processes.size(), micro_batches)
    }

    pub(crate) fn samples(&self) -> usize {
        size(&self.batch.input)
    }

    pub(crate) fn train(&self, pipeline: &Pipeline<L>) -> Result<Step<L>, StepError> {
        self.train_with(pipeline, &Tested::new(self.objective.clone()))
    }

    pub(crate) fn train_with(
        &self,
        pipeline: &Pipeline<L>,
        objective: &Tested<O>,
    ) -> Result<Step<L>, StepError> {
        let batch = self.batch.clone().keep_outputs();
        match &self.training_step {
            Some(step) => step(pipeline, batch, objective),
            None => pipeline.train_step(batch, objective),
        }
    }

    pub(crate) fn evaluate(&self, pipeline: &Pipeline<L>) -> Result<L::Output, StepError> {
        pipeline.infer(self.evaluation.clone())
    }

    /// Trains, evaluates, and does both again. Also returns what each stage held in the last step.
    pub(crate) fn run(&self, case: &Case) -> Result<(Snapshot, Vec<Held>), CaseError> {
        self.run_pipeline(self.build(case)?, None)
    }

    /// The same in this process alone, which then has all layers.
    pub(crate) fn run_alone(&self, case: &Case) -> Result<Snapshot, CaseError> {
        let pipeline = self.build_alone(case)?;
        self.run_pipeline(pipeline, None)
            .map(|(results, _)| results)
    }

    /// The same with replicas, but for their first update: it is that of `alone`, the same stages without replicas.
    /// So the second step is taken at the same weights. It may be far more sensitive to them than sums are to
    /// their order.
    pub(crate) fn run_replicas(&self, case: &Case, alone: &Case) -> Result<Snapshot, CaseError> {
        // Trained again for each case: gradients cannot be copied.
        let first = || Ok(self.train(&self.build_alone(alone)?)?.gradients);
        let first = self.processes.agree(first())?;
        self.run_pipeline(self.build(case)?, Some(first))
            .map(|(results, _)| results)
    }

    fn build_alone(&self, case: &Case) -> Result<Pipeline<L>, BuildError> {
        self.build_in(&Processes::default(), copies(&self.layers), case)
    }

    /// The first update is by `first` if it is given, else by the pipeline's own gradients.
    fn run_pipeline(
        &self,
        mut pipeline: Pipeline<L>,
        mut first: Option<GradientsParams>,
    ) -> Result<(Snapshot, Vec<Held>), CaseError> {
        let mut optimizer = SgdConfig::new().init();
        let (mut snapshot, mut held) = (Snapshot::default(), Vec::new());
        for name in ["step 1", "step 2"] {
            let step = self.train(&pipeline)?;
            snapshot.step(name, &pipeline, &step);
            held = step.held;
            let gradients = first.take().unwrap_or(step.gradients);
            pipeline = optimizer.step(LEARNING_RATE, pipeline, gradients);
            let output = self.evaluate(&pipeline)?;
            snapshot.flow(&format!("evaluation after {name}"), &output);
        }
        snapshot.layers("in the end, ", own_layers(&pipeline));
        Ok((snapshot, held))
    }

    /// The loss and gradients that Burn computes alone, added up over micro-batches of these sizes.
    pub(crate) fn plain_step(&self, sizes: &[usize]) -> Result<Snapshot, CaseError> {
        let weight = self.objective.weight(&self.batch.target);
        let mut sum = GradientsAccumulator::new();
        let mut loss_sum = 0.0;
        self.plain_passes(sizes, |layers, plain, target, _| {
            let of_head = |output| self.objective.auxiliary_loss(output, target.clone());
            let heads: Vec<_> = plain.auxiliary.into_iter().map(of_head).collect();
            let loss = self.objective.loss(plain.output, target);
            let loss = heads.into_iter().fold(loss, |sum, loss| sum + loss) / weight;
            loss_sum += f64::from(loss.clone().into_scalar::<f32>());
            let mut gradients = loss.backward();
            // Layer by layer, since layers that share a parameter have a gradient each.
            for layer in &layers {
                sum.accumulate(layer, GradientsParams::from_module(&mut gradients, layer));
            }
        })?;
        let mut snapshot = Snapshot::default();
        let layers = self.layers.iter().enumerate();
        snapshot.loss_and_gradients("step 1", loss_sum, layers, &sum.grads());
        Ok(snapshot)
    }

    /// Runs micro-batches of these sizes forward with Burn alone, each through fresh copies of the layers.
    /// `each` gets the layers, their outputs, the target and the number of samples.
    pub(crate) fn plain_passes(
        &self,
        sizes: &[usize],
        mut each: impl FnMut(Vec<L>, Plain<L>, T, usize),
    ) -> Result<(), LayerError> {
        let Batch {
            input,
            target,
            side,
            ..
        } = self.batch.clone();
        let batches = (input, (target, side)).split(sizes);
        let mut first = 0;
        for ((input, (target, side)), &size) in batches.into_iter().zip(sizes) {
            let samples: Range<usize> = first..first + size;
            first += size;
            let rng = |layer| KeyedRng::new(self.seed, 0, layer, samples.clone());
            let layers = copies(&self.layers);
            let plain = run_plain(&layers, attach(input, false), &attach(side, false), rng)?;
            each(layers, plain, attach(target, false), size);
        }
        Ok(())
    }

    pub(crate) fn has_batch_statistics(&self) -> bool {
        struct Find(bool);

        impl ModuleVisitor for Find {
            fn enter_module(&mut self, _: &str, container: &str) {
                self.0 |= container == "Struct:BatchNorm";
            }
        }

        let mut find = Find(false);
        self.layers.visit(&mut find);
        find.0
    }
}

impl Snapshot {
    /// Adds the results of a training step, and the statistics after it.
    pub(crate) fn step<L: Layer>(&mut self, name: &str, pipeline: &Pipeline<L>, step: &Step<L>) {
        self.loss_and_gradients(name, step.loss, own_layers(pipeline), &step.gradients);
        if let Some(output) = &step.outputs {
            self.flow(&format!("output of {name}"), output);
        }
        self.layers(&format!("after {name}, "), own_layers(pipeline));
    }
}

/// Copies of layers that share nothing with them.
pub(crate) fn copies<L: Layer>(layers: &[L]) -> Vec<L> {
    let layers = layers.iter();
    layers.map(|layer| layer.valid().train()).collect()
}

/// The layers of a pipeline that this process has, with their indices.
pub(crate) fn own_layers<L: Layer>(pipeline: &Pipeline<L>) -> impl Iterator<Item = (usize, &L)> {
    let rank = pipeline.communicator().map_or(0, |comm| comm.rank());
    let stages = pipeline.stages().into_iter();
    let own = stages.filter(move |stage| stage.processes.contains(&rank));
    let own = own.flat_map(|stage| stage.layers);
    own.filter_map(|index| Some((index, pipeline.layers().get(index)?)))
}

pub(crate) fn size<F: Flow>(flow: &F) -> usize {
    let mut sizes = Vec::new();
    flow.batch_sizes(&mut sizes);
    sizes.first().copied().unwrap_or(0)
}

/// The sizes of micro-batches, which differ by at most one.
pub(crate) fn parts(samples: usize, micro_batches: usize) -> Vec<usize> {
    let parts = micro_batches.min(samples);
    let extra = |part| usize::from(part < samples % parts);
    let sizes = (0..parts).map(|part| samples / parts + extra(part));
    sizes.collect()
}
