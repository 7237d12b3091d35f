//! What most tests use: small models, ways to compare results, and names of Burn and the engine.

use std::fmt::Display;

pub use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
    optim::{AdamConfig, GradientsParams, SgdConfig},
    tensor::{Device, Int, Tensor},
};
use burn::{
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    optim::momentum::MomentumConfig,
};
use stovepipe_kernels::{convolve, relu_convolve};
pub use stovepipe_pipeline::{
    error::{StageFailure, WorkerState},
    *,
};
pub use stovepipe_schedule::{
    Action, GPipe, OneForwardOneBackward, Pass, Rule, Schedule, Scheduler, SpanKind,
};
use stovepipe_schedule::{RuleOptions, ScheduleError};

/// Every rule that the engine runs, the interleaved one twice.
pub const RULES: [By; 10] = [
    By(Rule::GPipe, 1),
    By(Rule::OneForwardOneBackward, 1),
    By(Rule::Interleaved, 2),
    By(Rule::Interleaved, 3),
    By(Rule::ZeroBubbleH1, 1),
    By(Rule::ZeroBubbleH2, 1),
    By(Rule::ZeroBubbleV, 1),
    By(Rule::VMin, 1),
    By(Rule::VHalf, 1),
    By(Rule::VOneForwardOneBackward, 1),
];

/// A rule, and the stages per worker if it needs them.
#[derive(Clone, Copy, Debug)]
pub struct By(pub Rule, pub usize);

