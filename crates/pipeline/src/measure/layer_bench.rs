//! Measures one layer, alone.

use std::{
    rc::Rc,
    time::{Duration, Instant},
};

use burn::{
    module::{ModuleMapper, Param},
    optim::GradientsAccumulator,
    tensor::{Bool, Device, FloatDType, Int, StreamId, Tensor, TensorData},
};
use stovepipe_plan::LayerProfile;

use crate::{
    api::error::{BoxedError, ProfilerError},
    engine::{
        copies,
        deferred::DeferredGradients,
        skips::{SkipGradients, StageSkips},
        tape::{self, BackwardScope, Head, LossAndScores, PassContext, Recorded, Run, StageValues},
        values::{self, FlowGradients},
    },
    measure::probe::median,
    model::{
        flow::{Flow, FlowMapper, every_kind},
        keyed_rng::StepKey,
        layer::Layer,
        wiring::LayerName,
    },
};

/// The number of timed runs of a layer: as many as fit into [`TIMING`].
const RUNS: std::ops::RangeInclusive<usize> = 5..=25;
const TIMING: Duration = Duration::from_millis(100);
/// The number of timed runs of parts that only some schedules use.
const MORE_RUNS: usize = 5;
/// After this time one run is enough: long runs vary little.
const LONG: Duration = Duration::from_secs(2);

/// Where and how layers are measured.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) device: Device,
    /// What layers compute in, if not in their own type.
    pub(super) dtype: Option<FloatDType>,
    /// The bytes that the process has allocated, and the most that it allocates during some work.
    pub(super) allocated: Option<fn() -> usize>,
    pub(super) peak_of: Option<PeakOf>,
}

/// Runs some work, and returns the most bytes that the process had allocated meanwhile above those before.
pub(super) type PeakOf = fn(&mut dyn FnMut()) -> usize;

impl Setting {
    /// A copy of a layer to be measured.
    pub(super) fn copy<L: Layer>(&self, layer: &L) -> L {
        copies::cast(stand_in(layer, &self.device), self.dtype)
    }

    /// The bytes of the pages that a GPU's pool takes for some work, but that of small tensors. It does not tell the
    /// peak of what is in use, but gives no page back before it is told to. In a stream of its own: each has its pages,
    /// which are a little larger than its largest tensor was.
    fn pages_of(&self, mut work: impl FnMut()) -> Result<Option<u64>, BoxedError> {
        let reserved = || {
            let usage = self.device.memory_pool_usage();
            usage.map(|usage| usage.bytes_reserved)
        };
        StreamId::allocate().executes(|| {
            let _small = Tensor::<1>::zeros([1], &self.device);
            work(); // finds the size of pages
            self.give_back()?;
            let before = reserved();
            work();
            let taken = reserved().zip(before);
            self.give_back()?;
            Ok(taken.map(|(after, before)| after.saturating_sub(before)))
        })
    }

    /// Has the pool of a GPU give back what nobody uses.
    fn give_back(&self) -> Result<(), BoxedError> {
        self.sync()?; // until then it does not know
        self.device.memory_cleanup();
        Ok(())
    }

    /// What counts bytes of the host, if layers are there.
    pub(super) fn on_host<C>(&self, counter: Option<C>) -> Option<C> {
        counter.filter(|_| self.device.memory_pool_usage().is_none())
    }

    /// Waits until the device is done.
    #[expect(clippy::disallowed_methods, reason = "it measures")]
    fn sync(&self) -> Result<(), BoxedError> {
        Ok(self.device.sync()?)
    }
}

/// A copy of a layer that is measured.
pub(super) struct LayerBench<'a, L: Layer> {
    pub(super) layer: L,
    pub(super) pass: PassContext<'a, L>,
    pub(super) setting: &'a Setting,
}

/// What a layer of a model gets besides its input when it is measured alone, for so many samples.
pub(super) fn pass_of<'a, L: Layer>(
    layers: &[L],
    layer: usize,
    (side, samples): (&'a L::Side, usize),
    skips: &'a StageSkips,
) -> PassContext<'a, L> {
    PassContext {
        side,
        rng: Some((StepKey::APART, 0..samples)),
        skips,
        first: layer,
        trainable_from: 0,
        inspect: false,
        sums: None,
        feeds_loss: L::MEASURED_LOSS.is_some() && layer + 1 == layers.len(),
        loss_scale: None,
    }
}

