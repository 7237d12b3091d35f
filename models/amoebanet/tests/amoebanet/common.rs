//! Outputs of PyTorch's AmoebaNets (L = 3, D = 16, 10 classes) for two images, and helpers to compare
//! with them.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    optim::GradientsParams,
    store::{
        BurnToPyTorchAdapter, KeyRemapper, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter,
        SafetensorsStore, bridge, burn_pack,
    },
    tensor::{Device, Int, Tensor, TensorData},
};
use stovepipe_amoebanet::{AmoebaFlow, AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig};
use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline, Recompute};
use stovepipe_schedule::Scheduler;

/// Tensors by their path in a list of layers, in PyTorch's layouts.
pub type Named = BTreeMap<String, Vec<f32>>;

/// A golden file, and the model that it is for.
pub struct Member {
    pub name: &'static str,
    file: &'static str,
    init: fn(&Device) -> Vec<AmoebaLayer>,
    keys: fn() -> KeyRemapper,
    tensors: usize,
    /// The height and width of the images: a multiple of 32.
    side: usize,
    /// A bias that decides on which side of 0 the input of a ReLU is, where PyTorch's is ±1e-7.
    /// Rounding decides its sign, which changes a gradient by a fifth.
    kink: Option<(&'static str, usize)>,
}

/// AmoebaNet-D. Except for its kink, in the third layer, all inputs of ReLUs are more than 3e-6 away
/// from 0.
pub static AMOEBANET_D: Member = Member {
    name: "AmoebaNet-D",
    file: "amoebanet_d_l3_d16",
    init: |device| AmoebaNetDConfig::new(3, 16, 10).init(device).unwrap(),
    keys: || AmoebaNetDConfig::new(3, 16, 10).torch_keys(),
    tensors: 406,
    side: 224,
    kink: Some(("2.operations.4.1.bn.bias", 1)),
};

/// AmoebaNet-B of `fixtures/amoebanet_b.py`.
pub static AMOEBANET_B: Member = Member {
    name: "AmoebaNet-B",
    file: "amoebanet_b_l3_d16",
    init: |device| AmoebaNetBConfig::new(3, 16, 10).init(device).unwrap(),
    keys: || AmoebaNetBConfig::new(3, 16, 10).torch_keys(),
    tensors: 379,
    side: 64,
    kink: None,
};

/// A model with PyTorch's weights, a mini-batch, and PyTorch's results.
pub struct Golden {
    pub member: &'static Member,
    /// The model, on an autodiff device.
    pub layers: Vec<AmoebaLayer>,
    /// Two images `[2, 3, side, side]`, on an autodiff device.
    pub input: Tensor<4>,
    /// Their classes `[2]`.
    pub target: Tensor<1, Int>,
    pub eval_logits: Vec<f32>,
    pub train_logits: Vec<f32>,
    /// The mean cross-entropy of a training step.
    pub train_loss: Vec<f32>,
    /// The gradient of every parameter.
    pub gradients: Named,
    pub statistics_before: Named,
    /// The running statistics after the step, with PyTorch's unbiased variances.
    pub statistics: Named,
}

/// Whether to avoid the kink of a model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kink {
    /// The weights as they are.
    Leave,
    /// A bias changed by 1e-6: the input is on PyTorch's side of 0 on every machine.
    Avoid,
}

impl Member {
    /// Whether rounding decides the sign of a ReLU's input.
    pub fn has_kink(&self) -> bool {
        self.kink.is_some()
    }

    /// Reads the golden file, all tensors of which must be used.
    pub fn load(&'static self, kink: Kink) -> Golden {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
        let mut file = SafetensorsStore::from_file(format!("{folder}/{}.safetensors", self.file));
        let device = Device::flex().autodiff();
        let layers = self.load_layers(&mut file, kink, &device);
        Golden {
            member: self,
            statistics_before: collect(&layers, is_statistic),
            layers,
            input: Tensor::from_data(data(&mut file, "input"), &device),
            target: Tensor::from_data(data(&mut file, "target"), &device),
            eval_logits: floats(data(&mut file, "eval/logits")),
            train_logits: floats(data(&mut file, "train/logits")),
            train_loss: floats(data(&mut file, "train/loss")),
            gradients: named(self.group(&mut file, "train/grad/")),
            statistics: named(self.group(&mut file, "train/buffers/")),
        }
    }