impl Scheduler for By {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn stages(&self, workers: usize) -> usize {
        let scheduler = self.0.scheduler(&RuleOptions::with_chunks(self.1));
        scheduler.stages(workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        let scheduler = self.0.scheduler(&RuleOptions::with_chunks(self.1));
        scheduler.schedule(stages, micro_batches)
    }
}

/// The recompute modes, of a model with so many layers. Of `turn`s, every other one has layers by chance instead of
/// the mode between always and never.
pub fn modes(layers: usize, turn: usize) -> [Recompute; 3] {
    let between = match turn % 2 {
        0 => Recompute::ExceptLast,
        _ => some_segments(layers, turn as u64),
    };
    [Recompute::Always, between, Recompute::Never]
}

/// Segments by chance: each layer keeps its activations, or begins a segment, or belongs to the one before.
pub fn some_segments(layers: usize, seed: u64) -> Recompute {
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut random = seed;
    for layer in 0..layers {
        random = random
            .wrapping_mul(0x5851_F42D_4C95_7F2D)
            .wrapping_add(0x1405_7B7E_F767_814F);
        match (random >> 33) % 3 {
            0 => {}
            1 if runs.last().is_some_and(|run| run.end == layer) => {
                runs.last_mut().unwrap().end += 1;
            }
            _ => runs.push(layer..layer + 1),
        }
    }
    let segments = Segments::new(runs);
    segments.map_or(Recompute::ExceptLast, Recompute::Segments)
}

/// Every rule, number of workers and recompute mode with at most this number of stages.
pub fn cuts(most: usize) -> impl Iterator<Item = (By, usize, Recompute)> {
    let cuts = RULES.into_iter().flat_map(move |rule| {
        let workers = (1..=most).filter(move |&workers| rule.stages(workers) <= most);
        workers.map(move |workers| (rule, workers))
    });
    cuts.enumerate().flat_map(move |(turn, (rule, workers))| {
        modes(most, turn).map(|recompute| (rule, workers, recompute))
    })
}

/// Runs this test in a process of its own: it draws from Burn's generator, of which a process has one, and other
/// tests seed it to draw their layers.
pub fn in_own_process<E>(test: &str, run: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
    const CHILD: &str = "STOVEPIPE_TEST_OF_OWN_PROCESS";
    if std::env::var_os(CHILD).is_some() {
        return run();
    }
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let child = child.args([test, "--exact", "--include-ignored", "--nocapture"]);
    let child = child.env(CHILD, "1");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let has_run = output.status.success() && text.contains("1 passed");
    assert!(
        has_run,
        "{test}: {text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

pub fn cpu() -> Device {
    Device::flex()
}

pub fn linear(from: usize, to: usize) -> Linear {
    LinearConfig::new(from, to).init(&cpu())
}

pub fn norm(width: usize) -> BatchNorm {
    BatchNormConfig::new(width).init(&cpu())
}

/// Convolutions with batch norm, then a linear head. Every convolution's input is read several times (by
/// branches and by the sum). The gradient of a block's weight can be deferred, others cannot. Tied blocks
/// use their weight twice: in two operations that can defer its gradient, or in one.
#[derive(Module, Debug)]
pub enum ConvNet {
    Stem(Conv2d),
    Block(Block),
    Tied(Block),
    HalfTied(Block),
    Head(Linear),
}

#[derive(Module, Debug)]
pub struct Block {
    pub conv: Conv2d,
    pub norm: BatchNorm,
}

#[derive(Clone, Debug, Flow)]
pub enum Signal {
    Map(Tensor<4>),
    Logits(Tensor<2>),
}

impl Layer for ConvNet {
    type Input = Tensor<4>;
    type Flow = Signal;
    type Output = Tensor<2>;
    type Side = ();

    fn enter(input: Tensor<4>) -> Signal {
        Signal::Map(input)
    }

    fn forward(&self, flow: Signal, _: &mut Context<'_, Self>) -> Result<Signal, LayerError> {
        let Signal::Map(x) = flow else {
            return Err(LayerError::new("a feature map", "logits"));
        };
        Ok(match self {
            Self::Stem(conv) => Signal::Map(conv.forward(x)),
            Self::Block(block) => {
                let y = block.norm.forward(relu_convolve(&block.conv, x.clone()));
                Signal::Map(y + x.clone().mul_scalar(0.5) + x.tanh())
            }
            Self::Tied(block) | Self::HalfTied(block) => {
                let y = block.norm.forward(relu_convolve(&block.conv, x.clone()));
                Signal::Map(match self {
                    Self::Tied(_) => convolve(&block.conv, y.tanh()) + x,
                    _ => block.conv.forward(y.tanh()) + x,
                })
            }
            Self::Head(linear) => {
                let pooled: Tensor<2> = x.mean_dim(3).mean_dim(2).flatten(1, 3);
                Signal::Logits(linear.forward(pooled))
            }
        })
    }

    fn leave(flow: Signal) -> Result<Tensor<2>, LayerError> {
        match flow {
            Signal::Logits(logits) => Ok(logits),
            Signal::Map(_) => Err(LayerError::new("logits", "a feature map")),
        }
    }
}

fn conv(from: usize, to: usize, bias: bool) -> Conv2d {
    Conv2dConfig::new([from, to], [3, 3])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .with_bias(bias)
        .init(&cpu())
}

/// Seven layers.
pub fn conv_net() -> Vec<ConvNet> {
    let block = || Block {
        conv: conv(6, 6, false),
        norm: norm(6),
    };
    vec![
        ConvNet::Stem(conv(3, 6, true)),
        ConvNet::Block(block()),
        ConvNet::Tied(block()),
        ConvNet::Block(block()),
        ConvNet::HalfTied(block()),
        ConvNet::Block(block()),
        ConvNet::Head(linear(6, 4)),
    ]
}

/// What a layer returns.
pub type Forward<T> = Result<T, LayerError>;

/// A linear layer without a batch norm.
#[derive(Module, Debug)]
pub struct Dense {
    pub linear: Linear,
}

#[layer]
impl Dense {
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.linear.forward(x).tanh()
    }
}

pub fn dense(widths: &[usize]) -> Vec<Dense> {
    let linear = |pair: &[usize]| linear(pair[0], pair[1]);
    let layer = |pair| Dense {
        linear: linear(pair),
    };
    widths.windows(2).map(layer).collect()
}

pub fn images(samples: usize) -> Tensor<4> {
    pattern([samples, 3, 8, 8])
}

pub fn vectors(samples: usize, width: usize) -> Tensor<2> {
    pattern([samples, width])
}

/// Pseudorandom numbers, without a generator that other tests share.
pub fn pattern<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let value = |i| ((i as f32 * 12.9898).sin() * 43_758.547).fract();
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::<1>::from_floats(values.as_slice(), &cpu()).reshape(shape)
}

pub fn labels(samples: usize, classes: usize) -> Tensor<1, Int> {
    let class = |i| ((i * 7 + 3) % classes) as i64;
    let values: Vec<i64> = (0..samples).map(class).collect();
    Tensor::from_ints(values.as_slice(), &cpu())
}

pub fn builder<L: Layer>(
    layers: Vec<L>,
    workers: usize,
    scheduler: impl Scheduler + 'static,
    micro_batches: usize,
    recompute: Recompute,
) -> PipelineBuilder<L> {
    Pipeline::builder(layers)
        .devices(vec![cpu(); workers])
        .schedule(scheduler)
        .micro_batches(micro_batches)
        .recompute(recompute)
        .seed(7)
}

/// The same, built.
pub fn built<L: Layer>(
    layers: Vec<L>,
    workers: usize,
    scheduler: impl Scheduler + 'static,
    micro_batches: usize,
    recompute: Recompute,
) -> Pipeline<L> {
    let builder = builder(layers, workers, scheduler, micro_batches, recompute);
    builder.build().unwrap()
}

/// A loss over vectors.
pub const SQUARED: MeanOf<fn(Tensor<2>, Tensor<2>) -> Tensor<1>> =
    MeanOf(|y, t| (y - t).powi_scalar(2).mean());

/// A training step on classes.
pub fn train<L>(
    pipeline: &Pipeline<L>,
    input: L::Input,
    classes: usize,
) -> Result<Step<L>, StepError>
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let mut sizes = Vec::new();
    input.batch_sizes(&mut sizes);
    pipeline.train_step((input, labels(sizes[0], classes)), &CrossEntropy::new())
}