/// The times of one run of a layer.
struct LayerTiming<L: Layer> {
    forward: Duration,
    backward: Duration,
    /// Of deferred weight gradients.
    deferred: Duration,
    kept: Option<usize>,
    output: StageValues<L>,
}

impl<L: Layer> LayerBench<'_, L> {
    /// The medians, and the output.
    pub(super) fn measure(
        &self,
        input: &StageValues<L>,
    ) -> Result<(LayerProfile, StageValues<L>), BoxedError> {
        let mut sum = GradientsAccumulator::new();
        self.run(input, BackwardScope::All, &mut sum)?; // compiles kernels
        let last = self.run(input, BackwardScope::All, &mut sum)?; // touches memory pages
        let (mut forward, mut backward) = (Vec::new(), Vec::new());
        let began = Instant::now();
        while forward.len() < *RUNS.start()
            || (forward.len() < *RUNS.end() && began.elapsed() < TIMING)
        {
            let timing = self.run(input, BackwardScope::All, &mut sum)?;
            forward.push(timing.forward);
            backward.push(timing.backward);
            if began.elapsed() > LONG {
                break;
            }
        }
        let backward = median(backward);
        let bookkeeping = self.bookkeeping();
        // A tape has a copy of the layer here. In a step, micro-batches share it.
        let kept = last.kept.map(|bytes| bytes as u64);
        let kept = kept.map(|bytes| bytes.saturating_sub(bookkeeping.unwrap_or_default()));
        let profile = LayerProfile {
            forward: median(forward),
            quiet: Some(self.forward_without_tape(input)?),
            backward,
            weight: Some(backward * self.deferred_share(input)?),
            kept,
            bookkeeping,
            context: self.context(input, &mut sum)?,
            workspace: self.workspace(input, last.kept, &mut sum)?,
            ..LayerProfile::default()
        };
        Ok((profile, last.output))
    }

    /// Seconds of a forward pass without a tape.
    fn forward_without_tape(&self, input: &StageValues<L>) -> Result<f64, BoxedError> {
        let quiet = [self.layer.clone().no_grad()];
        let times = some_runs(|| {
            self.sync()?;
            let began = Instant::now();
            let _output = tape::forward(&quiet, input.clone(), &self.pass, &|_| ())?;
            self.sync()?;
            Ok(began.elapsed())
        })?;
        Ok(median(times))
    }

    /// The share of a backward pass that can be deferred.
    fn deferred_share(&self, input: &StageValues<L>) -> Result<f64, BoxedError> {
        let mut sum = GradientsAccumulator::new();
        let mut shares = some_runs(|| {
            let timing = self.run(input, BackwardScope::Input, &mut sum)?;
            let both = (timing.backward + timing.deferred).as_secs_f64();
            let share = timing.deferred.as_secs_f64() / both;
            Ok(if both > 0.0 { share } else { 0.0 })
        })?;
        shares.sort_by(f64::total_cmp);
        Ok(shares[shares.len() / 2])
    }

    fn run(
        &self,
        input: &StageValues<L>,
        scope: BackwardScope,
        sum: &mut GradientsAccumulator<L>,
    ) -> Result<LayerTiming<L>, BoxedError> {
        self.sync()?;
        let before = self.allocated();
        let (recorded, forward) = self.record(input)?;
        let kept = before.zip(self.allocated());
        let kept = kept.map(|(before, after)| after.saturating_sub(before));
        let output = recorded.output.clone();
        let (backward, deferred) = self.backward(recorded, scope, sum)?;
        Ok(LayerTiming {
            forward,
            backward,
            deferred,
            kept,
            output,
        })
    }

    /// Bytes of a copy of the layer besides its tensors. They are the host's, so a GPU's are not known to have any.
    fn bookkeeping(&self) -> Option<u64> {
        let allocated = self.setting.on_host(self.setting.allocated)?;
        let before = allocated();
        let copy = copies::live(&self.layer);
        let after = allocated();
        drop(copy);
        Some(after.saturating_sub(before) as u64)
    }

    /// Bytes that the second half of a backward pass needs from the first one, with the layer's input if that is among
    /// them.
    fn context(
        &self,
        input: &StageValues<L>,
        sum: &mut GradientsAccumulator<L>,
    ) -> Result<Option<u64>, BoxedError> {
        self.sync()?;
        let Some(before) = self.allocated() else {
            return Ok(None);
        };
        let own = StageValues {
            flow: match self.pass.first {
                0 => input.flow.clone(), // it is a part of the mini-batch
                _ => copied(input.flow.clone()),
            },
            skips: input.skips.clone(),
        };
        let (recorded, _) = self.record(&own)?;
        drop(own);
        let (deferred, _) = self.first_half(recorded, BackwardScope::Input, sum)?;
        let context = self
            .allocated()
            .map(|after| after.saturating_sub(before) as u64);
        drop(deferred);
        Ok(context)
    }

    /// The most bytes of a forward and a backward pass besides what is kept between them.
    fn workspace(
        &self,
        input: &StageValues<L>,
        kept: Option<usize>,
        sum: &mut GradientsAccumulator<L>,
    ) -> Result<Option<u64>, BoxedError> {
        let Some(kept) = kept else {
            return Ok(None);
        };
        let mut ran = Ok(());
        let mut passes = |sum: &mut GradientsAccumulator<L>| {
            let recorded = self.record(input);
            ran = recorded.and_then(|(recorded, _)| {
                self.backward(recorded, BackwardScope::All, sum)?;
                Ok(())
            });
        };
        let setting = self.setting;
        let most = match (setting.device.memory_pool_usage(), setting.peak_of) {
            // A sum that is kept would leave free what it does not fill of a page.
            (Some(_), _) => setting.pages_of(|| passes(&mut GradientsAccumulator::new()))?,
            (None, Some(peak_of)) => Some(peak_of(&mut || passes(sum)) as u64),
            (None, None) => None,
        };
        ran?;
        Ok(most.map(|most| most.saturating_sub(kept as u64)))
    }

    /// A forward pass with a tape, and how long it takes.
    pub(super) fn record(
        &self,
        input: &StageValues<L>,
    ) -> Result<(Recorded<L>, Duration), BoxedError> {
        let loss = |head, output| self.loss(head, output);
        let first = self.pass.first;
        let run = Run::Recorded(first..first + 1, vec![Rc::new(copies::live(&self.layer))]);
        let began = Instant::now();
        let mut recorded =
            tape::record((vec![run], &[]), input.clone(), &self.pass, &loss, &|_| ())?;
        if self.pass.feeds_loss {
            let output = (recorded.output.flow.clone(), 1);
            recorded
                .tape
                .record_loss(output, &loss, (&self.pass, &|_| ()))?;
        }
        self.sync()?;
        Ok((recorded, began.elapsed()))
    }

    /// The loss of an auxiliary head, or that to measure the model's with.
    fn loss(&self, head: Head, output: L::Output) -> LossAndScores {
        match (head, L::MEASURED_LOSS) {
            (Head::Main, Some(loss)) => LossAndScores {
                loss: loss(output),
                scores: None,
            },
            _ => self.sum(output),
        }
    }

    /// The sum of an output.
    fn sum(&self, output: L::Output) -> LossAndScores {
        let device = self.setting.device.clone().autodiff();
        LossAndScores {
            loss: self::sum(output).unwrap_or_else(|| Tensor::zeros([1], &device)),
            scores: None,
        }
    }

    /// How long the backward pass takes, and the gradients of weights that it deferred.
    pub(super) fn backward(
        &self,
        recorded: Recorded<L>,
        scope: BackwardScope,
        sum: &mut GradientsAccumulator<L>,
    ) -> Result<(Duration, Duration), BoxedError> {
        let (all, backward) = self.first_half(recorded, scope, sum)?;
        if all.is_empty() {
            return Ok((backward, Duration::ZERO));
        }
        let began = Instant::now();
        for (_, deferred) in all {
            sum.accumulate(&self.layer, deferred.run(&self.layer));
        }
        self.sync()?;
        Ok((backward, began.elapsed()))
    }

    /// A backward pass without what it defers, which it returns, and how long it takes.
    fn first_half(
        &self,
        Recorded { output, tape, .. }: Recorded<L>,
        scope: BackwardScope,
        sum: &mut GradientsAccumulator<L>,
    ) -> Result<(Vec<(usize, DeferredGradients)>, Duration), BoxedError> {
        let gradients = ones(output.flow.clone());
        let of_skips = self.ones(&output);
        self.sync()?;
        let began = Instant::now();
        let result = tape.backward(
            gradients,
            of_skips,
            (scope, &self.pass),
            (&[], &|head, output| self.loss(head, output)),
            |_, module, gradients| sum.accumulate(module, gradients),
            &|_| (),
        )?;
        self.sync()?;
        Ok((result.deferred, began.elapsed()))
    }

    /// Ones as the gradients of the skips that the layer sent.
    fn ones(&self, output: &StageValues<L>) -> SkipGradients {
        let skips = self.pass.skips;
        let of_skip = |(&skip, value): (&usize, &L::Flow)| {
            let of_taking = |taking| (taking, ones(value.clone()));
            skips.takings(skip).map(of_taking).collect::<Vec<_>>()
        };
        output.skips.iter().flat_map(of_skip).collect()
    }

    /// The bytes that are allocated now; a GPU reports its own.
    fn allocated(&self) -> Option<usize> {
        let of_device = self.setting.device.memory_pool_usage();
        match (of_device, self.setting.allocated) {
            (Some(usage), _) => usize::try_from(usage.bytes_in_use).ok(),
            (None, allocated) => allocated.map(|allocated| allocated()),
        }
    }

    fn sync(&self) -> Result<(), BoxedError> {
        self.setting.sync()
    }
}

