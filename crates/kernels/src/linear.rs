//! Linear layers as one product each way.
//!
//! Burn's clears its output before the product, copies matrices to turn them, and adds the bias in a
//! pass of its own.

use std::ops::Range;

use burn::tensor::{Shape, Tensor, module};
use burn_flex::FlexTensor;
use faer::MatRef;

use crate::{
    differentiable::{self, Kernel, Operand},
    planes::{in_order, in_shares, joined, numbers, tensor},
    products::{matrix, matrix_mut, multiply, multiply_and_add},
    rows::{ROWS, sum_of_rows, width},
};

/// x · weight + bias: `[…, in]` by `[in, out]` to `[…, out]`.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::linear;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
/// let weight = Tensor::from_floats([[1.0, 0.0, 3.0], [0.0, 1.0, 4.0]], &device);
/// let bias = Tensor::from_floats([0.5, 0.5, 0.5], &device);
/// let y = linear(x, weight, Some(bias)).into_data().try_to_vec::<f32>()?;
/// assert_eq!(y, [1.5, 2.5, 11.5]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
///
/// As Burn does, if the sizes do not fit.
#[must_use]
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    by_product(&x, &weight, bias.as_ref(), Turned::No)
        .unwrap_or_else(|| module::linear(x, weight, bias))
}

/// x · tableᵀ: `[…, d]` by `[rows, d]` to `[…, rows]`, such as from states to logits by the table of an
/// embedding.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::linear_by_rows;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
/// let table = Tensor::from_floats([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]], &device);
/// let y = linear_by_rows(x, table).into_data().try_to_vec::<f32>()?;
/// assert_eq!(y, [1.0, 2.0, 11.0]);
/// # Ok::<(), burn::tensor::DataError>(())
/// ```
///
/// # Panics
///
/// As Burn does, if the sizes do not fit.
#[must_use]
pub fn linear_by_rows<const D: usize>(x: Tensor<D>, table: Tensor<2>) -> Tensor<D> {
    by_product(&x, &table, None, Turned::Yes)
        .unwrap_or_else(|| module::linear(x, table.transpose(), None))
}

fn by_product<const D: usize>(
    x: &Tensor<D>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    turned: Turned,
) -> Option<Tensor<D>> {
    let [input, output] = turned.sizes(weight.dims());
    let mut shape = x.dims();
    let fits = shape[D - 1] == input && bias.is_none_or(|bias| bias.dims() == [output]);
    if !fits || output == 0 || shape.contains(&0) {
        return None;
    }
    shape[D - 1] = output;
    let kernel = Product {
        turned,
        output: shape.into(),
    };
    let (x, weight) = (Operand::of(x)?, Operand::of(weight)?);
    let (output, _) = match bias {
        Some(bias) => differentiable::run(kernel, [x, weight, Operand::of(bias)?])?,
        None => differentiable::run(kernel, [x, weight])?,
    };
    Some(output.into_tensor())
}

/// Whether the weight has a row for each number of the output, not of the input.
#[derive(Clone, Copy, Debug)]
enum Turned {
    No,
    Yes,
}

impl Turned {
    /// Numbers of a row of the input and of the output, if the weight has this shape.
    fn sizes(self, [rows, columns]: [usize; 2]) -> [usize; 2] {
        match self {
            Self::No => [rows, columns],
            Self::Yes => [columns, rows],
        }
    }
}

#[derive(Clone, Debug)]
struct Product {
    turned: Turned,
    output: Shape,
}

#[derive(Clone, Debug)]
struct Saved {
    x: FlexTensor,
    weight: FlexTensor,
}

impl Kernel<2> for Product {
    const WEIGHT: Option<usize> = Some(1);

    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        let [x, weight] = inputs.map(in_order);
        let saved = Saved { x, weight };
        (self.product(&saved, &[]), saved)
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        [wants_x, wants_weight]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = in_order(gradient);
        [
            wants_x.then(|| self.of_x(&saved, &gradient)),
            wants_weight.then(|| self.of_weight(&saved, &gradient)),
        ]
    }
}

