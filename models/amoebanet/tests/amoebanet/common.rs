//! What PyTorch's AmoebaNets (L = 3, D = 16, 10 classes) compute on two images, and the means to
//! compare with it.
#![allow(dead_code, reason = "each test uses a part")]

use std::collections::BTreeMap;

use burn::{
    module::{Module, ModuleMapper, Param},
    optim::GradientsParams,
    store::{
        BurnToPyTorchAdapter, KeyRemapper, ModuleSnapshot, ModuleStore, PyTorchToBurnAdapter,
        SafetensorsStore, bridge, burn_pack,
    },
    tensor::{Device, Int, Tensor, TensorData},
};
use stovepipe_amoebanet::{AmoebaFlow, AmoebaLayer, AmoebaNetBConfig, AmoebaNetDConfig};
use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};

/// Tensors by the path that they have in a list of layers, in PyTorch's layouts.
pub type Named = BTreeMap<String, Vec<f32>>;

/// A golden file, and the model that it is for.
pub struct Member {
    /// What failures call it.
    pub name: &'static str,
    path: &'static str,
    init: fn(&Device) -> Vec<AmoebaLayer>,
    keys: fn() -> KeyRemapper,
    /// The number of parameters and running statistics.
    tensors: usize,
    /// The height and width of the images: a multiple of 32.
    side: usize,
    /// The bias that puts the input of a ReLU to one side of 0, where PyTorch's is ±1e-7: rounding
    /// decides its sign, and its sign a fifth of a gradient.
    kink: Option<(&'static str, usize)>,
}

/// AmoebaNet-D; but for its kink, in the third layer, no input of a ReLU is nearer to 0 than 3e-6.
pub static AMOEBANET_D: Member = Member {
    name: "AmoebaNet-D",
    path: concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/amoebanet_d_l3_d16.safetensors"
    ),
    init: |device| AmoebaNetDConfig::new(3, 16, 10).init(device).unwrap(),
    keys: || AmoebaNetDConfig::new(3, 16, 10).torch_keys(),
    tensors: 406,
    side: 224,
    kink: Some(("2.operations.4.1.bn.bias", 1)),
};

/// AmoebaNet-B, as `fixtures/amoebanet_b.py` has it.
pub static AMOEBANET_B: Member = Member {
    name: "AmoebaNet-B",
    path: concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/amoebanet_b_l3_d16.safetensors"
    ),
    init: |device| AmoebaNetBConfig::new(3, 16, 10).init(device).unwrap(),
    keys: || AmoebaNetBConfig::new(3, 16, 10).torch_keys(),
    tensors: 379,
    side: 64,
    kink: None,
};

/// A model with PyTorch's weights, a mini-batch, and what PyTorch makes of them.
pub struct Golden {
    /// Whose golden it is.
    pub member: &'static Member,
    /// The model, on an autodiff device.
    pub layers: Vec<AmoebaLayer>,
    /// Two images `[2, 3, side, side]`, on an autodiff device.
    pub input: Tensor<4>,
    /// Their classes `[2]`.
    pub target: Tensor<1, Int>,
    /// Logits in evaluation mode.
    pub eval_logits: Vec<f32>,
    /// Logits of a training step.
    pub train_logits: Vec<f32>,
    /// The mean cross-entropy of a training step.
    pub train_loss: Vec<f32>,
    /// The gradient of every parameter.
    pub gradients: Named,
    /// The running statistics before the step.
    pub statistics_before: Named,
    /// The running statistics after the step, with PyTorch's unbiased variances.
    pub statistics: Named,
}

/// What to do about the kink of a golden.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kink {
    /// The weights as they are.
    Leave,
    /// A bias moved by 1e-6, which puts the input on PyTorch's side of 0 on every machine.
    Avoid,
}

impl Member {
    /// Whether rounding decides a sign.
    pub fn has_kink(&self) -> bool {
        self.kink.is_some()
    }

