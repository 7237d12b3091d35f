//! Linear layers that are not trained: their weights may have fewer bits than what is computed with them.
//!
//! Nothing is kept for the backward pass but the weight itself. Cast beforehand, a copy of it in f32 would
//! stay on each tape.

use burn::{
    backend::DispatchTensor,
    tensor::{DType, FloatDType, Shape, Tensor},
};
use burn_flex::FlexTensor;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use stovepipe_autodiff::{Kernel, Operand, Operation, contiguous, stored, tensor, values};

use crate::{
    linear::for_rows,
    products::{matrix, matrix_mut, multiply, multiply_and_add},
};

/// x · weightᵀ + bias in the type of `x`: `[…, in]` by `[out, in]` to `[…, out]`. The weight and the bias
/// have no gradient, and may be of f16 or bf16 where `x` is of f32.
///
/// ```
/// use burn::tensor::{DType, Device, Tensor};
/// use stovepipe_kernels::frozen_linear;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
/// let weight = Tensor::<2>::from_floats([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]], &device);
/// let y = frozen_linear(x, weight.cast(DType::BF16), None);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [1.0, 2.0, 11.0]);
/// ```
///
/// # Panics
///
/// Like Burn, if the sizes do not fit.
#[must_use]
pub fn frozen_linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    let (weight, bias) = (weight.inner(), bias.map(Tensor::inner));
    by_kernel(&x, &weight, bias.as_ref()).unwrap_or_else(|| by_burn(x, weight, bias))
}

fn by_kernel<const D: usize>(
    x: &Tensor<D>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
) -> Option<Tensor<D>> {
    let [to, from] = weight.dims();
    let mut shape = x.dims();
    let fits = shape[D - 1] == from && bias.is_none_or(|bias| bias.dims() == [to]);
    if !fits || to == 0 || shape.contains(&0) {
        return None;
    }
    shape[D - 1] = to;
    let bias = match bias {
        Some(bias) => widened(&stored(bias)?)?,
        None => Vec::new(),
    };
    let kernel = FrozenProduct {
        weight: floats(stored(weight)?)?,
        sizes: [from, to],
        bias,
        output: shape.into(),
    };
    let (output, _) = kernel.run([Operand::of(x)?])?;
    Some(output.into_tensor())
}

/// A tensor of a type that kernels read, its values next to each other.
pub(crate) fn floats(own: FlexTensor) -> Option<FlexTensor> {
    let is_known = matches!(own.dtype(), DType::F32 | DType::F16 | DType::BF16);
    is_known.then(|| own.to_contiguous())
}

/// The values in f32.
fn widened(own: &FlexTensor) -> Option<Vec<f32>> {
    match own.dtype() {
        DType::F32 => own.as_slice::<f32>().map(<[f32]>::to_vec),
        DType::F16 => own.as_slice::<f16>().map(|values| values.to_f32_vec()),
        DType::BF16 => own.as_slice::<bf16>().map(|values| values.to_f32_vec()),
        _ => None,
    }
}

#[derive(Clone, Debug)]
struct FrozenProduct {
    /// `[out, in]`.
    weight: FlexTensor,
    /// In and out.
    sizes: [usize; 2],
    bias: Vec<f32>,
    output: Shape,
}

impl Kernel<1> for FrozenProduct {
    /// The shape of the input.
    type Saved = Shape;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Shape) {
        let (x, [from, to]) = (contiguous(x), self.sizes);
        let output = with_floats(&self.weight, |weight| {
            let weight = matrix(weight, to, from).transpose();
            for_rows(values(&x), from, to, |x, rows| {
                if self.bias.is_empty() {
                    let mut output = vec![0.0; rows * to];
                    multiply(matrix_mut(&mut output, rows, to), x, weight, 1.0);
                    return output;
                }
                let mut output = self.bias.repeat(rows);
                multiply_and_add(matrix_mut(&mut output, rows, to), x, weight);
                output
            })
        });
        (
            tensor(output, self.output.clone()),
            x.layout().shape().clone(),
        )
    }

    fn backward(
        &self,
        shape: Shape,
        gradient: FlexTensor,
        _: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let (gradient, [from, to]) = (contiguous(gradient), self.sizes);
        let of_x = with_floats(&self.weight, |weight| {
            let weight = matrix(weight, to, from);
            for_rows(values(&gradient), to, from, |gradient, rows| {
                let mut of_x = vec![0.0; rows * from];
                multiply(matrix_mut(&mut of_x, rows, from), gradient, weight, 1.0);
                of_x
            })
        });
        [Some(tensor(of_x, shape))]
    }
}

/// Works with a weight in f32, which is a copy for the time being if it has fewer bits.
pub(crate) fn with_floats<R>(weight: &FlexTensor, work: impl FnOnce(&[f32]) -> R) -> R {
    match weight.as_slice::<f32>() {
        Some(weight) => work(weight),
        None => work(&widened(weight).unwrap_or_default()),
    }
}

/// On other backends, and in other precisions.
fn by_burn<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let operation = FrozenLinear::<D> { weight, bias };
    match operation.clone().run([x.clone().into_dispatch()]) {
        Some(output) => Tensor::from_dispatch(output),
        // Under Burn's gradient checkpointing.
        None => {
            let (weight, bias) = operation.cast(FloatDType::from(x.dtype()));
            burn::tensor::module::linear(x, weight.transpose(), bias)
        }
    }
}

#[derive(Clone, Debug)]
struct FrozenLinear<const D: usize> {
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
}

impl<const D: usize> FrozenLinear<D> {
    fn cast(&self, dtype: FloatDType) -> (Tensor<2>, Option<Tensor<1>>) {
        let bias = self.bias.clone().map(|bias| bias.cast(dtype));
        (self.weight.clone().cast(dtype), bias)
    }
}

impl<const D: usize> Operation<1> for FrozenLinear<D> {
    const USES_INPUTS: bool = false;

    fn forward(&self, [x]: [DispatchTensor; 1]) -> DispatchTensor {
        let x = Tensor::<D>::from_dispatch(x);
        let (weight, bias) = self.cast(FloatDType::from(x.dtype()));
        burn::tensor::module::linear(x, weight.transpose(), bias).into_dispatch()
    }

    fn backward(
        &self,
        _: [DispatchTensor; 1],
        gradient: DispatchTensor,
        _: [bool; 1],
    ) -> [Option<DispatchTensor>; 1] {
        let gradient = Tensor::<D>::from_dispatch(gradient);
        let (weight, _) = self.cast(FloatDType::from(gradient.dtype()));
        [Some(
            burn::tensor::module::linear(gradient, weight, None).into_dispatch(),
        )]
    }
}