impl Kernel<3> for Product {
    const WEIGHT: Option<usize> = Some(1);

    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        let [x, weight, bias] = inputs.map(in_order);
        let saved = Saved { x, weight };
        (self.product(&saved, numbers(&bias)), saved)
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        [wants_x, wants_weight, wants_bias]: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = in_order(gradient);
        let of_bias = || tensor(sum_of_rows(&gradient), [width(&gradient)]);
        [
            wants_x.then(|| self.of_x(&saved, &gradient)),
            wants_weight.then(|| self.of_weight(&saved, &gradient)),
            wants_bias.then(of_bias),
        ]
    }
}

impl Product {
    fn sizes(&self, weight: &FlexTensor) -> [usize; 2] {
        self.turned.sizes(weight.layout().shape().dims())
    }

    /// The weight as `[in, out]`.
    fn matrix<'a>(&self, weight: &'a FlexTensor) -> MatRef<'a, f32> {
        let [rows, columns] = weight.layout().shape().dims();
        let weight = matrix(numbers(weight), rows, columns);
        match self.turned {
            Turned::No => weight,
            Turned::Yes => weight.transpose(),
        }
    }

    fn product(&self, Saved { x, weight }: &Saved, bias: &[f32]) -> FlexTensor {
        let [from, to] = self.sizes(weight);
        let weight = self.matrix(weight);
        let output = for_rows(numbers(x), from, to, |x, rows| {
            if bias.is_empty() {
                let mut output = vec![0.0; rows * to];
                multiply(matrix_mut(&mut output, rows, to), x, weight, 1.0);
                return output;
            }
            let mut output = Vec::with_capacity(rows * to);
            (0..rows).for_each(|_| output.extend_from_slice(bias));
            multiply_and_add(matrix_mut(&mut output, rows, to), x, weight);
            output
        });
        tensor(output, self.output.clone())
    }

    fn of_x(&self, Saved { x, weight }: &Saved, gradient: &FlexTensor) -> FlexTensor {
        let [from, to] = self.sizes(weight);
        let weight = self.matrix(weight).transpose();
        let of_x = for_rows(numbers(gradient), to, from, |gradient, rows| {
            let mut of_x = vec![0.0; rows * from];
            multiply(matrix_mut(&mut of_x, rows, from), gradient, weight, 1.0);
            of_x
        });
        tensor(of_x, x.layout().shape().clone())
    }

    fn of_weight(&self, Saved { x, weight }: &Saved, gradient: &FlexTensor) -> FlexTensor {
        let (tall, wide) = match self.turned {
            Turned::No => (x, gradient),
            Turned::Yes => (gradient, x),
        };
        let size = numbers(tall).len().max(numbers(wide).len());
        let shares = in_shares(width(tall), size, |columns| product_of(tall, columns, wide));
        tensor(joined(shares), weight.layout().shape().clone())
    }
}

/// Runs `work` on blocks of rows, side by side, and joins what it makes of them.
fn for_rows(
    numbers: &[f32],
    from: usize,
    to: usize,
    work: impl Fn(MatRef<'_, f32>, usize) -> Vec<f32> + Sync,
) -> Vec<f32> {
    let rows = numbers.len() / from;
    joined(in_shares(rows, rows * from.max(to), |range| {
        let block = &numbers[range.start * from..range.end * from];
        work(matrix(block, range.len(), from), range.len())
    }))
}

/// Some columns of `a`, turned, times `b`.
fn product_of(a: &FlexTensor, columns: Range<usize>, b: &FlexTensor) -> Vec<f32> {
    // Turned matrices are multiplied faster in blocks that stay in the cache; but what they are added
    // to must stay there, too.
    const SMALL: usize = 1 << 18;
    let (width_of_a, width_of_b) = (width(a), width(b));
    let mut sum = vec![0.0; columns.len() * width_of_b];
    let rows = match sum.len() <= SMALL {
        true => ROWS,
        false => numbers(a).len() / width_of_a,
    };
    let blocks = numbers(a).chunks(rows * width_of_a);
    for (a, b) in blocks.zip(numbers(b).chunks(rows * width_of_b)) {
        let rows = a.len() / width_of_a;
        let a = matrix(a, rows, width_of_a).subcols(columns.start, columns.len());
        let target = matrix_mut(&mut sum, columns.len(), width_of_b);
        multiply_and_add(target, a.transpose(), matrix(b, rows, width_of_b));
    }
    sum
}