/// Loss, gradients and floats of a step, then of a second one after an inference of other inputs.
pub fn two_steps<L>(
    pipeline: Pipeline<L>,
    (input, other): (L::Input, L::Input),
    classes: usize,
) -> Vec<ByPath<u32>>
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let mut sizes = Vec::new();
    input.batch_sizes(&mut sizes);
    let batch = Batch::new(input, labels(sizes[0], classes));
    two_steps_on(pipeline, batch, (other, ()), &CrossEntropy::new())
}

/// The same for any objective and any side input.
pub fn two_steps_on<L: Layer, T: Flow>(
    mut pipeline: Pipeline<L>,
    batch: Batch<L::Input, T, L::Side>,
    other: (L::Input, L::Side),
    objective: &impl Objective<L::Output, T>,
) -> Vec<ByPath<u32>> {
    let momentum = MomentumConfig::new().with_momentum(0.9);
    let mut optimizer = SgdConfig::new().with_momentum(Some(momentum)).init();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let step = pipeline.train_step(batch.clone(), objective).unwrap();
        let losses = [step.loss, step.auxiliary_loss].map(|loss| (loss as f32).to_bits());
        seen.push(vec![("losses".to_owned(), losses.to_vec())]);
        seen.push(gradient_bits(&pipeline, &step.gradients));
        seen.push(bits(&pipeline));
        pipeline = optimizer.step(0.05, pipeline, step.gradients);
        let output = pipeline.infer(other.clone()).unwrap();
        seen.push(vec![("output".to_owned(), flow_bits(output))]);
    }
    seen.push(bits(&pipeline));
    seen
}

