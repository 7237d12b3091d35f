//! Normalization of rows whose gradient is computed as a whole: it keeps its input alone.

use burn::{
    backend::DispatchTensor,
    tensor::{FloatDType, Tensor, module},
};
use stovepipe_autodiff::{Operation, at_least_f32};

use crate::everywhere::{biased, sums::sum_of_rows};

/// See [`crate::layer_norm()`], and, without `beta`, [`crate::rms_norm()`].
pub(crate) fn normalize<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    assert_eq!(
        gamma.dims(),
        [x.dims()[D - 1]],
        "γ has a number for each column"
    );
    let norm = Normalize::<D>(epsilon);
    let found = biased::run(norm.clone(), &x, &gamma, beta.as_ref());
    found.unwrap_or_else(|| norm.output(x, gamma, beta))
}

/// By this ε.
#[derive(Clone, Debug)]
struct Normalize<const D: usize>(f64);

impl<const D: usize> Normalize<D> {
    fn output(&self, x: Tensor<D>, gamma: Tensor<1>, beta: Option<Tensor<1>>) -> Tensor<D> {
        let dtype = FloatDType::from(x.dtype());
        let x = at_least_f32(x);
        let y = match beta {
            Some(beta) => module::layer_norm(x, gamma, Some(beta), self.0),
            None => {
                let squares = x.clone().square().mean_dim(D - 1);
                x / (squares + self.0).sqrt() * gamma.unsqueeze()
            }
        };
        y.cast(dtype)
    }
}

/// The input, γ, and β if the mean is subtracted.
impl<const D: usize, const N: usize> Operation<N> for Normalize<D> {
    fn forward(&self, inputs: [DispatchTensor; N]) -> DispatchTensor {
        let (x, gamma, beta) = biased::tensors(&inputs);
        self.output(x, gamma, beta).into_dispatch()
    }

    fn backward(
        &self,
        inputs: [DispatchTensor; N],
        gradient: DispatchTensor,
        needed: [bool; N],
    ) -> [Option<DispatchTensor>; N] {
        let (x, gamma, _) = biased::tensors::<D, 1>(&inputs);
        let dtype = FloatDType::from(x.dtype());
        let (x, gradient) = (
            at_least_f32(x),
            at_least_f32(Tensor::<D>::from_dispatch(gradient)),
        );
        let mean = |x: &Tensor<D>| x.clone().mean_dim(D - 1);
        let is_centred = N == 3;
        let x = if is_centred { x.clone() - mean(&x) } else { x };
        let scale = (mean(&x.clone().square()) + self.0).sqrt().recip();
        let normal = x * scale.clone();
        std::array::from_fn(|input| {
            needed[input].then(|| match input {
                0 => {
                    let own = gradient.clone() * gamma.clone().unsqueeze();
                    let along = mean(&(own.clone() * normal.clone()));
                    let of_normal = match is_centred {
                        true => own.clone() - mean(&own),
                        false => own,
                    };
                    let of_x = (of_normal - normal.clone() * along) * scale.clone();
                    of_x.cast(dtype).into_dispatch()
                }
                1 => sum_of_rows(gradient.clone() * normal.clone()).into_dispatch(),
                _ => sum_of_rows(gradient.clone()).into_dispatch(),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use burn::tensor::Tolerance;

    use super::{super::normal, *};

    /// Next to Burn's gradients of each operation.
    #[test]
    fn gradients_are_those_of_the_formula() {
        let x = normal(0, [2, 5, 7], 0.5);
        let (gamma, beta) = (normal(1, [7], 1.0), normal(2, [7], 0.0));
        let slopes = normal(3, [2, 5, 7], 0.0).autodiff();
        for has_beta in [false, true] {
            let run = |is_ours: bool| {
                let tracked = |tensor: Tensor<1>| tensor.autodiff().require_grad();
                let x = x.clone().autodiff().require_grad();
                let [gamma, beta] = [gamma.clone(), beta.clone()].map(tracked);
                let own = has_beta.then(|| beta.clone());
                let y = match is_ours {
                    true => normalize(x.clone(), gamma.clone(), own, 1e-5),
                    false => Normalize(1e-5).output(x.clone(), gamma.clone(), own),
                };
                let gradients = (y.clone() * slopes.clone()).sum().backward();
                let of_beta = has_beta.then(|| beta.grad(&gradients).unwrap().into_data());
                let of_gamma = gamma.grad(&gradients).unwrap().into_data();
                let found = [
                    y.inner().into_data(),
                    x.grad(&gradients).unwrap().into_data(),
                ];
                let found = found.into_iter().chain([of_gamma]).chain(of_beta);
                found.collect::<Vec<_>>()
            };
            for (found, expected) in run(true).iter().zip(run(false)) {
                found.assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-5, 1e-5));
            }
        }
    }
}