    fn load_layers(
        &self,
        file: &mut SafetensorsStore,
        kink: Kink,
        device: &Device,
    ) -> Vec<AmoebaLayer> {
        let mut layers = (self.init)(device);
        let mut weights = self.group(file, "weights/");
        if kink == Kink::Avoid {
            weights.iter_mut().for_each(|tensor| self.avoid(tensor));
        }
        let loaded = layers.apply(weights, None, Some(Box::new(PyTorchToBurnAdapter)), true);
        assert_eq!(loaded.applied.len(), self.tensors, "{loaded}");
        assert_eq!(loaded.missing.len() + loaded.unused.len(), 0, "{loaded}");
        assert_eq!(loaded.errors.len(), 0, "{loaded}");
        layers
    }

    fn avoid(&self, tensor: &mut burn_pack::Tensor) {
        let Some((name, channel)) = self.kink.filter(|(name, _)| tensor.name == *name) else {
            return;
        };
        let mut bias = floats(bridge::to_data(tensor).unwrap());
        bias[channel] += 1e-6;
        let data = TensorData::new(bias, tensor.shape.clone());
        *tensor = bridge::from_data(data, name.to_owned(), None);
    }

    /// The tensors whose PyTorch name has a prefix, by our names, in single precision.
    fn group(&self, file: &mut SafetensorsStore, prefix: &str) -> Vec<burn_pack::Tensor> {
        let stripped = |tensor: &burn_pack::Tensor| {
            let name = tensor.name.strip_prefix(prefix)?.to_owned();
            let data = bridge::to_data(tensor).unwrap().convert::<f32>();
            Some(bridge::from_data(data, name, None))
        };
        let all = file.get_all_tensors().unwrap();
        let tensors = all.values().filter_map(stripped).collect();
        (self.keys)().remap(tensors).0
    }

    /// The pixels of a sample's map that a batch norm of the model sees.
    fn pixels(&self, name: &str) -> usize {
        // The factors by which the layers shrink images.
        const LAYERS: [usize; 8] = [2, 4, 8, 8, 16, 16, 32, 32];
        let (layer, rest) = name.split_once('.').unwrap();
        let layer: usize = layer.parse().unwrap();
        let side = self.side / LAYERS[layer - usize::from(sees_input(rest))];
        side * side
    }
}

/// Whether a batch norm of a cell sees a map of the size of the cell's inputs, not of its output: after
/// the input's convolutions, and in the first convolution of the bottleneck that halves the map.
fn sees_input(name: &str) -> bool {
    name.starts_with("reduce") || name.starts_with("operations.3.0.bn")
}

/// Layers with initialized parameters. Other tests use Burn's generator at the same time, so that a
/// second initialization may give other values.
pub fn drawn(layers: Vec<AmoebaLayer>) -> Vec<AmoebaLayer> {
    let builder = Pipeline::builder(layers).devices([Device::flex()]);
    builder.build().unwrap().into_layers()
}

pub fn copies(layers: &[AmoebaLayer]) -> Vec<AmoebaLayer> {
    layers.iter().map(|layer| layer.valid().train()).collect()
}

pub fn pipeline(
    layers: Vec<AmoebaLayer>,
    workers: usize,
    scheduler: impl Scheduler + 'static,
    micro_batches: usize,
    recompute: Recompute,
) -> Pipeline<AmoebaLayer> {
    let builder = Pipeline::builder(layers).devices(vec![Device::flex(); workers]);
    let builder = builder.schedule(scheduler).micro_batches(micro_batches);
    builder.recompute(recompute).build().unwrap()
}

pub fn batch(samples: usize) -> (Tensor<4>, Tensor<1, Int>) {
    let (device, count) = (Device::flex(), (samples * 3 * 16 * 16) as i64);
    let values = Tensor::<1, Int>::arange(0..count, &device).float().sin();
    let labels = Tensor::arange(0..samples as i64, &device);
    (values.reshape([samples, 3, 16, 16]), labels)
}

