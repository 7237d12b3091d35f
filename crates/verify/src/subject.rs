//! What is verified, and how it is run.

use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::{GradientsParams, SgdConfig},
    tensor::{Bool, Device, Int, Tensor},
};
use stovepipe_pipeline::{
    Batch, BuildError, Flow, FlowMapper, Held, KeyedRng, Layer, LayerError, Objective, Pipeline,
    Step, StepError, run_plain,
};

use crate::{case::Case, seen::Seen};

/// The learning rate between the two steps: large enough to be seen.
const LEARNING_RATE: f64 = 0.05;

/// What is verified.
pub(crate) struct Subject<L: Layer, T, O> {
    /// With values, and shared with nothing.
    pub(crate) layers: Vec<L>,
    pub(crate) batch: Batch<L::Input, T, L::Side>,
    pub(crate) evaluation: (L::Input, L::Side),
    pub(crate) objective: O,
    pub(crate) device: Device,
    pub(crate) seed: u64,
    pub(crate) allow_unkeyed: bool,
}

impl<L, T, O> Subject<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Copies of the layers that share nothing with them.
    pub(crate) fn copies(&self) -> Vec<L> {
        let layers = self.layers.iter();
        layers.map(|layer| layer.valid().train()).collect()
    }

    /// The same ready for evaluation.
    pub(crate) fn evaluating(&self) -> Vec<L> {
        self.layers.iter().map(Module::valid).collect()
    }

    pub(crate) fn build(&self, case: &Case) -> Result<Pipeline<L>, BuildError> {
        self.build_of(self.copies(), case)
    }

    /// The same of other layers.
    pub(crate) fn build_of(&self, layers: Vec<L>, case: &Case) -> Result<Pipeline<L>, BuildError> {
        Pipeline::builder(layers)
            .devices(vec![self.device.clone(); case.workers])
            .schedule(case.rule)
            .micro_batches(case.micro_batches)
            .recompute(case.recompute)
            .seed(self.seed)
            .unkeyed_draws_nothing(self.allow_unkeyed)
            .build()
    }

    pub(crate) fn samples(&self) -> usize {
        size(&self.batch.input)
    }

    pub(crate) fn train(&self, pipeline: &Pipeline<L>) -> Result<Step<L>, StepError> {
        pipeline.train_step(self.batch.clone().keep_outputs(), &self.objective)
    }

    pub(crate) fn evaluate(&self, pipeline: &Pipeline<L>) -> Result<L::Output, StepError> {
        let (input, side) = self.evaluation.clone();
        pipeline.infer((input, side))
    }

    /// What a training step shows: its loss, gradients and outputs, and the statistics that it left.
    pub(crate) fn see_step(
        &self,
        seen: &mut Seen,
        name: &str,
        pipeline: &Pipeline<L>,
        step: &Step<L>,
    ) {
        let of_layers = &pipeline.layers().to_vec();
        seen.number(format!("loss of {name}"), step.loss);
        if let Some(output) = &step.outputs {
            seen.flow(&format!("output of {name}"), output);
        }
        let prefix = format!("{name}, gradient of ");
        seen.gradients(&prefix, of_layers, &step.gradients);
        seen.module(&format!("after {name}, "), of_layers);
    }

    /// What the first training step shows.
    pub(crate) fn first_step(&self, case: &Case) -> Result<Seen, String> {
        let pipeline = self.build(case).map_err(|error| error.to_string())?;
        self.see_first_step(&pipeline)
    }

    pub(crate) fn see_first_step(&self, pipeline: &Pipeline<L>) -> Result<Seen, String> {
        let step = self.train(pipeline).map_err(|error| error.to_string())?;
        let mut seen = Seen::default();
        self.see_step(&mut seen, "step 1", pipeline, &step);
        Ok(seen)
    }

    /// Trains, evaluates, and both again.
    pub(crate) fn run(&self, case: &Case) -> Result<Ran, String> {
        let mut pipeline = self.build(case).map_err(|error| error.to_string())?;
        let failed = |error: StepError| error.to_string();
        let mut optimizer = SgdConfig::new().init();
        let (mut seen, mut held) = (Seen::default(), Vec::new());
        for name in ["step 1", "step 2"] {
            let step = self.train(&pipeline).map_err(failed)?;
            self.see_step(&mut seen, name, &pipeline, &step);
            held = step.held;
            pipeline = optimizer.step(LEARNING_RATE, pipeline, step.gradients);
            let output = self.evaluate(&pipeline).map_err(failed)?;
            seen.flow(&format!("evaluation after {name}"), &output);
        }
        seen.module("in the end, ", &pipeline.layers().to_vec());
        Ok(Ran { seen, held })
    }

    /// Loss and gradients of the model in one piece, run and differentiated by Burn alone; `parts` at a
    /// time, added up.
    pub(crate) fn in_one_piece(&self, parts: &[usize]) -> Result<Seen, LayerError> {
        let layers = self.copies();
        let weight = self.objective.weight(&self.batch.target);
        let mut sum = GradientsSum::default();
        let mut loss_sum = 0.0;
        let Batch {
            input,
            target,
            side,
            ..
        } = self.batch.clone();
        let batches = (input.split(parts).into_iter())
            .zip(target.split(parts))
            .zip(side.split(parts));
        let mut first = 0;
        for (((input, target), side), &size) in batches.zip(parts) {
            let samples = first..first + size;
            first += size;
            let draws = |layer| KeyedRng::new(self.seed, 0, layer, samples.clone());
            let (input, side) = (attach(input), attach(side));
            let plain = run_plain(&layers, input, &side, draws)?;
            let target = attach(target);
            let heads = (plain.auxiliary.into_iter())
                .map(|output| self.objective.auxiliary_loss(output, target.clone()));
            let heads: Vec<_> = heads.collect();
            let loss = self.objective.loss(plain.output, target.clone());
            let loss = heads.into_iter().fold(loss, |sum, loss| sum + loss);
            let loss = loss.div_scalar(weight);
            loss_sum += f64::from(loss.clone().into_scalar::<f32>());
            let mut gradients = loss.backward();
            // Layer by layer: those of a parameter that several layers share are added up, too.
            for layer in &layers {
                sum.add(GradientsParams::from_module(&mut gradients, layer), layer);
            }
        }
        let mut seen = Seen::default();
        seen.number("loss of step 1", loss_sum);
        seen.gradients("step 1, gradient of ", &layers, &sum.0);
        Ok(seen)
    }

    /// Whether a layer looks at the whole batch: batch norm does.
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

