//! The gate of a feed-forward network.

use burn::tensor::{Tensor, activation};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::{
    exponential::exp,
    planes::{in_shares, joined, joined_pairs, vectorised},
    rows::{change_by, change_pairs},
};

/// silu(gate) · x, where silu(g) = g / (1 + e^−g) (Shazeer, "GLU Variants Improve Transformer", 2020).
/// Both have the same shape.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::swiglu;
///
/// let device = Device::flex();
/// let gate = Tensor::<1>::from_floats([0.0, 1.0, -1.0], &device);
/// let y = swiglu(gate, Tensor::from_floats([5.0, 2.0, 2.0], &device));
/// let y = y.into_data().try_to_vec::<f32>().unwrap();
/// assert!(y.iter().zip([0.0, 1.462_117, -0.537_883]).all(|(y, x)| (y - x).abs() < 1e-6));
/// ```
///
/// # Panics
///
/// Like Burn, if the shapes differ.
#[must_use]
pub fn swiglu<const D: usize>(gate: Tensor<D>, x: Tensor<D>) -> Tensor<D> {
    by_kernel(&gate, &x).unwrap_or_else(|| activation::silu(gate) * x)
}

fn by_kernel<const D: usize>(gate: &Tensor<D>, x: &Tensor<D>) -> Option<Tensor<D>> {
    if gate.dims() != x.dims() {
        return None;
    }
    let (output, _) = SwiGlu.run([Operand::of(gate)?, Operand::of(x)?])?;
    Some(output.into_tensor())
}

#[derive(Clone, Debug)]
struct SwiGlu;

impl Kernel<2> for SwiGlu {
    /// The gate, and what it is multiplied with.
    type Saved = [FlexTensor; 2];

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, [FlexTensor; 2]) {
        let [gate, x] = inputs.map(contiguous);
        let (gates, all) = (values(&gate), values(&x));
        let shares = in_shares(all.len(), all.len(), &|range| {
            let mut output = all[range.clone()].to_vec();
            vectorised!(|| change_by(&mut output, &gates[range], |x, gate| x * silu(gate)));
            output
        });
        let output = tensor(joined(shares), x.layout().shape().clone());
        (output, [gate, x])
    }

    fn backward(
        &self,
        [gate, x]: [FlexTensor; 2],
        gradient: FlexTensor,
        _: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = contiguous(gradient);
        let (gates, all, slopes) = (values(&gate), values(&x), values(&gradient));
        let shares = in_shares(all.len(), all.len(), &|range| {
            let mut of_gate = slopes[range.clone()].to_vec();
            let mut of_x = all[range.clone()].to_vec();
            vectorised!(|| change_pairs(&mut of_gate, &mut of_x, &gates[range], sloped));
            (of_gate, of_x)
        });
        let (of_gate, of_x) = joined_pairs(shares);
        let shape = x.layout().shape();
        [of_gate, of_x].map(|of_input| Some(tensor(of_input, shape.clone())))
    }
}

#[inline(always)]
fn silu(gate: f32) -> f32 {
    gate / (1.0 + exp(-gate))
}

/// The gradients of the gate and of x, given that of the output.
#[inline(always)]
fn sloped(slope: f32, x: f32, gate: f32) -> (f32, f32) {
    let share = 1.0 / (1.0 + exp(-gate));
    let silu = gate * share;
    (slope * x * (share + silu * (1.0 - share)), slope * silu)
}
