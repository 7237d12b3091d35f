//! AdamW's update in one pass.
//!
//! As operations on tensors it is a dozen passes, each of which reads and writes as many numbers as the
//! model has parameters.

use burn::tensor::Tensor;
use burn_flex::FlexTensor;
use rayon::prelude::*;

use crate::{
    differentiable::Operand,
    planes::{in_order, numbers, tensor, vectorised},
};

/// The numbers of an update by AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization",
/// 2019).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamWUpdate {
    /// What is kept of the mean of gradients, and of that of their squares.
    pub betas: [f32; 2],
    /// What is added to the root of the latter.
    pub epsilon: f32,
    /// What a parameter loses, as a share of the learning rate and itself.
    pub weight_decay: f32,
    /// The learning rate.
    pub rate: f64,
    /// Which update of the parameter it is, from 1 on.
    pub time: i32,
}

impl AdamWUpdate {
    /// Returns the parameter and both means as they are after the update: bit for bit what Burn's `AdamW`
    /// makes of them.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_kernels::AdamWUpdate;
    ///
    /// let update = AdamWUpdate {
    ///     betas: [0.9, 0.999],
    ///     epsilon: 1e-8,
    ///     weight_decay: 0.0,
    ///     rate: 0.1,
    ///     time: 1,
    /// };
    /// let of = |number| Tensor::<1>::from_floats([number], &Device::flex());
    /// // The first update is by the rate, whatever the gradient.
    /// let (parameter, _) = update.apply(of(1.0), of(7.0), [of(0.0), of(0.0)]);
    /// assert!((parameter.into_scalar::<f32>() - 0.9).abs() < 1e-6);
    /// ```
    ///
    /// # Panics
    ///
    /// As Burn does, if shapes differ.
    #[must_use]
    pub fn apply<const D: usize>(
        &self,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        means: [Tensor<D>; 2],
    ) -> (Tensor<D>, [Tensor<D>; 2]) {
        let [mean, square] = means;
        let all = [parameter, gradient, mean, square];
        match plain(&all) {
            Some(operands) => {
                drop(all); // else nothing could be written where it lies
                let [parameter, mean, square] = self.in_one_pass(operands);
                let [mean, square] = [mean, square].map(into_tensor);
                (into_tensor(parameter), [mean, square])
            }
            None => self.by_burn(all),
        }
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

    /// Of parameter, gradient and means. The new parameter lies where the gradient lay.
    fn in_one_pass(&self, operands: [FlexTensor; 4]) -> [FlexTensor; 3] {
        /// Numbers that threads take at a time.
        const BLOCK: usize = 1 << 14;
        let factors = Factors::of(self);
        let [parameter, gradient, mean, square] = operands;
        let parameter = in_order(parameter);
        let mut written = [gradient, mean, square].map(whole);
        let [gradients, means, squares] = written.each_mut().map(FlexTensor::storage_mut::<f32>);
        let blocks = (numbers(&parameter).par_chunks(BLOCK))
            .zip(gradients.par_chunks_mut(BLOCK))
            .zip(means.par_chunks_mut(BLOCK))
            .zip(squares.par_chunks_mut(BLOCK));
        blocks.for_each(|(((parameters, gradients), means), squares)| {
            vectorised(
                #[inline(always)]
                || factors.update(parameters, gradients, means, squares),
            );
        });
        written
    }
}

/// What numbers are multiplied with or divided by.
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

    /// Writes new parameters to where the gradients are.
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

/// The tensors, if they all lie on the CPU outside of any graph and have one shape.
fn plain<const D: usize>(all: &[Tensor<D>; 4]) -> Option<[FlexTensor; 4]> {
    let shape = all[0].dims();
    if all.iter().any(|tensor| tensor.dims() != shape) {
        return None;
    }
    let mut operands = Vec::with_capacity(all.len());
    for tensor in all {
        match Operand::of(tensor)? {
            Operand::Plain(tensor) => operands.push(tensor),
            Operand::Tracked(_) => return None,
        }
    }
    operands.try_into().ok()
}

fn into_tensor<const D: usize>(tensor: FlexTensor) -> Tensor<D> {
    Operand::Plain(tensor).into_tensor()
}

/// The same tensor with its numbers in order, and no others beside them: where they lie, if nobody else
/// reads them there.
fn whole(given: FlexTensor) -> FlexTensor {
    let given = in_order(given);
    let own = numbers(&given);
    match given.is_unique() && given.storage::<f32>().len() == own.len() {
        true => given,
        false => tensor(own.to_vec(), given.layout().shape().clone()),
    }
}
