//! Linear layers as one product each way.
//!
//! Burn's layer clears its output before the product, copies matrices to transpose them, and adds
//! the bias in a separate pass.

use std::ops::Range;

use burn::tensor::{Shape, Tensor};
use burn_flex::FlexTensor;
use faer::MatRef;
use stovepipe_autodiff::{Kernel, Operand, contiguous, tensor, values};

use crate::{
    everywhere,
    planes::{in_shares, joined},
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
/// let y = linear(x, weight, Some(bias)).into_data().try_to_vec::<f32>().unwrap();
/// assert_eq!(y, [1.5, 2.5, 11.5]);
/// ```
///
/// # Panics
///
/// Like Burn, if the sizes do not fit.
#[must_use]
pub fn linear<const D: usize>(
    x: Tensor<D>,
    weight: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    by_product(&x, &weight, bias.as_ref(), false)
        .unwrap_or_else(|| everywhere::linear(x, weight, bias, false))
}

/// x · tableᵀ + bias: `[…, d]` by `[rows, d]` to `[…, rows]`, such as from states to logits with the
/// table of an embedding, or with a weight in PyTorch's layout.
///
/// ```
/// use burn::tensor::{Device, Tensor};
/// use stovepipe_kernels::linear_by_rows;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::from_floats([[1.0, 2.0]], &device);
/// let table = Tensor::from_floats([[1.0, 0.0], [0.0, 1.0], [3.0, 4.0]], &device);
/// let y = linear_by_rows(x, table, None).into_data().try_to_vec::<f32>().unwrap();
/// assert_eq!(y, [1.0, 2.0, 11.0]);
/// ```
///
/// # Panics
///
/// Like Burn, if the sizes do not fit.
#[must_use]
pub fn linear_by_rows<const D: usize>(
    x: Tensor<D>,
    table: Tensor<2>,
    bias: Option<Tensor<1>>,
) -> Tensor<D> {
    by_product(&x, &table, bias.as_ref(), true)
        .unwrap_or_else(|| everywhere::linear(x, table, bias, true))
}

fn by_product<const D: usize>(
    x: &Tensor<D>,
    weight: &Tensor<2>,
    bias: Option<&Tensor<1>>,
    by_rows: bool,
) -> Option<Tensor<D>> {
    let [input, output] = sizes(weight.dims(), by_rows);
    let mut shape = x.dims();
    let fits = shape[D - 1] == input && bias.is_none_or(|bias| bias.dims() == [output]);
    if !fits || output == 0 || shape.contains(&0) {
        return None;
    }
    shape[D - 1] = output;
    let output = shape.into();
    let kernel = Product { by_rows, output };
    let (x, weight) = (Operand::of(x)?, Operand::of(weight)?);
    let (output, _) = match bias {
        Some(bias) => kernel.run([x, weight, Operand::of(bias)?])?,
        None => kernel.run([x, weight])?,
    };
    Some(output.into_tensor())
}

/// The lengths of a row of the input and of the output, for a weight of this shape.
fn sizes([rows, columns]: [usize; 2], by_rows: bool) -> [usize; 2] {
    match by_rows {
        true => [columns, rows],
        false => [rows, columns],
    }
}

#[derive(Clone, Debug)]
struct Product {
    /// The weight has a row for each value of the output, not of the input.
    by_rows: bool,
    output: Shape,
}

/// The input and the weight.
type Saved = [FlexTensor; 2];

impl Kernel<2> for Product {
    const WEIGHT: Option<usize> = Some(1);

    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        let [x, weight] = inputs.map(contiguous);
        (self.product(&x, &weight, &[]), [x, weight])
    }

    fn backward(
        &self,
        [x, weight]: Saved,
        gradient: FlexTensor,
        [needs_x, needs_weight]: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let gradient = contiguous(gradient);
        [
            needs_x.then(|| self.of_x(&x, &weight, &gradient)),
            needs_weight.then(|| self.of_weight(&x, &weight, &gradient)),
        ]
    }
}

