//! Trains and tests, epoch by epoch.

use std::{
    error::Error,
    panic::{self, AssertUnwindSafe, resume_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use serde_json::Value;
use stovepipe_pipeline::{
    Flow, Inputs, Layer, Measured, Objective, Pipeline, StepError, StopHandle,
};
use stovepipe_schedule::Timeline;

use super::{
    drift::Drift,
    folder::{CHECKSUMS, METRICS, RunFolder, STEPS},
    memory::OwnMemory,
    memory_sampler::MemorySampler,
    progress::Progress,
    saving::Saving,
    summary::{Summary, Tested},
};
use crate::{
    checkpoint::{Checkpoint, Contents, Damaged, Sums, TrainerState},
    data::{self, EpochPass, Source, changes, shared},
    error::TrainError,
    optimizer::{Averages, GradientAccumulator, LearningRate, StagedOptimizer},
    processes::Processes,
    settings::{ChecksumSetting, OffloadSetting, TrainSettings},
    task::{Metrics, Task, evaluate},
    weights::Base,
};

/// A mean loss of an epoch that is greater than the first one by this factor is an error.
const EXPLODED: f64 = 1e3;
/// A mean loss that is greater than that of an earlier epoch by this share of the first loss is said.
const RISEN: f64 = 0.5;

/// Trains a pipeline for a [`Task`].
///
/// If the pipeline lies in several processes, all train it with the same calls. The first one has the
/// run's folder and shows progress; the others need a folder of [`RunFolder::open_in`].
///
/// ```no_run
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Data, Progress, RunFolder, Task, TrainError, TrainSettings, Trainer};
/// # use burn::tensor::{Int, Tensor};
/// # use stovepipe_train::example::Dense;
///
/// # fn train(
/// #     pipeline: Pipeline<Dense>,
/// #     data: Data<Tensor<2>, Tensor<1, Int>>,
/// # ) -> Result<(), TrainError> {
/// let settings = TrainSettings { epochs: 20, ..TrainSettings::default() };
/// let task = Task::classification(&settings);
/// let folder = RunFolder::create("runs/first".as_ref())?;
/// let mut trainer = Trainer::new(pipeline, task, settings)?;
/// let summary = trainer.run(&data, &folder, Progress::new)?;
/// println!("{}", summary.test); // loss 0.1345, accuracy 98.6 %, top-5 100.0 %
/// folder.finish()?;
/// # Ok(())
/// # }
/// ```
pub struct Trainer<L: Layer, O> {
    pub(super) pipeline: Pipeline<L>,
    pub(super) task: Task<O>,
    pub(super) optimizer: StagedOptimizer,
    pub(super) average: Option<Averages<L>>,
    pub(super) accumulator: GradientAccumulator,
    pub(super) state: TrainerState,
    pub(super) settings: TrainSettings,
    stop: StopHandle,
    /// Whether this process was asked to end after the current step.
    ending: Arc<AtomicBool>,
    /// Whether all have agreed to.
    pub(super) ends: bool,
    /// When this part of the training started.
    started: Instant,
    pub(super) timeline: Timeline,
    pub(super) memory: OwnMemory,
    pub(super) sampler: Option<MemorySampler>,
    pub(super) drift: Option<Drift>,
    /// Whether the user knows that the log of steps cannot be written.
    pub(super) has_warned: bool,
    /// Whether the user knows that backward passes in halves gain nothing.
    pub(super) has_checked_halves: bool,
    on_epoch: Option<OnEpoch>,
    /// The checkpoint that is being written.
    pub(super) saving: Option<Saving>,
    /// Bytes of the largest copy so far.
    pub(super) largest_copy: usize,
    /// Whether the user knows that training waits for checkpoints.
    pub(super) has_waited: bool,
    pub(super) base: Base,
    pub(super) processes: Processes,
}

/// Called after each epoch.
type OnEpoch = Box<dyn FnMut(&RunFolder) -> Result<(), Box<dyn Error>>>;

/// Where a training resumes.
#[derive(Debug)]
#[must_use]
pub struct Resumed {
    /// The name of the checkpoint; `None` if there is none, so that the training starts.
    pub checkpoint: Option<String>,
    /// Epochs that are over.
    pub epochs: usize,
    /// Mini-batches of the next epoch that are over.
    pub batches: usize,
    /// Newer checkpoints that are damaged.
    pub damaged: Vec<Damaged>,
    /// Lines of `metrics.jsonl`, `steps.jsonl` and `checksums.jsonl` that were not complete, and were removed.
    pub damaged_lines: usize,
}

/// Checks in advance that a training of this task, with these settings and a training set of `samples`, can
/// [resume](Trainer::resume) from a checkpoint.
///
/// # Errors
///
/// If it is of another task or another training set, a setting has changed that must not, or its
/// state cannot be read.
pub fn check_resume<O>(
    from: &Checkpoint,
    task: &Task<O>,
    settings: &TrainSettings,
    samples: usize,
) -> Result<(), TrainError> {
    let mut state = from.state()?;
    check_state(&state, task, settings)?;
    check_samples(&mut state, samples)
}

fn check_state<O>(
    state: &TrainerState,
    task: &Task<O>,
    settings: &TrainSettings,
) -> Result<(), TrainError> {
    state.check(settings)?;
    if !task.fits(&state.over.scores) || !task.fits(&state.under_way.scores) {
        return Err(TrainError::OtherTask);
    }
    Ok(())
}

/// Checks that a training set still has as many samples.
fn check_samples(state: &mut TrainerState, now: usize) -> Result<(), TrainError> {
    let then = std::mem::replace(&mut state.samples, now);
    if then > 0 && then != now {
        return Err(TrainError::OtherSamples { then, now });
    }
    Ok(())
}

impl<L: Layer, O> Trainer<L, O> {
    /// A trainer of `pipeline`. Freezes the layers that the settings name.
    ///
    /// # Errors
    ///
    /// If a setting is out of its range, or the optimizer's state cannot lie where it is asked to.
    pub fn new(
        mut pipeline: Pipeline<L>,
        task: Task<O>,
        settings: TrainSettings,
    ) -> Result<Self, TrainError> {
        settings.check()?;
        settings.freeze.apply_to(&mut pipeline)?;
        pipeline.set_pass_sums(settings.checksums == ChecksumSetting::Passes);
        let optimizer = settings.optimizer(&pipeline)?;
        let average = settings.averages(&pipeline)?;
        Ok(Self {
            accumulator: GradientAccumulator::new(&optimizer),
            optimizer,
            average,
            state: TrainerState::begin(&settings, &task.zero()),
            stop: pipeline.stop_handle(),
            ending: Arc::default(),
            ends: false,
            started: Instant::now(),
            timeline: Timeline::default(),
            memory: OwnMemory::new(),
            sampler: None,
            drift: None,
            has_warned: false,
            has_checked_halves: false,
            on_epoch: None,
            saving: None,
            largest_copy: 0,
            has_waited: false,
            base: Base::default(),
            processes: Processes::of(&pipeline),
            pipeline,
            task,
            settings,
        })
    }

    /// The pipeline in its current state.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }

    /// The processes that train.
    #[must_use]
    pub fn processes(&self) -> &Processes {
        &self.processes
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &TrainSettings {
        &self.settings
    }

    /// The pipeline with averaged weights, if the settings ask for them and they are not
    /// [offloaded](TrainSettings::offload).
    #[must_use]
    pub fn averaged(&self) -> Option<&Pipeline<L>> {
        match self.average.as_ref()? {
            Averages::OnDevice(average) => Some(average.pipeline()),
            Averages::Offloaded(_) => None,
        }
    }

    /// Leaves the weights of a [`Base`] out of checkpoints and of the run's models, which have its checksum
    /// instead. The pipeline has them already. [`resume`](Self::resume) refuses a checkpoint above others.
    #[must_use]
    pub fn with_base(mut self, base: Base) -> Self {
        self.base = base;
        self
    }

    /// Calls a function after each epoch, such as one that makes a report of the files so far. If it fails,
    /// training continues with a warning.
    #[must_use]
    pub fn on_epoch(
        mut self,
        call: impl FnMut(&RunFolder) -> Result<(), Box<dyn Error>> + 'static,
    ) -> Self {
        self.on_epoch = Some(Box::new(call));
        self
    }

    /// Has `read` read the bytes that are allocated, again and again during one of the first mini-batches with its
    /// update, on a thread beside them. Not for windows of mini-batches.
    ///
    /// ```
    /// use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
    /// use burn::tensor::{Device, Int, Tensor};
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_train::{Data, Progress, RunFolder, Task, TrainSettings, Trainer, example::Dense};
    ///
    /// # #[derive(Clone)]
    /// # struct Points;
    /// # impl Batcher<f32, (Tensor<2>, Tensor<1, Int>)> for Points {
    /// #     fn batch(&self, items: Vec<f32>, device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    /// #         (Tensor::ones([items.len(), 3], device), Tensor::zeros([items.len()], device))
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = Device::flex();
    /// let pipeline = Pipeline::builder(vec![Dense::new(3, 2)]).devices([device.clone()]).build()?;
    /// let settings = TrainSettings { epochs: 1, batch_size: 4, ..TrainSettings::default() };
    /// let task = Task::classification(&settings);
    /// let trainer = Trainer::new(pipeline, task, settings)?;
    /// let mut trainer = trainer.measuring_memory(|| 1024); // of a counting allocator
    /// let set = || InMemDataset::new(vec![0.0; 8]);
    /// let data = Data::new(set(), set(), Points);
    /// let folder = tempfile::tempdir()?;
    /// let folder = RunFolder::create(&folder.path().join("run"))?;
    /// trainer.run(&data, &folder, Progress::new)?;
    /// assert!(trainer.measured_memory().iter().all(|&(_seconds, bytes)| bytes == 1024.0));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn measuring_memory(mut self, read: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.sampler = Some(MemorySampler::new(read));
        self
    }

    /// Compares each step with times of these layers that were measured before. If passes of a worker take over 15 %
    /// longer, compared with the fastest worker, in 20 steps in a row, a line says so. If each worker has one stage, and
    /// each stage one worker, it also has the cut that would then be best by time, if that is another one. Not on GPUs,
    /// where it is not known when a pass ends, and not for windows of mini-batches.
    ///
    /// ```
    /// # use burn::tensor::{Device, Tensor};
    /// use stovepipe_pipeline::{Balance, Measured, Pipeline, Profiler};
    /// use stovepipe_train::{Task, TrainSettings, Trainer, example::Dense};
    ///
    /// let layers: Vec<_> = (0..4).map(|_| Dense::new(8, 8)).collect();
    /// let device = Device::flex();
    /// let profile = Profiler::new(&device).measure(&layers, Tensor::<2>::ones([16, 8], &device))?;
    /// let measured = Measured::from(profile);
    /// let pipeline = Pipeline::builder(layers)
    ///     .devices(vec![device; 2])
    ///     .balance(Balance::Planned(measured.clone()))
    ///     .build()?;
    /// let settings = TrainSettings::default();
    /// let task = Task::classification(&settings);
    /// let trainer = Trainer::new(pipeline, task, settings)?.expecting(&measured);
    /// # drop(trainer);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn expecting(mut self, measured: &Measured) -> Self {
        // Passes that wait for gradients are longer than their layers.
        let is_here = self.settings.offload == OffloadSetting::None;
        self.drift = is_here.then(|| Drift::new(measured, self.pipeline.stages()));
        self
    }

    /// Seconds since the begin of that mini-batch, in order, and the bytes that were read then.
    #[must_use]
    pub fn measured_memory(&self) -> &[(f64, f64)] {
        self.sampler.as_ref().map_or(&[], MemorySampler::found)
    }

    /// Returns a function that ends the training after the current step, from any thread. (The
    /// pipeline's [stop handle](Pipeline::stop_handle) cancels that step.)
    pub fn end_after_step(&self) -> impl Fn() + Send + Sync + 'static {
        let ending = self.ending.clone();
        move || ending.store(true, Ordering::SeqCst)
    }

    /// Whether this process was [asked](Self::end_after_step) to end after a step.
    #[must_use]
    pub fn is_asked_to_end(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
    }

    /// Restores the newest checkpoint in `folder` that is not damaged, if there is one:
    /// [`run`](Self::run) then continues to the result of an uninterrupted run, with any number of
    /// stages. Renames damaged checkpoints. Settings that neither the order of samples nor the
    /// optimizer's state depends on may change.
    ///
    /// # Errors
    ///
    /// If such a setting has changed, the checkpoint is of another model or task, or a file cannot
    /// be read or written.
    pub fn resume(&mut self, folder: &RunFolder) -> Result<Resumed, TrainError> {
        let newest = self.processes.first(|| {
            let (checkpoint, damaged) = folder.checkpoints().newest()?;
            let state = checkpoint.as_ref().map(Checkpoint::state).transpose()?;
            Ok::<_, TrainError>((checkpoint.zip(state), damaged))
        })?;
        let (newest, damaged) = newest.unwrap_or_default();
        let (checkpoint, state) = newest.unzip();
        let path = checkpoint.as_ref().map(|own| own.path().to_owned());
        let path = self.processes.of_first(path)?;
        if let Some((path, state)) = path.zip(TrainerState::of_first(state, &self.processes)?) {
            check_state(&state, &self.task, &self.settings)?;
            self.contents().load(&path, &state)?;
            self.state = state;
        }
        // Later metrics do not count.
        let epochs = self.state.epoch as u64;
        let is_over = |line: &Value| line["epoch"].as_u64().is_some_and(|epoch| epoch <= epochs);
        let steps = self.state.steps;
        let is_done = |line: &Value| line["step"].as_u64().is_some_and(|step| step <= steps);
        let damaged_lines = folder.keep_json_lines(METRICS, is_over)?
            + folder.keep_json_lines(STEPS, is_done)?
            + folder.keep_json_lines(CHECKSUMS, is_done)?;
        Ok(Resumed {
            damaged_lines,
            checkpoint: checkpoint.map(|own| own.name().to_owned()),
            epochs: self.state.epoch,
            batches: self.state.batch,
            damaged,
        })
    }

    pub(super) fn contents(&mut self) -> Contents<'_, L> {
        Contents {
            pipeline: &mut self.pipeline,
            average: self.average.as_mut(),
            optimizer: &mut self.optimizer,
            accumulator: &mut self.accumulator,
            base: &self.base,
        }
    }

    /// Trains and tests the remaining epochs, or until the pipeline's stop handle is used. Makes
    /// checkpoints, and writes `metrics.jsonl`, `steps.jsonl`, `summary.json`, `model.safetensors`, `best.safetensors`,
    /// `timeline.json` and `timeline.svg` to `folder`, with averaged weights also
    /// `averaged.safetensors`.
    ///
    /// # Errors
    ///
    /// If a set is empty or cannot be read, a mini-batch is larger than the training set, a step
    /// fails, the loss becomes NaN or infinite, or a file cannot be written.
    pub fn run<T: Flow>(
        &mut self,
        source: &dyn Source<L::Input, T, L::Side>,
        folder: &RunFolder,
        progress: impl FnOnce(usize, usize) -> Progress,
    ) -> Result<Summary, TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let samples = data::check(source, self.settings.batch_size)?;
        self.check_batches(samples)?;
        check_samples(&mut self.state, samples)?;
        // Files may differ from host to host, without a shared disk.
        let data = self.processes.agree(source.fingerprint())?;
        let of_first = self.processes.of_first(data.clone())?;
        let is_same = changes(&of_first, &data).map_or(Ok(()), |changes| {
            let (rank, host) = (0, self.processes.host(0));
            Err(TrainError::DataOfProcesses {
                rank,
                host,
                changes,
            })
        });
        self.processes.agree(is_same)?;
        self.state.check_data(&data)?;
        self.state.data = data;
        self.started = Instant::now();
        let batches = samples.div_ceil(self.settings.batch_size);
        let is_asynchronous = self.pipeline.is_asynchronous();
        self.settings.check_windows(is_asynchronous, batches)?;
        let epochs = match self.settings.max_steps {
            0 => self.settings.epochs,
            most => self.settings.epochs.min(most.div_ceil(batches)),
        };
        let mut progress = match self.processes.is_first() {
            true => progress(epochs, batches),
            false => Progress::silent(),
        };
        if !folder.has_locks() {
            let at = folder.file("");
            progress.say(&format!(
                "warning: the file system of {} has no locks: make sure that no other program trains there",
                at.display()
            ));
        }
        let train = || self.train(batches, source, folder, &mut progress);
        let trained = panic::catch_unwind(AssertUnwindSafe(train));
        // Whatever has happened, nothing writes to the folder after this.
        self.end_saving_alone(&mut progress);
        let (tested, stopped) = trained.unwrap_or_else(|panicked| resume_unwind(panicked))?;
        progress.finish();
        let tested = match tested {
            Some(tested) => tested,
            // All epochs were already over, or the last one before a stop was not tested.
            None => self.test_to_the_end(source)?.0,
        };
        self.write(folder, (tested, stopped), &mut progress)
    }

    /// Trains the remaining epochs. Returns the last test, if the last epoch had one, and whether it was stopped.
    fn train<T: Flow>(
        &mut self,
        batches: usize,
        source: &dyn Source<L::Input, T, L::Side>,
        folder: &RunFolder,
        progress: &mut Progress,
    ) -> Result<(Option<Tested>, bool), TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let (mut tested, mut stopped) = (None, false);
        while !self.is_over() && !stopped {
            let is_cut = match self.pipeline.is_asynchronous() {
                false => self.train_epoch(batches, source, folder, progress)?,
                true => self.train_windows(batches, source, folder, progress)?,
            };
            self.check_loss(progress)?;
            if is_cut {
                self.save(folder, progress)?;
                // Nothing is trained meanwhile, and whoever stopped the run may kill it soon.
                self.end_saving(folder, progress)?;
            }
            stopped = is_cut && !self.is_at_limit();
            let mut found = None;
            // An epoch that was stopped is tested too.
            if is_cut || self.is_test_due() {
                let (tested, stopped_in_test) = self.test_to_the_end(source)?;
                stopped |= stopped_in_test;
                found = Some(tested);
            }
            stopped = self.processes.any(stopped || self.is_asked_to_end())?;
            self.report_epoch(batches, found.as_ref(), folder, progress)?;
            if let Err(error) = self.show_epoch(folder) {
                progress.say(&format!("warning: training continues: {error}"));
            }
            if !is_cut {
                self.end_epoch(found.as_ref());
                self.save(folder, progress)?;
            }
            tested = found;
            if self.is_out_of_patience() && !self.has_all_epochs() {
                let tests = self.state.tests_since_best;
                progress.say(&format!("no better test in {tests} tests: training ends"));
            }
            if is_cut {
                break;
            }
        }
        self.end_saving(folder, progress)?;
        Ok((tested, stopped))
    }

    /// Writes the timeline so far, and calls the function for the end of an epoch.
    fn show_epoch(&mut self, folder: &RunFolder) -> Result<(), Box<dyn Error>> {
        self.write_timeline(folder)?;
        let call = self.on_epoch.as_mut().filter(|_| self.processes.is_first());
        call.map_or(Ok(()), |call| call(folder))
    }

    /// Whether the last epoch is over, all steps are done, or tests have stopped to get better.
    fn is_over(&self) -> bool {
        let steps = self.pipeline.steps();
        self.state.limit(steps, &self.settings).is_some()
    }

    fn has_all_epochs(&self) -> bool {
        self.state.epoch >= self.settings.epochs
    }

    pub(super) fn is_at_limit(&self) -> bool {
        let most = self.settings.max_steps as u64;
        most > 0 && self.pipeline.steps() >= most
    }

    fn is_out_of_patience(&self) -> bool {
        let patience = self.settings.patience;
        patience > 0 && self.state.tests_since_best >= patience
    }

    /// Whether the epoch that ends is to be tested.
    fn is_test_due(&self) -> bool {
        let epochs = self.state.epoch + 1;
        let is_last = epochs == self.settings.epochs || self.is_at_limit();
        is_last || epochs.is_multiple_of(self.settings.test_every)
    }

    /// Warns if the loss has risen, and fails if it has become huge.
    fn check_loss(&mut self, progress: &mut Progress) -> Result<(), TrainError> {
        let state = &mut self.state;
        let (Some(first), true) = (state.first_loss, state.under_way.steps > 0) else {
            return Ok(());
        };
        let (epoch, loss) = (state.epoch + 1, state.under_way.scores.mean_loss());
        if loss > EXPLODED * first.abs().max(1.0) {
            return Err(TrainError::LossExploded { epoch, loss, first });
        }
        let lowest = state.lowest_loss.unwrap_or(first);
        if loss - lowest > RISEN * first.abs() {
            let tip = "try a smaller --lr, a longer --warmup-epochs, or --clip";
            let rise = format!("the training loss rose from {lowest:.4} to {loss:.4}");
            progress.say(&format!("warning: {rise} in epoch {epoch}: {tip}"));
        }
        state.lowest_loss = Some(lowest.min(loss));
        Ok(())
    }

    fn end_epoch(&mut self, tested: Option<&Tested>) {
        if let Some(found) = tested.map(Tested::of_best_weights) {
            let quality = |metrics: &Metrics| metrics.quality(self.task.primary());
            let best = self.state.best.as_ref().and_then(quality);
            if quality(found) > best {
                (self.state.best, self.state.tests_since_best) = (Some(found.clone()), 0);
            } else {
                self.state.tests_since_best += 1;
            }
        }
        let next = Sums::of(&self.task.zero());
        let ended = std::mem::replace(&mut self.state.under_way, next);
        self.state.over.add(&ended);
        self.state.train_loss = ended.scores.mean_loss();
        self.state.test = tested.map(Tested::of_best_weights).cloned();
        self.state.epoch += 1;
        (self.state.batch, self.state.updates) = (0, 0);
    }

    /// Checks in advance that every mini-batch of an epoch can run.
    fn check_batches(&self, samples: usize) -> Result<(), TrainError> {
        let batch_size = self.settings.batch_size;
        self.pipeline.check_batch(batch_size)?;
        match samples % batch_size {
            0 => Ok(()),
            samples => (self.pipeline.check_batch(samples))
                .map_err(|source| TrainError::LastBatch { samples, source }),
        }
    }

    pub(super) fn learning_rate(&self, batches: usize) -> LearningRate {
        LearningRate::new(&self.settings, self.updates_per_epoch(batches))
    }

    fn updates_per_epoch(&self, batches: usize) -> usize {
        batches.div_ceil(self.settings.accumulate)
    }

    /// The number of the next update, counted over all epochs.
    pub(super) fn update(&self, batches: usize) -> usize {
        self.state.epoch * self.updates_per_epoch(batches) + self.state.updates
    }

    pub(super) fn seconds(&self) -> f64 {
        self.state.seconds + self.started.elapsed().as_secs_f64()
    }

    /// Tests, and again from the start if a stop cancels the test. Returns whether it was stopped.
    fn test_to_the_end<T: Flow>(
        &mut self,
        source: &dyn Source<L::Input, T, L::Side>,
    ) -> Result<(Tested, bool), TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let was_stopped = self.stop.is_stopped();
        self.stop.reset();
        match self.test(source) {
            Err(TrainError::Step(StepError::Stopped)) => {
                self.stop.reset();
                Ok((self.test(source)?, true))
            }
            result => Ok((result?, was_stopped)),
        }
    }

    /// Evaluates the model, and its averaged weights, on the test set.
    fn test<T: Flow>(
        &mut self,
        source: &dyn Source<L::Input, T, L::Side>,
    ) -> Result<Tested, TrainError>
    where
        O: Objective<L::Output, T>,
    {
        let model = self.metrics(&self.pipeline, source)?;
        let averaged = match &self.average {
            None => None,
            Some(Averages::OnDevice(average)) => Some(self.metrics(average.pipeline(), source)?),
            Some(Averages::Offloaded(_)) => {
                Some(self.with_averages(|own| own.metrics(&own.pipeline, source))?)
            }
        };
        Ok(Tested { model, averaged })
    }

    /// Does a job while the pipeline has the averages that lie off its devices. It has its weights again even if the
    /// job fails.
    fn with_averages<R>(
        &mut self,
        job: impl FnOnce(&Self) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap()?;
        let done = panic::catch_unwind(AssertUnwindSafe(|| job(self)));
        let back = self.swap();
        let done = done.unwrap_or_else(|panicked| resume_unwind(panicked))?;
        back.map(|()| done)
    }

    fn swap(&mut self) -> Result<(), TrainError> {
        match &mut self.average {
            Some(Averages::Offloaded(average)) => Ok(average.swap(&mut self.pipeline)?),
            _ => Ok(()),
        }
    }

    fn metrics<T: Flow>(
        &self,
        pipeline: &Pipeline<L>,
        source: &dyn Source<L::Input, T, L::Side>,
    ) -> Result<Metrics, TrainError>
    where
        O: Objective<L::Output, T>,
    {
        self.recalibrate(pipeline, source)?;
        let batches = shared(pipeline, || source.test(self.settings.batch_size));
        let totals = evaluate(pipeline, batches, &self.task, |_| ())?;
        Ok(self.task.metrics(&totals))
    }

    /// Gives batch norms exact statistics of the first samples of the current epoch, if any of it was
    /// trained. They are part of the model from then on.
    fn recalibrate<T: Flow>(
        &self,
        pipeline: &Pipeline<L>,
        source: &dyn Source<L::Input, T, L::Side>,
    ) -> Result<(), TrainError> {
        let micro_batches = self.settings.recalibrate;
        let is_trained = self.state.test.is_none() && self.pipeline.steps() > 0;
        if micro_batches == 0 || !is_trained {
            return Ok(());
        }
        if !self.processes.any(pipeline.can_recalibrate())? {
            return Ok(());
        }
        // What layers do must not depend on whether the run was resumed just now.
        let mini_batches = self.state.samples.div_ceil(self.settings.batch_size);
        let rate = self.learning_rate(mini_batches);
        (self.pipeline).set_progress(rate.progress(self.update(mini_batches)));
        let batches = shared(pipeline, || source.train(self.pass()));
        let inputs = batches.map(|batch| batch.map(|own| Inputs::from((own.input, own.side))));
        pipeline.recalibrate(micro_batches, inputs)
    }

    /// The current pass over the training set.
    pub(super) fn pass(&self) -> EpochPass {
        EpochPass {
            epoch: self.state.epoch,
            seed: self.settings.seed,
            batch_size: self.settings.batch_size,
        }
    }
}
