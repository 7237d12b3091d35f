//! Batch normalization in two passes forward and two backward.

use burn::{
    module::RunningState,
    nn::BatchNorm,
    tensor::{Tensor, module},
};
use burn_flex::FlexTensor;

use crate::{
    differentiable::{self, Kernel, Operand},
    planes::{Dims, dims, in_order, in_parts, numbers, tensor, vectorised},
    widened::widened,
};

/// Normalizes `x` `[n, c, h, w]` as `norm` does: by the statistics of the batch while it trains,
/// which it then adds to the running ones; by the running ones else.
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
/// If `norm` is for another number of channels.
#[must_use]
pub fn batch_norm(norm: &BatchNorm, x: Tensor<4>) -> Tensor<4> {
    let [channels] = norm.gamma.shape().dims();
    assert_eq!(
        channels,
        x.dims()[1],
        "channels of the norm and of its input"
    );
    if x.shape().num_elements() == 0 {
        return norm.forward(x);
    }
    let dtype = x.dtype();
    let x = widened(x);
    let [gamma, beta] = [&norm.gamma, &norm.beta].map(|param| widened(param.val()));
    let trains = x.is_autodiff() && norm.training.is_enabled();
    let output = match trains {
        true => {
            let (output, [mean, variance]) = by_kernel(&x, &gamma, &beta, norm.epsilon)
                .unwrap_or_else(|| by_burn(x, gamma, beta, norm.epsilon));
            drift(&norm.running_mean, mean, norm.momentum);
            drift(&norm.running_var, variance, norm.momentum);
            output
        }
        false => {
            let device = x.device();
            let running =
                |state: &RunningState<Tensor<1>>| widened(state.value()).to_device(&device);
            let (mean, variance) = (running(&norm.running_mean), running(&norm.running_var));
            module::batch_norm(x, gamma, beta, mean, variance, norm.epsilon)
        }
    };
    output.cast(dtype)
}

/// The output, and mean and variance of the batch without a graph.
type Normalized = (Tensor<4>, [Tensor<1>; 2]);

fn by_kernel(
    x: &Tensor<4>,
    gamma: &Tensor<1>,
    beta: &Tensor<1>,
    epsilon: f64,
) -> Option<Normalized> {
    let kernel = Normalize {
        epsilon: epsilon as f32,
    };
    let operands = [Operand::of(x)?, Operand::of(gamma)?, Operand::of(beta)?];
    let (output, saved) = differentiable::run(kernel, operands)?;
    let plain = |statistic| Operand::Plain(statistic).into_tensor();
    Some((
        output.into_tensor(),
        [saved.mean, saved.variance].map(plain),
    ))
}

fn by_burn(x: Tensor<4>, gamma: Tensor<1>, beta: Tensor<1>, epsilon: f64) -> Normalized {
    let made = module::batch_norm_train(x, gamma, beta, epsilon);
    (made.output, [made.mean, made.variance].map(Tensor::inner))
}

/// Moves a running statistic towards that of a batch.
fn drift(state: &RunningState<Tensor<1>>, batch: Tensor<1>, momentum: f64) {
    let old = state.value_sync().inner();
    let batch = batch.mul_scalar(momentum).cast(old.dtype());
    let new = old.mul_scalar(1.0 - momentum) + batch;
    state.update(new.autodiff());
}

/// y = (x − mean) / √(variance + ε) · γ + β, by channel.
#[derive(Clone, Debug)]
pub(crate) struct Normalize {
    pub(crate) epsilon: f32,
}

#[derive(Clone, Debug)]
pub(crate) struct Saved {
    x: FlexTensor,
    gamma: FlexTensor,
    mean: FlexTensor,
    variance: FlexTensor,
}

impl Kernel<3> for Normalize {
    type Saved = Saved;

    fn forward(&self, inputs: [FlexTensor; 3]) -> (FlexTensor, Saved) {
        let [x, gamma, beta] = inputs.map(in_order);
        let shape = dims(&x);
        let (means, variances) = statistics(numbers(&x), shape);
        let shifts: Vec<_> = (numbers(&gamma).iter().zip(numbers(&beta)))
            .zip(means.iter().zip(&variances))
            .map(|((&gamma, &beta), (&mean, &variance))| Shift {
                center: mean,
                scale: gamma * self.inverse_deviation(variance),
                offset: beta,
            })
            .collect();
        let output = shifted(numbers(&x), shape, &shifts);
        let channels = [shape[1]];
        let saved = Saved {
            x,
            gamma,
            mean: tensor(means, channels),
            variance: tensor(variances, channels),
        };
        (tensor(output, shape), saved)
    }

