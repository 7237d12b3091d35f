//! Linear layers, with or without an adapter.

use burn::{
    module::{Module, Param},
    nn::Initializer,
    tensor::{Device, FloatDType, Tensor},
};
use stovepipe_kernels::{frozen_linear, linear_by_rows};
use stovepipe_pipeline::{KeyedRng, nn::Dropout};

/// The adapter of one layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rank {
    pub(crate) rank: usize,
    pub(crate) scale: f64,
    pub(crate) dropout: f64,
}

/// How the parameters of a model get their values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Values {
    /// Normal with this standard deviation, and biases of 0.
    Drawn(f64),
    /// From a file, later: until then zeros of this type.
    Loaded(FloatDType),
}

impl Values {
    pub(crate) fn weight<const D: usize>(
        self,
        shape: [usize; D],
        device: &Device,
    ) -> Param<Tensor<D>> {
        match self {
            Self::Drawn(std) => Initializer::Normal { mean: 0.0, std }.init(shape, device),
            Self::Loaded(dtype) => zeros(shape, dtype, device),
        }
    }

    pub(crate) fn bias(self, size: usize, device: &Device) -> Param<Tensor<1>> {
        match self {
            Self::Drawn(_) => Initializer::Zeros.init([size], device),
            Self::Loaded(dtype) => zeros([size], dtype, device),
        }
    }

    pub(crate) fn gamma(self, size: usize, device: &Device) -> Param<Tensor<1>> {
        match self {
            Self::Drawn(_) => Initializer::Ones.init([size], device),
            // In f32, whatever the weights have: its type is the one in which blocks compute.
            Self::Loaded(_) => zeros([size], FloatDType::F32, device),
        }
    }
}

/// Zeros, of which there is one in memory. Not lazy: whoever measures a layer has to see the type, and whether
/// it is trained.
fn zeros<const D: usize>(
    shape: [usize; D],
    dtype: FloatDType,
    device: &Device,
) -> Param<Tensor<D>> {
    let zero = Tensor::<D>::zeros([1; D], (device, dtype.into()));
    Param::from_tensor(zero.expand(shape))
}

/// x · weightᵀ + bias, in PyTorch's layout, so that files need no transposition: `[…, in]` to `[…, out]`.
#[derive(Module, Debug)]
pub struct DecoderLinear {
    /// `[out, in]`.
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
    lora: Option<Lora>,
    is_frozen: bool,
}

/// What an adapter adds: s · B A · dropout(x) (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
/// Models", 2021).
#[derive(Module, Debug)]
struct Lora {
    /// A, `[rank, in]`.
    a: Param<Tensor<2>>,
    /// B, `[out, rank]`.
    b: Param<Tensor<2>>,
    dropout: Dropout,
    #[module(skip)]
    scale: f64,
}

impl DecoderLinear {
    pub(crate) fn new(
        [from, to]: [usize; 2],
        has_bias: bool,
        values: Values,
        device: &Device,
    ) -> Self {
        Self {
            weight: values.weight([to, from], device),
            bias: has_bias.then(|| values.bias(to, device)),
            lora: None,
            is_frozen: false,
        }
    }

    pub(crate) fn forward<const D: usize>(&self, x: Tensor<D>, rng: &mut KeyedRng) -> Tensor<D> {
        let (weight, bias) = (self.weight.val(), self.bias.as_ref().map(|bias| bias.val()));
        let y = match self.is_frozen {
            true => frozen_linear(x.clone(), weight, bias),
            false => linear_by_rows(x.clone(), like(weight, &x), bias.map(|own| like(own, &x))),
        };
        let Some(lora) = &self.lora else { return y };
        let x = lora.dropout.forward(x, rng);
        let inner = linear_by_rows(x, lora.a.val(), None).mul_scalar(lora.scale);
        y + linear_by_rows(inner, lora.b.val(), None)
    }

    /// Freezes the layer, and gives it an adapter. A is drawn as PyTorch's `kaiming_uniform_` with a = √5
    /// draws it, from ±1/√in; B is 0.
    pub(crate) fn adapted(self, rank: Option<Rank>, device: &Device) -> Self {
        let [to, from] = self.weight.shape().dims();
        let lora = rank.map(|rank| {
            let bound = 1.0 / (from as f64).sqrt();
            let (min, max) = (-bound, bound);
            Lora {
                a: Initializer::Uniform { min, max }.init([rank.rank, from], device),
                b: Initializer::Zeros.init([to, rank.rank], device),
                dropout: Dropout::new(rank.dropout),
                scale: rank.scale,
            }
        });
        Self {
            weight: frozen(self.weight),
            bias: self.bias.map(frozen),
            lora,
            is_frozen: true,
        }
    }

    /// s · B A in f32, if there is an adapter.
    pub(crate) fn delta(&self) -> Option<Tensor<2>> {
        let lora = self.lora.as_ref()?;
        let [a, b] = [&lora.a, &lora.b].map(|param| param.val().inner().cast(FloatDType::F32));
        Some(b.matmul(a).mul_scalar(lora.scale))
    }
}

/// A parameter in the type of `x`: a frozen base may have fewer bits than what is computed with it.
pub(crate) fn like<const D: usize, const E: usize>(param: Tensor<D>, x: &Tensor<E>) -> Tensor<D> {
    match param.dtype() == x.dtype() {
        true => param,
        false => param.cast(x.dtype()),
    }
}

/// A parameter without gradients. Burn's `freeze` would also turn off dropout.
pub(crate) fn frozen<const D: usize>(param: Param<Tensor<D>>) -> Param<Tensor<D>> {
    param.set_require_grad(false)
}
