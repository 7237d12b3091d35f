//! Batch normalization in two passes forward and two backward.

use std::ops::Range;

use burn::{
    module::RunningState,
    nn::BatchNorm,
    tensor::{Tensor, module},
};
use burn_flex::FlexTensor;
use stovepipe_autodiff::{Kernel, Operand, at_least_f32, contiguous, tensor, values};

use crate::{
    planes::{Dims, dims, in_parts, vectorised},
    rows::fold_lanes,
};

/// `norm.forward(x)` up to rounding, for `x` `[n, c, h, w]`. In training it uses the statistics of the
/// batch and updates the running ones; in evaluation it uses the running ones.
///
/// ```
/// use burn::{nn::BatchNormConfig, tensor::{Device, Tensor}};
/// use stovepipe_kernels::batch_norm;
///
/// let device = Device::flex().autodiff();
/// let norm = BatchNormConfig::new(1).init(&device);
/// let x = Tensor::<4>::from_floats([[[[1.0, 3.0]]]], &device);
/// let y = batch_norm(&norm, x).into_data().try_to_vec::<f32>().unwrap();
/// assert!((y[0] + 1.0).abs() < 1e-4 && (y[1] - 1.0).abs() < 1e-4);
/// ```
///
/// # Panics
///
/// If `norm` has another number of channels.
#[must_use]
pub fn batch_norm(norm: &BatchNorm, x: Tensor<4>) -> Tensor<4> {
    let channels = [norm.gamma.dims()[0], x.dims()[1]];
    let [of_norm, of_x] = channels;
    assert_eq!(of_norm, of_x, "channels of the norm and of its input");
    if x.shape().num_elements() == 0 {
        return norm.forward(x);
    }
    let dtype = x.dtype();
    let x = at_least_f32(x);
    let [gamma, beta] = [&norm.gamma, &norm.beta].map(|param| at_least_f32(param.val()));
    let (states, epsilon) = ([&norm.running_mean, &norm.running_var], norm.epsilon);
    let output = if x.is_autodiff() && norm.training.is_enabled() {
        let (output, statistics) = by_kernel(&x, &gamma, &beta, epsilon)
            .unwrap_or_else(|| by_burn(x, gamma, beta, epsilon));
        for (state, of_batch) in states.into_iter().zip(statistics) {
            update(state, of_batch, norm.momentum);
        }
        output
    } else {
        let device = x.device();
        let [mean, variance] = states.map(|state| at_least_f32(state.value()).to_device(&device));
        module::batch_norm(x, gamma, beta, mean, variance, epsilon)
    };
    output.cast(dtype)
}

/// The output, and the mean and variance of the batch outside of any graph.
type Normalized = (Tensor<4>, [Tensor<1>; 2]);

pub(crate) fn by_kernel(
    x: &Tensor<4>,
    gamma: &Tensor<1>,
    beta: &Tensor<1>,
    epsilon: f64,
) -> Option<Normalized> {
    let kernel = Normalize {
        epsilon: epsilon as f32,
    };
    let operands = [Operand::of(x)?, Operand::of(gamma)?, Operand::of(beta)?];
    let (output, saved) = kernel.run(operands)?;
    let statistics = [saved.mean, saved.variance].map(|plain| Operand::Plain(plain).into_tensor());
    Some((output.into_tensor(), statistics))
}

fn by_burn(x: Tensor<4>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f64) -> Normalized {
    let found = module::batch_norm_train(x, gamma, beta, epsilon);
    let statistics = [found.mean, found.variance].map(Tensor::inner);
    (found.output, statistics)
}

/// Moves a running statistic towards that of a batch.
fn update(state: &RunningState<Tensor<1>>, batch: Tensor<1>, momentum: f64) {
    let old = state.value_sync().inner();
    let batch = batch.mul_scalar(momentum).cast(old.dtype());
    let new = old.mul_scalar(1.0 - momentum) + batch;
    state.update(new.autodiff());
}

/// y = (x − mean) / √(variance + ε) · γ + β, by channel.
#[derive(Clone, Debug)]
struct Normalize {
    epsilon: f32,
}

#[derive(Clone, Debug)]
struct SavedMaps {
    x: FlexTensor,
    gamma: FlexTensor,
    mean: FlexTensor,
    variance: FlexTensor,
}

impl Kernel<3> for Normalize {
    type Saved = SavedMaps;

    fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, SavedMaps) {
        let [x, gamma, beta] = inputs.map(contiguous);
        let shape = dims(&x);
        let (all, offsets) = (values(&x), values(&beta));
        let (means, variances) = statistics(all, shape);
        let scales: Vec<_> = (values(&gamma).iter().zip(&variances))
            .map(|(gamma, &variance)| gamma * self.inverse_deviation(variance))
            .collect();
        let output = by_plane(shape, |place, channel, output| {
            let (mean, scale, offset) = (means[channel], scales[channel], offsets[channel]);
            let plane = &all[place];
            vectorised!(|| output.extend(plane.iter().map(|x| (x - mean) * scale + offset)));
        });
        let channels = [shape[1]];
        let saved = SavedMaps {
            x,
            gamma,
            mean: tensor(means, channels),
            variance: tensor(variances, channels),
        };
        (tensor(output, shape), saved)
    }

    fn backward(
        &self,
        saved: SavedMaps,
        gradient: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = contiguous(gradient);
        let shape @ [samples, channels, height, width] = dims(&saved.x);
        let count = (samples * height * width) as f32;
        let (x, gradient) = (values(&saved.x), values(&gradient));
        let means = values(&saved.mean);
        let deviations: Vec<_> = (values(&saved.variance).iter())
            .map(|&variance| self.inverse_deviation(variance))
            .collect();
        let sums = gradient_sums(x, gradient, shape, means);
        let factors: Vec<_> = (values(&saved.gamma).iter().zip(&deviations).zip(&sums))
            .map(|((gamma, deviation), (beta_gradient, projection))| {
                let scale = gamma * deviation;
                let of_distance = -scale * deviation * deviation * projection / count;
                [scale, of_distance, -scale * beta_gradient / count]
            })
            .collect();
        let of_x = by_plane(shape, |place, channel, of_x| {
            let [scale, of_distance, offset] = factors[channel];
            let mean = means[channel];
            let pairs = x[place.clone()].iter().zip(&gradient[place]);
            vectorised!(|| {
                of_x.extend(pairs.map(|(x, g)| g * scale + ((x - mean) * of_distance + offset)));
            });
        });
        let of_gamma = (sums.iter().zip(&deviations)).map(|((_, sum), deviation)| sum * deviation);
        let of_beta = sums.iter().map(|(sum, _)| *sum);
        [
            Some(tensor(of_x, shape)),
            Some(tensor(of_gamma.collect(), [channels])),
            Some(tensor(of_beta.collect(), [channels])),
        ]
    }
}

impl Normalize {
    fn inverse_deviation(&self, variance: f32) -> f32 {
        1.0 / (variance + self.epsilon).sqrt()
    }
}

#[inline(always)]
fn planes(
    values: &[f32],
    [samples, channels, height, width]: Dims,
    channel: usize,
) -> impl Iterator<Item = &[f32]> {
    let size = height * width;
    (0..samples).map(move |sample| &values[(sample * channels + channel) * size..][..size])
}

fn statistics(x: &[f32], shape @ [samples, channels, height, width]: Dims) -> (Vec<f32>, Vec<f32>) {
    let count = (samples * height * width) as f64;
    let both = in_parts(channels, samples * height * width, |channel, both| {
        both.push(vectorised!(|| {
            let planes = || planes(x, shape, channel);
            let sum: f64 = planes().map(|plane| sum_of(plane, |x| x)).sum();
            let mean = (sum / count) as f32;
            let square = |x: f32| (x - mean) * (x - mean);
            let squares: f64 = planes().map(|plane| sum_of(plane, square)).sum();
            (mean, (squares / count) as f32)
        }));
    });
    both.into_iter().unzip()
}

/// Σ g and Σ g·(x − mean) of each channel. Wider vectors would not make it faster.
fn gradient_sums(
    x: &[f32],
    gradient: &[f32],
    shape @ [samples, channels, height, width]: Dims,
    means: &[f32],
) -> Vec<(f32, f32)> {
    in_parts(channels, samples * height * width, |channel, both| {
        let mean = means[channel];
        let pairs = planes(x, shape, channel).zip(planes(gradient, shape, channel));
        let (mut plain, mut projected) = (0.0, 0.0);
        for (x, gradient) in pairs {
            let of_plane = sums(x, gradient, mean);
            plain += of_plane.0;
            projected += of_plane.1;
        }
        both.push((plain as f32, projected as f32));
    })
}

/// The values that `work` appends for each plane, given its place in the batch and its channel.
fn by_plane(
    [samples, channels, height, width]: Dims,
    work: impl Fn(Range<usize>, usize, &mut Vec<f32>) + Sync,
) -> Vec<f32> {
    let size = height * width;
    in_parts(samples * channels, size, |part, output| {
        work(part * size..(part + 1) * size, part % channels, output);
    })
}

/// Partial sums next to each other, enough for several of the widest vectors: the same number on every
/// processor, so that the order of additions does not depend on it.
const LANES: usize = 64;

#[inline(always)]
fn sum_of(plane: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    total(fold_lanes(0.0, plane, plane, |sum, x, _| sum + term(x)))
}

/// Σ g and Σ g·(x − mean) of a plane.
#[inline(always)]
fn sums(x: &[f32], gradient: &[f32], mean: f32) -> (f64, f64) {
    let (mut plain, mut projected) = ([0.0; LANES], [0.0; LANES]);
    let mut add = |x: &[f32], gradient: &[f32]| {
        let lanes = plain.iter_mut().zip(&mut projected);
        for ((plain, projected), (&x, &gradient)) in lanes.zip(x.iter().zip(gradient)) {
            *plain += gradient;
            *projected += gradient * (x - mean);
        }
    };
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (gradients, rest_of_gradients) = gradient.as_chunks::<LANES>();
    for (x, gradient) in chunks.iter().zip(gradients) {
        add(x, gradient);
    }
    add(rest, rest_of_gradients);
    (total(plain), total(projected))
}

#[inline(always)]
fn total(lanes: [f32; LANES]) -> f64 {
    lanes.iter().map(|&lane| f64::from(lane)).sum()
}
