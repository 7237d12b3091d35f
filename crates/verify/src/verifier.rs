//! Runs all checks on a model.

use std::{cell::Cell, collections::BTreeSet};

use burn::{module::Module, tensor::Device};
use stovepipe_pipeline::{Batch, BuildError, Flow, Layer, Objective, Pipeline, Recompute};
use stovepipe_schedule::Rule;

use crate::{
    case::Case,
    checks,
    report::Report,
    subject::{Subject, size},
};

/// Shows that a pipeline changes nothing but the speed of a model's training; see the [crate](crate).
///
/// It wants a batch of few samples: each case trains two steps, and there are hundreds.
#[must_use = "nothing is verified until `run` is called"]
pub struct Verifier<L: Layer, T, O> {
    subject: Subject<L, T, O>,
    stages: BTreeSet<usize>,
    micro_batches: BTreeSet<usize>,
    progress: Option<Box<dyn Fn(usize)>>,
}

impl<L, T, O> Verifier<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Verifies layers as a pipeline is built of them, on a batch. By default with up to four stages, 1,
    /// 2, 3 and 5 micro-batches and more than there are samples, on the CPU; evaluated on the first
    /// half of the samples.
    pub fn new(layers: Vec<L>, batch: Batch<L::Input, T, L::Side>, objective: O) -> Self {
        let samples = size(&batch.input);
        let evaluation = (
            first_half(batch.input.clone()),
            first_half(batch.side.clone()),
        );
        Self {
            stages: (1..=layers.len().min(4)).collect(),
            micro_batches: [1, 2, 3, 5, samples + 1].into(),
            subject: Subject {
                layers,
                batch,
                evaluation,
                objective,
                device: Device::flex(),
                seed: 0,
                allow_unkeyed: false,
            },
            progress: None,
        }
    }

    /// Verifies the model of a pipeline that is built, with its parameters as they are, on the device of its
    /// first stage: in many ways to cut and schedule it, of which its own is likely one.
    pub fn of(pipeline: &Pipeline<L>, batch: Batch<L::Input, T, L::Side>, objective: O) -> Self {
        let layers = pipeline.layers().to_vec().valid().train();
        let mut verifier = Self::new(layers, batch, objective);
        if let Some(stage) = pipeline.stages().first() {
            verifier.subject.device = stage.device.clone();
        }
        verifier
    }

    /// The numbers of stages; those that are more than the layers are left out.
    pub fn stages(mut self, stages: impl IntoIterator<Item = usize>) -> Self {
        let layers = self.subject.layers.len();
        let possible = stages
            .into_iter()
            .filter(|stages| (1..=layers).contains(stages));
        self.stages = possible.collect();
        self
    }

    /// The numbers of micro-batches.
    pub fn micro_batches(mut self, micro_batches: impl IntoIterator<Item = usize>) -> Self {
        self.micro_batches = micro_batches
            .into_iter()
            .filter(|&count| count > 0)
            .collect();
        self
    }

    /// What is evaluated between steps, of another size than the batch.
    pub fn evaluated_on(mut self, input: L::Input, side: L::Side) -> Self {
        self.subject.evaluation = (input, side);
        self
    }

    /// The device of all stages. Bits are promised on the CPU alone.
    pub fn device(mut self, device: Device) -> Self {
        self.subject.device = device;
        self
    }

    /// The seed of parameters without a value, and of random numbers; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.subject.seed = seed;
        self
    }

    /// Allows layers with Burn's own `Dropout` and the like, in all cases. If they draw random numbers, the
    /// report shows it.
    pub fn allow_unkeyed(mut self, allow: bool) -> Self {
        self.subject.allow_unkeyed = allow;
        self
    }

    /// Calls `progress` with the number of [cases](Self::cases) that have been run, after each of them.
    pub fn on_progress(mut self, progress: impl Fn(usize) + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// The number of ways in which the model is trained.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.all_cases().len()
    }

    /// Runs all cases. What goes wrong in one is in the report.
    ///
    /// # Errors
    ///
    /// If no pipeline can be built of the layers at all.
    pub fn run(mut self) -> Result<Report, BuildError> {
        // All cases begin with the same values.
        let layers = std::mem::take(&mut self.subject.layers);
        let built = self.subject.build_of(layers, &Case::plainest(1))?;
        self.subject.layers = built.into_layers();
        let (cases, subject) = (self.all_cases(), &self.subject);
        let done = Cell::new(0);
        let told = || {
            done.set(done.get() + 1);
            if let Some(progress) = &self.progress {
                progress(done.get());
            }
        };
        let micro_batches: Vec<_> = self.micro_batches.iter().copied().collect();
        let repeated = checks::repeated(subject);
        let (cut, held) = checks::cut(subject, &cases, &told);
        let checks = vec![
            repeated,
            cut,
            checks::mini_batch(subject, &micro_batches),
            checks::statistics(subject, &micro_batches),
            checks::evaluation(subject, &cases),
            checks::mishap(subject, &cases),
            checks::memory(subject.samples(), &held),
        ];
        Ok(Report { checks })
    }

    /// Every schedule, number of stages, number of micro-batches and mode of recomputation.
    fn all_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &micro_batches in &self.micro_batches {
            for rule in Rule::synchronous() {
                let most = self.stages.last().copied().unwrap_or(0);
                for workers in 1..=most {
                    for recompute in Recompute::ALL {
                        cases.push(Case {
                            rule,
                            workers,
                            micro_batches,
                            recompute,
                        });
                    }
                }
            }
        }
        cases.retain(|case| self.stages.contains(&case.stages()));
        cases
    }
}

/// The first half of the samples, or all if there is one or none.
fn first_half<F: Flow>(flow: F) -> F {
    let samples = size(&flow);
    if samples < 2 {
        return flow;
    }
    let half = samples.div_ceil(2);
    let parts = flow.clone().split(&[half, samples - half]);
    parts.into_iter().next().unwrap_or(flow)
}
