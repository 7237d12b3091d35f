//! Small models for pipelines, and ways to compare results.

use burn::{
    module::{Module, ModuleVisitor, Param},
    nn::{
        BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    optim::GradientsParams,
    tensor::{Device, Int, Tensor},
};
use stovepipe_kernels::{convolve, relu_convolve};
use stovepipe_pipeline::{
    Context, Flow, Layer, LayerError, Pipeline, PipelineBuilder, Recompute, layer,
};
use stovepipe_schedule::{Rule, RuleOptions, Schedule, ScheduleError, Scheduler};

/// Every rule that the engine runs, the interleaved one twice.
pub const RULES: [By; 7] = [
    By(Rule::GPipe, 1),
    By(Rule::OneForwardOneBackward, 1),
    By(Rule::Interleaved, 2),
    By(Rule::Interleaved, 3),
    By(Rule::ZeroBubbleH1, 1),
    By(Rule::ZeroBubbleH2, 1),
    By(Rule::ZeroBubbleV, 1),
];

/// A rule, and the stages per worker if it needs them.
#[derive(Clone, Copy, Debug)]
pub struct By(pub Rule, pub usize);

impl Scheduler for By {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn stages(&self, workers: usize) -> usize {
        self.0
            .scheduler(&RuleOptions::with_chunks(self.1))
            .stages(workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        self.0
            .scheduler(&RuleOptions::with_chunks(self.1))
            .schedule(stages, micro_batches)
    }
}

pub fn cpu() -> Device {
    Device::flex()
}

/// Convolutions with batch norm, then a linear head. The flow is an enum, because the shapes
/// differ. Every convolution's input is read several times (by branches and by the sum).
///
/// The gradient of a block's weight can be deferred, others cannot. Blocks of the two
/// tied kinds use their weight twice: in two operations that can defer its gradient, or in one.
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
            Self::Tied(block) => {
                let y = block.norm.forward(relu_convolve(&block.conv, x.clone()));
                Signal::Map(convolve(&block.conv, y.tanh()) + x)
            }
            Self::HalfTied(block) => {
                let y = block.norm.forward(relu_convolve(&block.conv, x.clone()));
                Signal::Map(block.conv.forward(y.tanh()) + x)
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
        norm: BatchNormConfig::new(6).init(&cpu()),
    };
    std::iter::once(ConvNet::Stem(conv(3, 6, true)))
        .chain([
            ConvNet::Block(block()),
            ConvNet::Tied(block()),
            ConvNet::Block(block()),
            ConvNet::HalfTied(block()),
            ConvNet::Block(block()),
        ])
        .chain([ConvNet::Head(LinearConfig::new(6, 4).init(&cpu()))])
        .collect()
}

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
    widths
        .windows(2)
        .map(|pair| Dense {
            linear: LinearConfig::new(pair[0], pair[1]).init(&cpu()),
        })
        .collect()
}

pub fn images(samples: usize) -> Tensor<4> {
    pattern([samples, 3, 8, 8])
}

pub fn vectors(samples: usize, width: usize) -> Tensor<2> {
    pattern([samples, width])
}

/// Pseudorandom numbers, without a generator that other tests share.
pub fn pattern<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count)
        .map(|i| ((i as f32 * 12.9898).sin() * 43_758.547).fract())
        .collect();
    Tensor::<1>::from_floats(values.as_slice(), &cpu()).reshape(shape)
}

pub fn labels(samples: usize, classes: usize) -> Tensor<1, Int> {
    let values: Vec<i64> = (0..samples)
        .map(|i| ((i * 7 + 3) % classes) as i64)
        .collect();
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

/// Every float of a module by path, running statistics among them, as bits.
pub fn bits<M: Module>(module: &M) -> Vec<(String, Vec<u32>)> {
    to_bits(find(&module.valid(), None))
}

/// The gradient of every parameter by path, as bits.
pub fn gradient_bits<M: Module>(
    module: &M,
    gradients: &GradientsParams,
) -> Vec<(String, Vec<u32>)> {
    to_bits(gradients_of(module, gradients))
}

fn to_bits(found: Vec<(String, Vec<f32>)>) -> Vec<(String, Vec<u32>)> {
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect();
    let found = found.into_iter();
    found.map(|(path, values)| (path, bits(values))).collect()
}

/// The gradient of every parameter by path.
pub fn gradients_of<M: Module>(module: &M, gradients: &GradientsParams) -> Vec<(String, Vec<f32>)> {
    find(module, Some(gradients))
}

/// Every float by path, or its gradient.
fn find<M: Module>(module: &M, gradients: Option<&GradientsParams>) -> Vec<(String, Vec<f32>)> {
    struct Find<'a> {
        path: Vec<String>,
        gradients: Option<&'a GradientsParams>,
        found: Vec<(String, Vec<f32>)>,
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

/// The norm of the difference over the norm.
pub fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|&b| f64::from(b))).max(1e-30)
}