/// The parameters and running statistics of a pipeline, or their gradients, as bits.
pub fn bits(
    pipeline: &Pipeline<AmoebaLayer>,
    gradients: Option<&GradientsParams>,
) -> Vec<Vec<u32>> {
    struct Bits<'a> {
        gradients: Option<&'a GradientsParams>,
        found: Vec<Vec<u32>>,
    }

    impl ModuleVisitor for Bits<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let tensor = match self.gradients {
                Some(gradients) => gradients.get::<D>(param.id),
                None => Some(param.val()),
            };
            let floats = tensor.map(|tensor| floats(tensor.into_data()));
            (self.found).extend(floats.map(|all| all.into_iter().map(f32::to_bits).collect()));
        }
    }

    let found = Vec::new();
    let mut bits = Bits { gradients, found };
    pipeline.valid().visit(&mut bits);
    bits.found
}

pub fn run(
    layers: &[AmoebaLayer],
    input: Tensor<4>,
    context: &mut Context<'_, AmoebaLayer>,
) -> Result<Tensor<2>, LayerError> {
    let start = AmoebaLayer::enter(input);
    let end = layers.iter().try_fold(start, |flow: AmoebaFlow, layer| {
        layer.forward(flow, context)
    })?;
    AmoebaLayer::leave(end)
}

/// The gradient of every parameter. Panics if one has none.
pub fn gradients_of(layers: &[AmoebaLayer], gradients: &GradientsParams) -> Named {
    let replaced = layers.to_vec().map(&mut ByGradient(gradients));
    collect(&replaced, |name| !is_statistic(name))
}

/// The running statistics after one step, from `before`, with PyTorch's variances: PyTorch uses the
/// unbiased variance of a batch, Burn the biased one.
pub fn statistics_of(
    member: &Member,
    layers: &[AmoebaLayer],
    before: &Named,
    samples: usize,
) -> Named {
    const KEPT: f32 = 0.9;
    let mut statistics = collect(&layers.to_vec().valid(), is_statistic);
    let variances = (statistics.iter_mut()).filter(|(name, _)| name.ends_with("_var"));
    for (name, values) in variances {
        let count = (samples * member.pixels(name)) as f32;
        for (value, before) in values.iter_mut().zip(&before[name]) {
            let kept = KEPT * before;
            *value = kept + (*value - kept) * count / (count - 1.0);
        }
    }
    statistics
}

/// The largest [`difference`] of tensors of the same names, and its name.
pub fn largest_difference(ours: &Named, golden: &Named) -> (f64, String) {
    let names = |named: &Named| named.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(golden));
    let apart =
        |(name, ours): (&String, &Vec<f32>)| (difference(ours, &golden[name]), name.clone());
    let differences = ours.iter().map(apart);
    differences.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
}

/// The norm of the difference over the norm. NaN if any value is NaN.
pub fn difference(ours: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(ours.len(), golden.len());
    let square = |x: f32| f64::from(x).powi(2);
    let apart: f64 = ours.iter().zip(golden).map(|(a, b)| square(a - b)).sum();
    (apart / golden.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

pub fn floats(data: TensorData) -> Vec<f32> {
    data.try_into_vec_as::<f32>().unwrap()
}

struct ByGradient<'a>(&'a GradientsParams);

impl ModuleMapper for ByGradient<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.get::<D>(param.id) {
            Some(gradient) => Param::initialized(param.id, gradient),
            None if param.is_require_grad() => panic!("no gradient for {:?}", param.lazy_shape()),
            None => param, // a running statistic
        }
    }
}

fn is_statistic(name: &str) -> bool {
    name.contains("running_")
}

fn collect(layers: &Vec<AmoebaLayer>, keep: impl Fn(&str) -> bool) -> Named {
    let tensors = layers.collect(None, Some(Box::new(BurnToPyTorchAdapter)), true);
    let kept = tensors.into_iter().filter(|tensor| keep(&tensor.name));
    named(kept.collect())
}

fn named(tensors: Vec<burn_pack::Tensor>) -> Named {
    let values = |tensor: &_| floats(bridge::to_data(tensor).unwrap());
    let named = tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), values(tensor)));
    named.collect()
}

fn data(file: &mut SafetensorsStore, name: &str) -> TensorData {
    bridge::to_data(file.get_tensor(name).unwrap().unwrap()).unwrap()
}
