//! The cross-entropy of a linear layer's outputs, of which only a few rows are in memory at once.
//!
//! The logits of a language model are its largest tensor by far: 512 tokens and 128,000 words take 250 MiB, and
//! their gradient as much again. Here a block of rows is multiplied by the table, turned into its losses
//! and its gradient, and multiplied back (cf. Wijmans et al., "Cut Your Losses in Large-Vocabulary
//! Language Models", 2024). Tokens that do not count are left out of the products.

use burn::tensor::{Int, Tensor};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, contiguous, stored, tensor, values};

use crate::{
    everywhere::{self, rows_at_once},
    exponential::exp,
    frozen::{floats, with_floats},
    planes::{fill_shares, in_shares, joined, vectorised},
    products::{matrix, matrix_mut, multiply, multiply_and_add},
    rows::{change, largest, sum_of},
};

/// The sum over rows of the softmax cross-entropy of x · tableᵀ, as one element: `x` is `[n, d]`, `table`
/// `[classes, d]`, `target` `[n]`. Rows whose target is `ignored` do not count. Smoothing ε gives every class
/// ε / classes of the target. Also returns for how many rows the target has the largest logit, and for how many
/// it is among the five largest; of equal logits, the first one counts as larger.
///
/// Of the logits, 16 MiB are in memory at once, or one row.
///
/// If `table` is outside of `x`'s graph, it has no gradient, and may be of f16 or bf16 where `x` is of f32.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_kernels::linear_cross_entropy;
///
/// let device = Device::flex();
/// let x = Tensor::<2>::zeros([3, 2], &device); // so all classes are equally probable
/// let table = Tensor::<2>::ones([10, 2], &device);
/// let target = Tensor::<1, Int>::from_ints([3, -1, 7], &device);
/// let (loss, right) = linear_cross_entropy(x, table, target, 0.0, Some(-1));
/// assert!((loss.into_scalar::<f32>() - 2.0 * 10f32.ln()).abs() < 1e-5);
/// assert_eq!(right.into_data().try_to_vec::<f32>().unwrap(), [0.0, 1.0]);
/// ```
///
/// # Panics
///
/// Like Burn, if the sizes do not fit, or a target that counts is not a class.
#[must_use]
pub fn linear_cross_entropy(
    x: Tensor<2>,
    table: Tensor<2>,
    target: Tensor<1, Int>,
    smoothing: f64,
    ignored: Option<i64>,
) -> (Tensor<1>, Tensor<1>) {
    let ways = (smoothing, ignored);
    let found = by_kernel(&x, &table, &target, ways)
        .unwrap_or_else(|| everywhere::linear_cross_entropy(x, table, target, ways));
    let right = found.clone().narrow(0, 1, 2).detach();
    (found.narrow(0, 0, 1), right)
}

fn by_kernel(
    x: &Tensor<2>,
    table: &Tensor<2>,
    target: &Tensor<1, Int>,
    (smoothing, ignored): (f64, Option<i64>),
) -> Option<Tensor<1>> {
    let ([rows, width], [classes, of_table]) = (x.dims(), table.dims());
    if width != of_table || target.dims() != [rows] || classes == 0 || width == 0 {
        return None;
    }
    // Read on another device, targets would wait for its queued work.
    let (x, _) = (Operand::of(x)?, stored(table)?);
    let counted = target.to_data();
    let counted = counted.iter::<i64>().enumerate();
    let counted = counted.filter(|(_, class)| Some(*class) != ignored);
    let counted: Vec<_> = counted
        .map(|(row, class)| (row, class_of(class, classes)))
        .collect();
    let entropy = Entropy {
        counted,
        smoothing: smoothing as f32,
        sizes: [rows, classes, width],
        has_gradients: matches!(x, Operand::Tracked(_)),
    };
    let (loss, _) = match table.is_autodiff() {
        true => entropy.run([x, Operand::of(table)?])?,
        false => {
            let table = floats(stored(table)?)?;
            Frozen { entropy, table }.run([x])?
        }
    };
    Some(loss.into_tensor())
}

fn class_of(class: i64, classes: usize) -> usize {
    let found = usize::try_from(class).ok().filter(|&class| class < classes);
    found.unwrap_or_else(|| {
        panic!(
            "the target {class} is not a class from 0 to {}",
            classes - 1
        )
    })
}

#[derive(Clone, Debug)]
struct Entropy {
    /// The rows that count, and their targets.
    counted: Vec<(usize, usize)>,
    smoothing: f32,
    /// Rows, classes, width.
    sizes: [usize; 3],
    has_gradients: bool,
}

/// The gradients of `x` and of the table, for a gradient of 1 of the sum.
type Saved = [Option<FlexTensor>; 2];

impl Kernel<2> for Entropy {
    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 2]) -> (FlexTensor, Saved) {
        let [x, table] = inputs.map(contiguous);
        self.passes(&x, values(&table), self.has_gradients)
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        needed: [bool; 2],
    ) -> [Option<FlexTensor>; 2] {
        let [of_x, of_table] = saved;
        let [needs_x, needs_table] = needed;
        let factor = values(&gradient).first().copied().unwrap_or(0.0);
        let scaled = |own: FlexTensor| {
            let shape = own.layout().shape().clone();
            let values = values(&own).iter().map(|value| value * factor);
            tensor(values.collect(), shape)
        };
        [(of_x, needs_x), (of_table, needs_table)]
            .map(|(own, is_needed)| own.filter(|_| is_needed).map(scaled))
    }
}

