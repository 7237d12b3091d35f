//! Dropout that keeps little for its gradient.

use burn::{backend::DispatchTensor, tensor::Tensor};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, Operation, contiguous, tensor, values};

use crate::{
    planes::{in_shares, joined, vectorised},
    random::{Bits, Mask},
};

/// Multiplies by the factors of a mask, which has as many numbers as `x`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::{dropout, random::{Draw, Mask}};
///
/// let draw = Draw { key: [1, 2], first: 0, samples: 2, each: 50 };
/// let mask = Mask::new(draw, 0.5, 2.0);
/// let x = Tensor::<2>::ones([2, 50], &Device::flex().autodiff()).require_grad();
/// let y = dropout(x.clone(), mask);
/// let of_x = x.grad(&y.clone().sum().backward()).unwrap();
/// assert_eq!(y.inner().to_data(), of_x.to_data()); // zeros and twos
/// ```
///
/// # Panics
///
/// If there are more or fewer numbers.
#[must_use]
pub fn dropout<const D: usize>(x: Tensor<D>, mask: Mask) -> Tensor<D> {
    let numbers = x.dims().iter().product::<usize>();
    assert_eq!(mask.count(), numbers, "the numbers of the mask");
    if numbers == 0 {
        return x;
    }
    if let Some(operand) = Operand::of(&x)
        && let Some((output, ())) = OnCpu(mask.bits()).run([operand])
    {
        return output.into_tensor();
    }
    let everywhere = Everywhere::<D>(mask);
    match everywhere.run([x.clone().into_dispatch()]) {
        Some(output) => Tensor::from_dispatch(output),
        None => everywhere.times(x),
    }
}

/// Numbers that are copied and multiplied while they are in the cache.
const BLOCK: usize = 4096;

#[derive(Clone, Debug)]
struct OnCpu(Bits);

impl OnCpu {
    fn times(&self, x: FlexTensor) -> FlexTensor {
        let x = contiguous(x);
        let all = values(&x);
        let shares = in_shares(all.len(), all.len(), &|range| {
            let mut output = Vec::with_capacity(range.len());
            for begin in range.clone().step_by(BLOCK) {
                let end = range.end.min(begin + BLOCK);
                output.extend_from_slice(&all[begin..end]);
                let own = &mut output[begin - range.start..];
                vectorised!(|| self.0.multiply(begin, own));
            }
            output
        });
        tensor(joined(shares), x.layout().shape().clone())
    }
}

impl Kernel<1> for OnCpu {
    type Saved = ();

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, ()) {
        (self.times(x), ())
    }

    fn backward(&self, (): (), gradient: FlexTensor, _: [bool; 1]) -> [Option<FlexTensor>; 1] {
        [Some(self.times(gradient))]
    }
}

#[derive(Clone, Copy, Debug)]
struct Everywhere<const D: usize>(Mask);

impl<const D: usize> Everywhere<D> {
    fn times(&self, x: Tensor<D>) -> Tensor<D> {
        let factors = self.0.factors(&x.device().inner()).cast(x.dtype());
        let factors = factors.reshape(x.dims());
        x * factors
    }
}

impl<const D: usize> Operation<1> for Everywhere<D> {
    const USES_INPUTS: bool = false;

    fn forward(&self, [x]: [DispatchTensor; 1]) -> DispatchTensor {
        self.times(Tensor::from_dispatch(x)).into_dispatch()
    }

    fn backward(
        &self,
        _: [DispatchTensor; 1],
        gradient: DispatchTensor,
        _: [bool; 1],
    ) -> [Option<DispatchTensor>; 1] {
        [Some(
            self.times(Tensor::from_dispatch(gradient)).into_dispatch(),
        )]
    }
}
