//! Runs all checks on a model.

use std::{collections::BTreeSet, ops::Range, sync::Arc};

use burn::{module::Module, tensor::Device};
use stovepipe_comm::Communicator;
use stovepipe_pipeline::{Batch, Flow, Layer, Objective, Pipeline, Recompute, Step, StepError};
use stovepipe_schedule::{Rule, Scheduler, Segments};

use crate::{
    case::Case,
    checks::memory,
    error::VerifyError,
    processes::Processes,
    report::Report,
    subject::{Subject, size},
    tested::Tested,
};

/// Checks that a pipeline changes nothing but the speed of a model's training; see the [crate](crate).
///
/// Give it a batch of few samples: each of hundreds of cases trains two steps.
#[must_use = "nothing is verified until `run` is called"]
pub struct Verifier<L: Layer, T, O> {
    subject: Subject<L, T, O>,
    stages: BTreeSet<usize>,
    micro_batches: BTreeSet<usize>,
    progress: Option<Box<dyn Fn(usize)>>,
    /// Whether other processes have the values of some layers.
    is_in_parts: bool,
}

impl<L, T, O> Verifier<L, T, O>
where
    L: Layer,
    T: Flow,
    O: Objective<L::Output, T>,
{
    /// Verifies the layers of a pipeline on a batch.
    ///
    /// By default with 1 to 4 stages, with 1, 2, 3, 5 and more micro-batches than samples, on the CPU, and
    /// evaluated on the first half of the samples.
    pub fn new(layers: Vec<L>, batch: Batch<L::Input, T, L::Side>, objective: O) -> Self {
        let samples = size(&batch.input);
        Self {
            stages: (1..=layers.len().min(4)).collect(),
            micro_batches: [1, 2, 3, 5, samples + 1].into(),
            subject: Subject {
                layers,
                evaluation: first_half((batch.input.clone(), batch.side.clone())),
                batch,
                objective,
                training_step: None,
                device: Device::flex(),
                processes: Processes::default(),
                seed: 0,
                allow_unkeyed: false,
            },
            progress: None,
            is_in_parts: false,
        }
    }

    /// Verifies the model of a pipeline, with its current parameters, on the device of its first stage. The
    /// pipeline must lie in one process, which has all parameters.
    pub fn of(pipeline: &Pipeline<L>, batch: Batch<L::Input, T, L::Side>, objective: O) -> Self {
        let layers = pipeline.layers().to_vec().valid().train();
        let mut verifier = Self::new(layers, batch, objective);
        if let Some(stage) = pipeline.stages().first() {
            verifier.subject.device = stage.device.clone();
        }
        verifier.is_in_parts = pipeline.communicator().is_some_and(|comm| comm.size() > 1);
        verifier
    }

    /// The numbers of stages. Those above the number of layers are ignored.
    pub fn stages(mut self, stages: impl IntoIterator<Item = usize>) -> Self {
        self.stages = stages.into_iter().collect();
        let layers = self.subject.layers.len();
        self.stages.retain(|stages| (1..=layers).contains(stages));
        self
    }

    /// The numbers of micro-batches. 0 is ignored.
    pub fn micro_batches(mut self, micro_batches: impl IntoIterator<Item = usize>) -> Self {
        self.micro_batches = micro_batches.into_iter().collect();
        self.micro_batches.remove(&0);
        self
    }

    /// The samples that are evaluated after each step, not as many as the batch has.
    pub fn evaluated_on(mut self, input: L::Input, side: L::Side) -> Self {
        self.subject.evaluation = (input, side);
        self
    }

    /// The device of all stages; with a [communicator](Self::communicator) that of this process's stages. Only
    /// the CPU gives the same bits.
    pub fn device(mut self, device: Device) -> Self {
        self.subject.device = device;
        self
    }

    /// Verifies pipelines over several processes, which all do the same. Each has its own layers of a
    /// pipeline, and compares them with those of the whole model, which it also has. All get the same report.
    /// The number of stages is at least that of the processes.
    ///
    /// ```
    /// use std::thread::spawn;
    ///
    /// use burn::tensor::{Device, Int, Tensor};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Batch, CrossEntropy};
    /// use stovepipe_verify::Verifier;
    ///
    /// // Threads take the place of processes here.
    /// let ranks = stovepipe_comm::local(2, None)?.into_iter().map(|communicator| {
    ///     spawn(|| {
    ///         let device = Device::flex();
    ///         let targets = Tensor::<1, Int>::from_ints([0, 1, 2], &device);
    ///         let batch = Batch::new(Tensor::ones([3, 4], &device), targets);
    ///         Verifier::new(Dense::layers(&[4, 8, 3]), batch, CrossEntropy::new())
    ///             .micro_batches([2])
    ///             .communicator(communicator)
    ///             .run()
    ///     })
    /// });
    /// let reports: Vec<_> = ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join()).collect();
    /// let reports: Vec<_> = reports.into_iter().map(|report| report.unwrap().unwrap()).collect();
    /// assert!(reports[0].holds() && reports[0] == reports[1]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn communicator(mut self, communicator: impl Into<Arc<Communicator>>) -> Self {
        self.subject.processes = Processes::new(communicator.into());
        self
    }

    /// Verifies a training step of your own instead of [`Pipeline::train_step`], such as a loop that
    /// accumulates gradients. It gets a pipeline, the whole batch, and the objective. Its loss and gradients
    /// must be those of the batch. A loop over parts of the batch gives these for models without dropout
    /// and batch norm only.
    ///
    /// ```
    /// use burn::{optim::GradientsAccumulator, tensor::{Device, Int, Tensor}};
    /// # use stovepipe_pipeline::doc_example::Dense;
    /// use stovepipe_pipeline::{Batch, CrossEntropy, Flow};
    /// use stovepipe_verify::Verifier;
    ///
    /// let device = Device::flex();
    /// let targets = Tensor::<1, Int>::from_ints([0, 1, 2, 0], &device);
    /// let batch = Batch::new(Tensor::ones([4, 4], &device), targets);
    /// let report = Verifier::new(Dense::layers(&[4, 8, 3]), batch, CrossEntropy::new())
    ///     .micro_batches([1, 2])
    ///     .training_step(|pipeline, batch, objective| {
    ///         // Wrong: each half of the batch has the mean over its own samples.
    ///         let mut halves = (batch.input, batch.target).split(&[2, 2]).into_iter();
    ///         let (first, second) = (halves.next().unwrap(), halves.next().unwrap());
    ///         let mut sum = GradientsAccumulator::new();
    ///         let layers = pipeline.layers().to_vec();
    ///         sum.accumulate(&layers, pipeline.train_step(first, objective)?.gradients);
    ///         let mut step = pipeline.train_step(second, objective)?;
    ///         sum.accumulate(&layers, step.gradients);
    ///         step.gradients = sum.grads();
    ///         Ok(step)
    ///     })
    ///     .run()?;
    /// assert!(!report.holds());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn training_step(
        mut self,
        step: impl Fn(
            &Pipeline<L>,
            Batch<L::Input, T, L::Side>,
            &Tested<O>,
        ) -> Result<Step<L>, StepError>
        + 'static,
    ) -> Self {
        self.subject.training_step = Some(Box::new(step));
        self
    }

    /// The seed of initial parameters and random numbers; 0 by default.
    pub fn seed(mut self, seed: u64) -> Self {
        self.subject.seed = seed;
        self
    }

    /// Allows layers such as Burn's own `Dropout`. If they draw random numbers, a check fails.
    pub fn allow_unkeyed(mut self, allow: bool) -> Self {
        self.subject.allow_unkeyed = allow;
        self
    }

    /// Calls `progress` after each case, with the number of [cases](Self::cases) that have run.
    pub fn on_progress(mut self, progress: impl Fn(usize) + 'static) -> Self {
        self.progress = Some(Box::new(progress));
        self
    }

    /// The number of ways in which the model is trained.
    #[must_use]
    pub fn cases(&self) -> usize {
        self.all_cases().len()
    }

    /// Runs all cases. The report has the errors of single cases.
    ///
    /// # Errors
    ///
    /// If no pipeline can be built from the layers, another process has ended or has another model or batch,
    /// or there are fewer stages than processes.
    pub fn run(mut self) -> Result<Report, VerifyError> {
        if self.is_in_parts {
            return Err(VerifyError::InParts);
        }
        let (cases, processes) = (self.all_cases(), self.subject.processes.clone());
        let stages = self.stages.last().copied().unwrap_or(0);
        if (1..processes.size()).contains(&stages) {
            let processes = processes.size();
            return Err(VerifyError::FewStages { stages, processes });
        }
        // Initialized once, so that all cases start with the same parameters.
        let layers = std::mem::take(&mut self.subject.layers);
        let built = self.subject.build_with(layers, &Case::simplest(1))?;
        self.subject.layers = built.into_layers();
        let subject = &self.subject;
        let mut terms = subject.terms();
        for (what, numbers) in [
            ("stages", &self.stages),
            ("micro-batches", &self.micro_batches),
        ] {
            terms.push((format!("the numbers of {what}"), format!("{numbers:?}")));
        }
        processes.check_same(terms)?;
        // What cannot pass between processes is found here.
        drop(subject.build(&subject.simplest(1))?);
        let micro_batches: Vec<_> = self.micro_batches.iter().copied().collect();
        let repeated = subject.check_repeated()?;
        let mut done = 0;
        let (cut, held) = subject.check_cut(&cases, || {
            done += 1;
            if let Some(progress) = &self.progress {
                progress(done);
            }
        })?;
        let checks = vec![
            repeated,
            cut,
            subject.check_mini_batch(&micro_batches)?,
            subject.check_statistics(&micro_batches)?,
            subject.check_replicas(&cases)?,
            subject.check_evaluation(&cases)?,
            subject.check_failed_step(&cases)?,
            subject.check_windows(&self.stages, &self.micro_batches)?,
            memory((subject.samples(), subject.layers.len()), &held),
        ];
        Ok(Report { checks })
    }

    /// Every schedule, number of stages, number of micro-batches and mode of recomputation. Rules that give the
    /// same order count as one.
    fn all_cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let most = self.stages.last().copied().unwrap_or(0);
        let layers = self.subject.layers.len();
        // Segments are tried with one number of micro-batches.
        let few = self
            .micro_batches
            .iter()
            .nth(self.micro_batches.len() / 2)
            .copied()
            .unwrap_or(0);
        for &micro_batches in &self.micro_batches {
            for workers in self.subject.processes.size()..=most {
                let mut seen = Vec::new();
                for rule in Rule::synchronous() {
                    let stages = rule.stages(workers);
                    let schedule = rule.schedule(stages, micro_batches).ok();
                    let is_known = schedule.is_some() && seen.contains(&schedule);
                    if is_known || !self.stages.contains(&stages) {
                        continue;
                    }
                    seen.push(schedule);
                    let modes = Recompute::MODES.into_iter();
                    let by_layer =
                        (micro_batches == few).then(|| some_segments(layers, cases.len() as u64));
                    let all = modes.chain(by_layer.flatten());
                    let case = |recompute| Case {
                        rule,
                        workers,
                        replicas: 1,
                        micro_batches,
                        recompute,
                    };
                    cases.extend(all.map(case).collect::<Vec<_>>());
                }
            }
        }
        cases
    }
}

/// Layers by chance: each keeps its activations, or begins a segment, or belongs to the one before.
fn some_segments(layers: usize, seed: u64) -> Option<Recompute> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    let mut random = seed;
    for layer in 0..layers {
        // Numerical Recipes, 2nd edition, 1992, section 7.1.
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) & 0xffff_ffff;
        match ((random >> 16) % 3, runs.last_mut()) {
            (0, _) => {}
            (1, Some(last)) if last.end == layer => last.end += 1,
            _ => runs.push(layer..layer + 1),
        }
    }
    Segments::new(runs).ok().map(Recompute::Segments)
}

/// The first half of the samples, or all if there are fewer than two.
fn first_half<F: Flow>(flow: F) -> F {
    let samples = size(&flow);
    if samples < 2 {
        return flow;
    }
    let half = samples.div_ceil(2);
    flow.split(&[half, samples - half]).swap_remove(0)
}