    /// Reads the golden file; every one of its tensors must find a place.
    pub fn load(&'static self, kink: Kink) -> Golden {
        let mut file = SafetensorsStore::from_file(self.path);
        let device = Device::flex().autodiff();
        let layers = self.load_layers(&mut file, kink, &device);
        let input = data(&mut file, "input");
        let target = data(&mut file, "target");
        Golden {
            member: self,
            statistics_before: collect(&layers, is_statistic),
            layers,
            input: Tensor::from_data(input, &device),
            target: Tensor::from_data(target, &device),
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
        assert!(
            loaded.missing.is_empty() && loaded.unused.is_empty() && loaded.errors.is_empty(),
            "{loaded}"
        );
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

    /// The pixels of the map that a batch norm of the model sees of a sample.
    fn pixels(&self, name: &str) -> usize {
        // By what the layers shrink their images.
        const LAYERS: [usize; 8] = [2, 4, 8, 8, 16, 16, 32, 32];
        let (layer, rest) = name.split_once('.').unwrap();
        let layer: usize = layer.parse().unwrap();
        let side = self.side
            / match sees_input(rest) {
                true => LAYERS[layer - 1],
                false => LAYERS[layer],
            };
        side * side
    }
}

/// Whether a batch norm of a cell sees a map of the size of the cell's inputs, not of its output:
/// where the inputs are made alike, and in the first convolution of the bottleneck that halves it.
fn sees_input(name: &str) -> bool {
    name.starts_with("reduce") || name.starts_with("operations.3.0.bn")
}

/// Layers whose parameters have been drawn: they are Burn's generator's, from which other tests draw meanwhile, so
/// that drawn twice they need not be the same.
pub fn drawn(layers: Vec<AmoebaLayer>) -> Vec<AmoebaLayer> {
    let builder = Pipeline::builder(layers).devices([Device::flex()]);
    builder.build().unwrap().into_layers()
}

/// Copies that share nothing with them, running statistics among it.
pub fn copies(layers: &[AmoebaLayer]) -> Vec<AmoebaLayer> {
    layers.iter().map(|layer| layer.valid().train()).collect()
}

/// Runs the layers one after the other, without a pipeline.
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

/// The gradient of every parameter; one that has none is an error.
pub fn gradients_of(layers: &[AmoebaLayer], gradients: &GradientsParams) -> Named {
    let replaced = layers.to_vec().map(&mut ByGradient(gradients));
    collect(&replaced, |name| !is_statistic(name))
}

/// The running statistics after one step, from `before`, with the variances that PyTorch would have
/// computed: it counts the unbiased variance of a batch, Burn the biased one.
pub fn statistics_of(
    member: &Member,
    layers: &[AmoebaLayer],
    before: &Named,
    samples: usize,
) -> Named {
    const KEPT: f32 = 0.9;
    let mut statistics = collect(&layers.to_vec().valid(), is_statistic);
    for (name, values) in statistics
        .iter_mut()
        .filter(|(name, _)| name.ends_with("_var"))
    {
        let count = (samples * member.pixels(name)) as f32;
        for (value, before) in values.iter_mut().zip(&before[name]) {
            let kept = KEPT * before;
            *value = kept + (*value - kept) * count / (count - 1.0);
        }
    }
    statistics
}

/// The largest difference of tensors, which must have the same names: the norm of the difference
/// over the norm, and where.
pub fn largest_difference(ours: &Named, golden: &Named) -> (f64, String) {
    assert!(
        ours.keys().eq(golden.keys()),
        "{:?}\n{:?}",
        ours.keys(),
        golden.keys()
    );
    let differences = ours
        .iter()
        .map(|(name, ours)| (difference(ours, &golden[name]), name));
    differences
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(difference, name)| (difference, name.clone()))
        .unwrap()
}

/// The norm of the difference over the norm; not a number if anything is not.
pub fn difference(ours: &[f32], golden: &[f32]) -> f64 {
    assert_eq!(ours.len(), golden.len());
    let square = |x: f32| f64::from(x).powi(2);
    let apart: f64 = ours.iter().zip(golden).map(|(a, b)| square(a - b)).sum();
    (apart / golden.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
}

/// The numbers of a tensor.
pub fn floats(data: TensorData) -> Vec<f32> {
    data.try_into_vec_as::<f32>().unwrap()
}

/// Puts the gradient in the place of each parameter.
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
    named(
        tensors
            .into_iter()
            .filter(|tensor| keep(&tensor.name))
            .collect(),
    )
}

fn named(tensors: Vec<burn_pack::Tensor>) -> Named {
    let values = |tensor: &_| floats(bridge::to_data(tensor).unwrap());
    tensors
        .iter()
        .map(|tensor| (tensor.name.clone(), values(tensor)))
        .collect()
}

fn data(file: &mut SafetensorsStore, name: &str) -> TensorData {
    bridge::to_data(file.get_tensor(name).unwrap().unwrap()).unwrap()
}