/// Runs the parts that only some schedules use.
fn some_runs<R>(mut run: impl FnMut() -> Result<R, BoxedError>) -> Result<Vec<R>, BoxedError> {
    let first = Instant::now();
    let is_short = |_: &usize| first.elapsed() <= LONG;
    let runs = (0..=MORE_RUNS).take_while(is_short);
    runs.map(|_| run()).collect()
}

/// A copy of a layer on a device, ready to train, that shares nothing with the model: clones of lazy
/// parameters would initialise the model's, and clones of running statistics would update the model's.
pub(super) fn stand_in<L: Layer>(layer: &L, device: &Device) -> L {
    struct Values<'a>(&'a Device);

    impl ModuleMapper for Values<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            if param.is_initialized() {
                // What a file will give may be one number in memory until then.
                return param.map(|value| {
                    let options = (&value.device(), value.dtype());
                    Tensor::from_data(value.to_data(), options)
                });
            }
            Param::from_tensor(plausible(param.lazy_shape().dims(), self.0))
        }
    }

    let copy = layer.clone().map(&mut Values(device));
    copy.valid().fork(device).train()
}

/// Weights of a usual size, without drawing from Burn's generator, which the user may have seeded.
fn plausible<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = match D {
        0 | 1 => vec![1.0; count],
        _ => {
            let inputs = (count / shape[0].max(1)).max(1);
            let scale = (2.0 / inputs as f32).sqrt();
            (0..count).map(|i| scale * (1.3 * i as f32).sin()).collect()
        }
    };
    Tensor::from_data(TensorData::new(values, shape), device)
}