/// With a table that is not trained.
#[derive(Clone, Debug)]
struct Frozen {
    entropy: Entropy,
    table: FlexTensor,
}

impl Kernel<1> for Frozen {
    type Saved = Saved;

    fn forward(&self, [x]: [FlexTensor; 1]) -> (FlexTensor, Saved) {
        let x = contiguous(x);
        with_floats(&self.table, |table| self.entropy.passes(&x, table, false))
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        [needs_x]: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let [of_x, _] = Kernel::<2>::backward(&self.entropy, saved, gradient, [needs_x, false]);
        [of_x]
    }
}

impl Entropy {
    /// Forward, and backward if there will be a gradient.
    fn passes(&self, x: &FlexTensor, table: &[f32], trains_table: bool) -> (FlexTensor, Saved) {
        let [rows, classes, width] = self.sizes;
        let x = values(x);
        let table_matrix = matrix(table, classes, width);
        let has_gradients = self.has_gradients;
        let mut of_x = vec![0.0; if has_gradients { rows * width } else { 0 }];
        let mut of_table = vec![0.0; if trains_table { classes * width } else { 0 }];
        let (mut sum, mut right) = (0.0, [0_u32; 2]);
        for block in self.counted.chunks(rows_at_once(classes)) {
            let own = |&(row, _): &(usize, usize)| &x[row * width..][..width];
            let states: Vec<f32> = block.iter().flat_map(own).copied().collect();
            let size = block.len() * classes.max(width);
            let shares = in_shares(block.len(), size, &|range| {
                let (count, block) = (range.len(), &block[range.clone()]);
                let states = &states[range.start * width..range.end * width];
                let mut logits = vec![0.0; count * classes];
                let target = matrix_mut(&mut logits, count, classes);
                multiply(
                    target,
                    matrix(states, count, width),
                    table_matrix.transpose(),
                    1.0,
                );
                let pairs = logits.chunks_exact_mut(classes).zip(block);
                let losses: Vec<(f32, f32)> = pairs
                    .map(|(row, &(_, class))| self.row(row, class))
                    .collect();
                let mut back = vec![0.0; if has_gradients { count * width } else { 0 }];
                if has_gradients {
                    let target = matrix_mut(&mut back, count, width);
                    multiply(target, matrix(&logits, count, classes), table_matrix, 1.0);
                }
                let logits = if trains_table { logits } else { Vec::new() };
                (losses, back, logits)
            });
            let (mut gradients, mut place) = (Vec::with_capacity(shares.len()), 0);
            for (losses, back, logits) in shares {
                for (loss, rank) in &losses {
                    sum += f64::from(*loss);
                    // NaN is never right.
                    right[0] += u32::from(*rank < 1.0);
                    right[1] += u32::from(*rank < 5.0);
                }
                for (back, (row, _)) in back.chunks_exact(width).zip(&block[place..]) {
                    of_x[row * width..][..width].copy_from_slice(back);
                }
                place += losses.len();
                gradients.push(logits);
            }
            if trains_table {
                let (gradients, count) = (joined(gradients), block.len());
                let gradients = matrix(&gradients, count, classes);
                let states = matrix(&states, count, width);
                fill_shares(&mut of_table, classes, size, &|range, own| {
                    let target = matrix_mut(own, range.len(), width);
                    let of_range = gradients.subcols(range.start, range.len());
                    multiply_and_add(target, of_range.transpose(), states);
                });
            }
        }
        let shaped = |own: Vec<f32>, shape| (!own.is_empty()).then(|| tensor(own, shape));
        let saved = [
            shaped(of_x, [rows, width]),
            shaped(of_table, [classes, width]),
        ];
        let [first, among_five] = right.map(|count| count as f32);
        (tensor(vec![sum as f32, first, among_five], [3]), saved)
    }

    /// Turns a row of logits into their gradient, if there will be one. Returns the row's loss, and how many
    /// logits are larger than the class's.
    fn row(&self, row: &mut [f32], class: usize) -> (f32, f32) {
        let (of_class, uniform) = (row[class], self.smoothing / row.len() as f32);
        vectorised!(|| {
            let most = largest(row);
            let one_if = |holds| if holds { 1.0 } else { 0.0 };
            let rank = sum_of(row, |x| one_if(x > of_class))
                + sum_of(&row[..class], |x| one_if(x == of_class));
            let rank = if of_class.is_nan() { f32::NAN } else { rank };
            let all = match uniform > 0.0 {
                true => uniform * sum_of(row, |x| x - most),
                false => 0.0,
            };
            let sum = if self.has_gradients {
                change(row, |x| exp(x - most));
                let sum = sum_of(row, |x| x);
                let factor = sum.recip();
                change(row, |x| x * factor - uniform);
                row[class] -= 1.0 - self.smoothing;
                sum
            } else {
                sum_of(row, |x| exp(x - most))
            };
            (
                sum.ln() - (1.0 - self.smoothing) * (of_class - most) - all,
                rank,
            )
        })
    }
}