impl Kernel<3> for Product {
    const WEIGHT: Option<usize> = Some(1);

    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        let [x, weight, bias] = inputs.map(contiguous);
        (self.product(&x, &weight, values(&bias)), [x, weight])
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        [needs_x, needs_weight, needs_bias]: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = contiguous(gradient);
        let of_bias = needs_bias.then(|| tensor(sum_of_rows(&gradient), [width(&gradient)]));
        let [of_x, of_weight] = self.backward(saved, gradient, [needs_x, needs_weight]);
        [of_x, of_weight, of_bias]
    }
}

impl Product {
    /// The weight as a matrix `[in, out]`, and these two sizes.
    fn matrix<'a>(&self, weight: &'a FlexTensor) -> (MatRef<'a, f32>, [usize; 2]) {
        let shape @ [rows, columns] = weight.layout().shape().dims();
        let weight = matrix(values(weight), rows, columns);
        let sizes = sizes(shape, self.by_rows);
        match self.by_rows {
            true => (weight.transpose(), sizes),
            false => (weight, sizes),
        }
    }

    fn product(&self, x: &FlexTensor, weight: &FlexTensor, bias: &[f32]) -> FlexTensor {
        let (weight, [from, to]) = self.matrix(weight);
        let output = for_rows(values(x), from, to, |x, rows| {
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

    fn of_x(&self, x: &FlexTensor, weight: &FlexTensor, gradient: &FlexTensor) -> FlexTensor {
        let (weight, [from, to]) = self.matrix(weight);
        let of_x = for_rows(values(gradient), to, from, |gradient, rows| {
            let mut of_x = vec![0.0; rows * from];
            let target = matrix_mut(&mut of_x, rows, from);
            multiply(target, gradient, weight.transpose(), 1.0);
            of_x
        });
        tensor(of_x, x.layout().shape().clone())
    }

    fn of_weight(&self, x: &FlexTensor, weight: &FlexTensor, gradient: &FlexTensor) -> FlexTensor {
        let (a, b) = match self.by_rows {
            true => (gradient, x),
            false => (x, gradient),
        };
        let size = values(a).len().max(values(b).len());
        let shares = in_shares(width(a), size, &|columns| product_of(a, columns, b));
        tensor(joined(shares), weight.layout().shape().clone())
    }
}

/// Runs `work` on shares of the rows in parallel, and joins the results.
pub(crate) fn for_rows(
    values: &[f32],
    from: usize,
    to: usize,
    work: impl Fn(MatRef<'_, f32>, usize) -> Vec<f32> + Sync,
) -> Vec<f32> {
    let rows = values.len() / from;
    joined(in_shares(rows, rows * from.max(to), &|range| {
        let block = &values[range.start * from..range.end * from];
        work(matrix(block, range.len(), from), range.len())
    }))
}

/// aᵀ · b for some columns of `a`.
fn product_of(a: &FlexTensor, columns: Range<usize>, b: &FlexTensor) -> Vec<f32> {
    // The product of a transposed matrix is faster in blocks that stay in the cache, if the sum
    // stays there, too. Whether it does is asked for all columns: shares must add in the same order.
    const SMALL: usize = 1 << 18;
    let (width_of_a, width_of_b) = (width(a), width(b));
    let mut sum = vec![0.0; columns.len() * width_of_b];
    let all = values(a).len() / width_of_a;
    let rows = if width_of_a * width_of_b <= SMALL {
        ROWS
    } else {
        all
    };
    let blocks = values(a).chunks(rows * width_of_a);
    for (a, b) in blocks.zip(values(b).chunks(rows * width_of_b)) {
        let rows = a.len() / width_of_a;
        let a = matrix(a, rows, width_of_a).subcols(columns.start, columns.len());
        let target = matrix_mut(&mut sum, columns.len(), width_of_b);
        multiply_and_add(target, a.transpose(), matrix(b, rows, width_of_b));
    }
    sum
}
