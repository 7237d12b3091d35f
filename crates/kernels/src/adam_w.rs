//! AdamW's update in one pass over memory. As operations on tensors it takes a dozen.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;
use stovepipe_autodiff::{Operand, contiguous, tensor, values};

use crate::planes::vectorised;

/// The settings of an update by AdamW (Loshchilov and Hutter, "Decoupled Weight Decay
/// Regularization", 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// The decay of the mean of gradients, and of the mean of their squares.
    pub betas: [f32; 2],
    /// Added to the square root of the latter.
    pub epsilon: f32,
    /// The decay of the parameter, as a factor of the learning rate.
    pub weight_decay: f32,
    /// The learning rate.
    pub rate: f64,
    /// The index of the update, from 1 on.
    pub time: i32,
}

impl AdamWUpdate {
    /// Returns the updated parameter and means, bit for bit those of Burn's `AdamW`.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_kernels::AdamWUpdate;
    ///
    /// let (betas, epsilon, weight_decay) = ([0.9, 0.999], 1e-8, 0.0);
    /// let update = AdamWUpdate { betas, epsilon, weight_decay, rate: 0.1, time: 1 };
    /// let of = |number| Tensor::<1>::from_floats([number], &Device::flex());
    /// // The first step has the length of the rate, for any gradient.
    /// let (parameter, _) = update.apply(of(1.0), of(7.0), [of(0.0), of(0.0)]);
    /// assert!((parameter.into_scalar::<f32>() - 0.9).abs() < 1e-6);
    /// ```
    ///
    /// # Panics
    ///
    /// Like Burn, if shapes differ.
    #[must_use]
    pub fn apply<const D: usize>(
        &self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        means: [Tensor<D>; 2],
    ) -> (Tensor<D>, [Tensor<D>; 2]) {
        let [mean, square] = means;
        let all = [parameter, gradient, mean, square];
        let Some(operands) = plain(&all) else {
            return self.by_burn(all);
        };
        drop(all); // updates in place need the only reference
        let updated = self.in_one_pass(operands);
        let [parameter, mean, square] = updated.map(|plain| Operand::Plain(plain).into_tensor());
        (parameter, [mean, square])
    }

    fn by_burn<const D: usize>(&self, all: [Tensor<D>; 4]) -> (Tensor<D>, [Tensor<D>; 2]) {
        let [parameter, gradient, mean, square] = all;
        let factors = Factors::of(self);
        let mean = mean.mul_scalar(factors.keep_mean) + gradient.clone().mul_scalar(factors.mean);
        let square =
            square.mul_scalar(factors.keep_square) + gradient.square().mul_scalar(factors.square);
        let root = square.clone().div_scalar(factors.of_square).sqrt();
        let step = mean.clone().div_scalar(factors.of_mean) / root.add_scalar(factors.epsilon);
        let parameter = parameter.mul_scalar(factors.keep) - step.mul_scalar(factors.rate);
        (parameter, [mean, square])
    }

    /// Updates parameter and means, given the gradient too. Writes the parameter over the gradient.
    fn in_one_pass(&self, operands: [FlexTensor; 4]) -> [FlexTensor; 3] {
        /// Values that a thread takes at a time.
        const BLOCK: usize = 1 << 14;
        let factors = Factors::of(self);
        let [parameter, gradient, mean, square] = operands;
        let parameter = contiguous(parameter);
        let mut written = [gradient, mean, square].map(unshared);
        let [gradients, means, squares] = written.each_mut().map(FlexTensor::storage_mut::<f32>);
        let blocks = (values(&parameter).par_chunks(BLOCK))
            .zip(gradients.par_chunks_mut(BLOCK))
            .zip(means.par_chunks_mut(BLOCK))
            .zip(squares.par_chunks_mut(BLOCK));
        blocks.for_each(|(((parameters, gradients), means), squares)| {
            vectorised!(|| factors.update(parameters, gradients, means, squares));
        });
        written
    }
}

#[derive(Clone, Copy)]
struct Factors {
    keep_mean: f32,
    mean: f32,
    keep_square: f32,
    square: f32,
    of_mean: f32,
    of_square: f32,
    epsilon: f32,
    keep: f32,
    rate: f32,
}

impl Factors {
    fn of(update: &AdamWUpdate) -> Self {
        let [keep_mean, keep_square] = update.betas;
        let decay = update.rate * f64::from(update.weight_decay);
        Self {
            keep_mean,
            mean: 1.0 - keep_mean,
            keep_square,
            square: 1.0 - keep_square,
            of_mean: 1.0 - keep_mean.powi(update.time),
            of_square: 1.0 - keep_square.powi(update.time),
            epsilon: update.epsilon,
            keep: (1.0 - decay) as f32,
            rate: update.rate as f32,
        }
    }

    #[inline(always)]
    fn update(
        self,
        parameters: &[f32],
        gradients: &mut [f32],
        means: &mut [f32],
        squares: &mut [f32],
    ) {
        let moments = means.iter_mut().zip(squares);
        for ((parameter, gradient), (mean, square)) in parameters.iter().zip(gradients).zip(moments)
        {
            *mean = *mean * self.keep_mean + *gradient * self.mean;
            *square = *square * self.keep_square + *gradient * *gradient * self.square;
            let root = (*square / self.of_square).sqrt();
            let step = (*mean / self.of_mean) / (root + self.epsilon);
            *gradient = *parameter * self.keep - step * self.rate;
        }
    }
}

/// The tensors, if all lie on the CPU outside of any graph and have one shape.
fn plain<const D: usize>(all: &[Tensor<D>; 4]) -> Option<[FlexTensor; 4]> {
    let shape = all[0].dims();
    let plain = |tensor: &Tensor<D>| {
        let plain = Operand::of(tensor)?.plain();
        plain.filter(|_| tensor.dims() == shape)
    };
    let operands: Option<Vec<_>> = all.iter().map(plain).collect();
    operands?.try_into().ok()
}

/// A contiguous tensor that owns its whole storage: the same one if possible, else a copy.
fn unshared(shared: FlexTensor) -> FlexTensor {
    let shared = contiguous(shared);
    let own = values(&shared);
    if shared.is_unique() && shared.storage::<f32>().len() == own.len() {
        shared
    } else {
        tensor(own.to_vec(), shared.layout().shape().clone())
    }
}