/// A copy that shares no memory.
fn copied<F: Flow>(flow: F) -> F {
    struct Copy;

    impl FlowMapper for Copy {
        every_kind!(self, tensor => {
            let options = (&tensor.device(), tensor.dtype());
            Tensor::from_data(tensor.to_data(), options)
        });
    }

    flow.map(&mut Copy)
}

/// Ones for gradients of a flow.
fn ones<F: Flow>(flow: F) -> FlowGradients {
    #[derive(Default)]
    struct Ones {
        gradients: FlowGradients,
        index: usize,
    }

    impl FlowMapper for Ones {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.gradients.register(self.index, tensor.ones_like());
            self.index += 1;
            tensor
        }
    }

    let mut ones = Ones::default();
    flow.map(&mut ones);
    ones.gradients
}

/// The sum of all floats of a flow, if it has any.
fn sum<F: Flow>(flow: F) -> Option<Tensor<1>> {
    struct Sum(Option<Tensor<1>>);

    impl FlowMapper for Sum {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0 = values::add(self.0.take(), Some(tensor.clone().sum()));
            tensor
        }
    }

    let mut sum = Sum(None);
    flow.map(&mut sum);
    sum.0
}

/// The bytes of a flow's tensors.
pub(super) fn bytes<F: Flow>(flow: F) -> usize {
    struct Bytes(usize);

    impl FlowMapper for Bytes {
        every_kind!(self, tensor => {
            self.0 += tensor.shape().num_elements() * tensor.dtype().size();
            tensor
        });
    }

    let mut bytes = Bytes(0);
    flow.map(&mut bytes);
    bytes.0
}

/// Says which layer could not be measured.
pub(super) fn failed<L: Layer, E: Into<BoxedError>>(
    layers: &[L],
    layer: usize,
) -> impl FnOnce(E) -> ProfilerError {
    let name = layers.get(layer).map(L::name).unwrap_or_default();
    let layer = LayerName { index: layer, name };
    move |source| ProfilerError {
        layer,
        source: source.into(),
    }
}