/// What came of a run.
pub(crate) struct Ran {
    pub(crate) seen: Seen,
    /// What each stage held in the last step.
    pub(crate) held: Vec<Held>,
}

/// Sums of gradients.
#[derive(Default)]
struct GradientsSum(GradientsParams);

impl GradientsSum {
    fn add<M: Module>(&mut self, more: GradientsParams, module: &M) {
        struct Add<'a> {
            sum: &'a mut GradientsParams,
            more: GradientsParams,
        }

        impl ModuleVisitor for Add<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if let Some(more) = self.more.remove::<D>(param.id) {
                    let sum = match self.sum.remove::<D>(param.id) {
                        Some(sum) => sum + more,
                        None => more,
                    };
                    self.sum.register(param.id, sum);
                }
            }
        }

        let sum = &mut self.0;
        module.visit(&mut Add { sum, more });
    }
}

/// Puts a flow where gradients are recorded.
pub(crate) fn attach<F: Flow>(flow: F) -> F {
    struct Attach;

    impl FlowMapper for Attach {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            tensor.autodiff()
        }
        fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
            tensor.autodiff()
        }
        fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
            tensor.autodiff()
        }
    }

    flow.map(&mut Attach)
}

/// The samples of a flow.
pub(crate) fn size<F: Flow>(flow: &F) -> usize {
    let mut sizes = Vec::new();
    flow.batch_sizes(&mut sizes);
    sizes.first().copied().unwrap_or(0)
}

/// The sizes of micro-batches, which differ by one at most.
pub(crate) fn parts(samples: usize, micro_batches: usize) -> Vec<usize> {
    let parts = micro_batches.min(samples);
    let extra = |part| usize::from(part < samples % parts);
    (0..parts)
        .map(|part| samples / parts + extra(part))
        .collect()
}
