//! The gated network.

use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use stovepipe_kernels::swiglu;
use stovepipe_pipeline::KeyedRng;

use crate::{
    config::DecoderConfig,
    linear::{DecoderLinear, Values},
};

/// down(silu(gate(x)) · up(x)): `[n, length, width]` to the same.
#[derive(Module, Debug)]
pub struct DecoderMlp {
    gate_proj: DecoderLinear,
    up_proj: DecoderLinear,
    down_proj: DecoderLinear,
}

impl DecoderMlp {
    pub(crate) fn new(config: &DecoderConfig, values: Values, device: &Device) -> Self {
        let (outer, inner) = (config.width, config.feed_forward);
        let linear = |sizes| DecoderLinear::new(sizes, config.mlp_bias, values, device);
        Self {
            gate_proj: linear([outer, inner]),
            up_proj: linear([outer, inner]),
            down_proj: linear([inner, outer]),
        }
    }

    pub(crate) fn forward(&self, x: Tensor<3>, rng: &mut KeyedRng) -> Tensor<3> {
        let gate = self.gate_proj.forward(x.clone(), rng);
        let up = self.up_proj.forward(x, rng);
        self.down_proj.forward(swiglu(gate, up), rng)
    }

    /// Changes each linear layer, given its name in a block.
    pub(crate) fn map(self, linear: &impl Fn(&str, DecoderLinear) -> DecoderLinear) -> Self {
        Self {
            gate_proj: linear("mlp.gate_proj", self.gate_proj),
            up_proj: linear("mlp.up_proj", self.up_proj),
            down_proj: linear("mlp.down_proj", self.down_proj),
        }
    }

    pub(crate) fn linears(&self) -> [&DecoderLinear; 3] {
        [&self.gate_proj, &self.up_proj, &self.down_proj]
    }
}