    fn backward(
        &self,
        saved: Saved,
        gradient: FlexTensor,
        _: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let gradient = in_order(gradient);
        let shape @ [samples, channels, height, width] = dims(&saved.x);
        let count = (samples * height * width) as f32;
        let (x, gradient) = (numbers(&saved.x), numbers(&gradient));
        let means = numbers(&saved.mean);
        let deviations: Vec<_> = (numbers(&saved.variance).iter())
            .map(|&variance| self.inverse_deviation(variance))
            .collect();
        let sums = gradient_sums(x, gradient, shape, means);
        let slopes: Vec<_> = (0..channels)
            .map(|channel| {
                let (gamma, deviation) = (numbers(&saved.gamma)[channel], deviations[channel]);
                let (beta_gradient, projection) = sums[channel];
                let scale = gamma * deviation;
                Slope {
                    center: means[channel],
                    of_gradient: scale,
                    of_x: -scale * deviation * deviation * projection / count,
                    offset: -scale * beta_gradient / count,
                }
            })
            .collect();
        let of_x = sloped(x, gradient, shape, &slopes);
        let of_gamma = (sums.iter().zip(&deviations)).map(|((_, sum), deviation)| sum * deviation);
        [
            Some(tensor(of_x, shape)),
            Some(tensor(of_gamma.collect(), [channels])),
            Some(tensor(
                sums.iter().map(|(sum, _)| *sum).collect(),
                [channels],
            )),
        ]
    }
}

impl Normalize {
    fn inverse_deviation(&self, variance: f32) -> f32 {
        1.0 / (variance + self.epsilon).sqrt()
    }
}

/// The planes of a channel, one a sample.
#[inline(always)]
fn planes(
    numbers: &[f32],
    [_, channels, height, width]: Dims,
    channel: usize,
) -> impl Iterator<Item = &[f32]> {
    (numbers.chunks_exact(height * width).skip(channel)).step_by(channels)
}

/// Mean and biased variance of each channel.
fn statistics(x: &[f32], shape @ [samples, channels, height, width]: Dims) -> (Vec<f32>, Vec<f32>) {
    let count = (samples * height * width) as f64;
    let of_channel = |channel: usize, both: &mut Vec<(f32, f32)>| {
        both.push(vectorised(|| {
            let sum: f64 = planes(x, shape, channel)
                .map(|plane| sum_of(plane, |x| x))
                .sum();
            let mean = (sum / count) as f32;
            let square = |x: f32| (x - mean) * (x - mean);
            let squares: f64 = planes(x, shape, channel)
                .map(|plane| sum_of(plane, square))
                .sum();
            (mean, (squares / count) as f32)
        }));
    };
    in_parts(channels, samples * height * width, of_channel)
        .into_iter()
        .unzip()
}

/// Σ g and Σ g·(x − mean) of each channel.
fn gradient_sums(
    x: &[f32],
    gradient: &[f32],
    shape @ [samples, channels, height, width]: Dims,
    means: &[f32],
) -> Vec<(f32, f32)> {
    let of_channel = |channel: usize, both: &mut Vec<(f32, f32)>| {
        both.push(vectorised(|| {
            let mean = means[channel];
            let pairs = planes(x, shape, channel).zip(planes(gradient, shape, channel));
            let (plain, projected) = pairs.fold((0.0, 0.0), |(plain, projected), (x, gradient)| {
                let of_plane = sums(x, gradient, mean);
                (plain + of_plane.0, projected + of_plane.1)
            });
            (plain as f32, projected as f32)
        }));
    };
    in_parts(channels, samples * height * width, of_channel)
}

/// x to (x − center) · scale + offset.
struct Shift {
    center: f32,
    scale: f32,
    offset: f32,
}

fn shifted(x: &[f32], [samples, channels, height, width]: Dims, shifts: &[Shift]) -> Vec<f32> {
    let size = height * width;
    in_parts(samples * channels, size, |part, output| {
        let plane = &x[part * size..][..size];
        let &Shift {
            center,
            scale,
            offset,
        } = &shifts[part % channels];
        vectorised(|| output.extend(plane.iter().map(|x| (x - center) * scale + offset)));
    })
}

/// The gradient g of the output to g · of_gradient + (x − center) · of_x + offset.
struct Slope {
    center: f32,
    of_gradient: f32,
    of_x: f32,
    offset: f32,
}

fn sloped(
    x: &[f32],
    gradient: &[f32],
    [samples, channels, height, width]: Dims,
    slopes: &[Slope],
) -> Vec<f32> {
    let size = height * width;
    in_parts(samples * channels, size, |part, output| {
        let place = part * size..(part + 1) * size;
        let pairs = x[place.clone()].iter().zip(&gradient[place]);
        let &Slope {
            center,
            of_gradient,
            of_x,
            offset,
        } = &slopes[part % channels];
        vectorised(|| {
            output.extend(pairs.map(|(x, g)| g * of_gradient + ((x - center) * of_x + offset)));
        });
    })
}

/// Partial sums side by side: as many as the widest vectors hold several times over, on every
/// processor, so that the order of additions does not depend on it.
const LANES: usize = 64;

#[inline(always)]
fn sum_of(numbers: &[f32], term: impl Fn(f32) -> f32) -> f64 {
    let mut lanes = [0.0; LANES];
    let (chunks, rest) = numbers.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += term(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane += term(x);
    }
    total(lanes)
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
