//! The Gaussian error linear unit.

use std::f32::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::{
    exponential::normal,
    planes::{in_shares, joined, vectorised},
    rows::{change, change_by},
};

/// x · Φ(x), where Φ is the normal distribution's cumulative function (Hendrycks and Gimpel,
/// "Gaussian Error Linear Units", 2016): the exact form, PyTorch's default, to within 1e-6.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::gelu;
///
/// let x = Tensor::<1>::from_floats([-1.0, 0.0, 1.0], &Device::flex());
/// let y = gelu(x).into_data().try_to_vec::<f32>().unwrap();
/// assert!((y[0] + 0.158_655).abs() < 1e-6 && y[1] == 0.0 && (y[2] - 0.841_345).abs() < 1e-6);
/// ```
#[must_use]
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let output = Operand::of(&x).and_then(|operand| Gelu.run([operand]));
    output.map_or_else(|| activation::gelu(x), |(output, _)| output.into_tensor())
}

#[derive(Clone, Debug)]
struct Gelu;

impl Kernel<1> for Gelu {
    type Saved = FlexTensor;

    fn forward(&self, inputs: [FlexTensor; 1]) -> (FlexTensor, FlexTensor) {
        let [x] = inputs.map(contiguous);
        let all = values(&x);
        let shares = in_shares(all.len(), all.len(), &|range| {
            in_blocks(
                &all[range],
                #[inline(always)]
                |output, _| change(output, activated),
            )
        });
        (tensor(joined(shares), x.layout().shape().clone()), x)
    }

    fn backward(
        &self,
        x: FlexTensor,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradient = contiguous(gradient);
        let (all, gradients) = (values(&x), values(&gradient));
        let shares = in_shares(all.len(), all.len(), &|range| {
            let x = &all[range.clone()];
            in_blocks(
                &gradients[range],
                #[inline(always)]
                |of_x, begin| {
                    let x = &x[begin..][..of_x.len()];
                    change_by(of_x, x, sloped);
                },
            )
        });
        [Some(tensor(joined(shares), x.layout().shape().clone()))]
    }
}

#[inline(always)]
fn activated(x: f32) -> f32 {
    x * normal(x).0
}

#[inline(always)]
fn sloped(gradient: f32, x: f32) -> f32 {
    const PEAK: f32 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2 / 2.0; // 1 / √2π
    let (share, bell) = normal(x);
    gradient * (share + x * bell * PEAK)
}

/// Copies values and changes them block by block, while each is in the cache. `work` gets a block and
/// its start.
#[inline(always)]
fn in_blocks(values: &[f32], work: impl Fn(&mut [f32], usize)) -> Vec<f32> {
    const BLOCK: usize = 1 << 11;
    let mut copy = Vec::with_capacity(values.len());
    vectorised!(|| for block in values.chunks(BLOCK) {
        let begin = copy.len();
        copy.extend_from_slice(block);
        work(&mut copy[begin..], begin);
    });
    copy
}