/// The gradients of the mini-batch in one piece, in plain Burn.
pub fn plain_gradients<L>(
    layers: &[L],
    input: L::Input,
    classes: usize,
    rng: impl Fn(usize) -> KeyedRng,
) -> ByPath<f32>
where
    L: Layer<Output = Tensor<2>, Side = ()>,
{
    let output = run_plain(layers, input, &(), rng).unwrap().output;
    let [samples, _] = output.dims();
    let loss = CrossEntropy::new().loss(output, labels(samples, classes).autodiff());
    let loss = loss.div_scalar(samples as f32);
    let layers = layers.to_vec();
    let gradients = GradientsParams::from_grads(loss.backward(), &layers);
    gradients_of(&layers, &gradients)
}

/// The failed stage of a step.
#[track_caller]
pub fn failure<R>(step: Result<R, StepError>) -> Box<StageFailure> {
    match step {
        Err(StepError::Failed(failure)) => failure,
        Err(other) => panic!("a stage should fail, but: {other}"),
        Ok(_) => panic!("the step should fail"),
    }
}

#[track_caller]
pub fn assert_contains(text: impl Display, part: &str) {
    let text = text.to_string();
    assert!(text.contains(part), "{text}");
}

/// Floats or bits by path.
pub type ByPath<T> = Vec<(String, Vec<T>)>;

/// Every float of a module by path, running statistics among them, as bits.
pub fn bits<M: Module>(module: &M) -> ByPath<u32> {
    to_bits(floats_of(module))
}

/// Every float by path.
pub fn floats_of<M: Module>(module: &M) -> ByPath<f32> {
    find(&module.valid(), None)
}

/// The gradient of every parameter by path, as bits.
pub fn gradient_bits<M: Module>(module: &M, gradients: &GradientsParams) -> ByPath<u32> {
    to_bits(gradients_of(module, gradients))
}

fn to_bits(found: ByPath<f32>) -> ByPath<u32> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let found = found.into_iter();
    found.map(|(path, values)| (path, bits(values))).collect()
}

/// The gradient of every parameter by path.
pub fn gradients_of<M: Module>(module: &M, gradients: &GradientsParams) -> ByPath<f32> {
    find(module, Some(gradients))
}

/// Compares gradients, each by its norm.
#[track_caller]
pub fn assert_close(found: &ByPath<f32>, expected: &ByPath<f32>, most: f64) {
    assert_eq!(found.len(), expected.len());
    for ((path, found), (_, expected)) in found.iter().zip(expected) {
        let difference = relative_difference(found, expected);
        assert!(difference < most, "{path}: {difference}");
    }
}

/// Every float by path, or its gradient.
fn find<M: Module>(module: &M, gradients: Option<&GradientsParams>) -> ByPath<f32> {
    struct Find<'a> {
        path: Vec<String>,
        gradients: Option<&'a GradientsParams>,
        found: ByPath<f32>,
    }

    impl ModuleVisitor for Find<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_owned());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = match self.gradients {
                Some(gradients) => gradients.get::<D>(param.id),
                None => Some(param.val()),
            };
            let value = value.map(|value| (self.path.join("."), floats(value)));
            self.found.extend(value);
        }
    }

    let mut visitor = Find {
        path: Vec::new(),
        gradients,
        found: Vec::new(),
    };
    module.visit(&mut visitor);
    visitor.found
}

pub fn floats<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.inner().into_data().try_to_vec::<f32>().unwrap()
}

pub fn tensor_bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    floats(tensor).iter().map(|value| value.to_bits()).collect()
}

/// Every float of a flow.
fn flow_bits<F: Flow>(flow: F) -> Vec<u32> {
    struct Collect(Vec<u32>);

    impl FlowMapper for Collect {
        fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
            self.0.extend(tensor_bits(tensor.clone()));
            tensor
        }
    }

    let mut collect = Collect(Vec::new());
    let _ = flow.map(&mut collect);
    collect.0
}

/// The norm of the difference over the norm.
pub fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|&b| f64::from(b))).max(1e-30)
}
