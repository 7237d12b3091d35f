//! The kernels for sequences against Burn's operations in double precision: outputs and gradients.

use crate::common::{self, bits, mask};

use burn::{
    module::{Param, ParamId},
    tensor::{
        Bool, DType, Device, FloatDType, Int, Tensor, TensorData, Tolerance,
        activation::{self, log_softmax, softmax},
        module,
    },
};
use stovepipe_autodiff::{Parameters, defer};
use stovepipe_kernels::{
    Heads, Rotation, attention, dropout, frozen_linear, gelu, layer_norm, linear, linear_by_rows,
    linear_cross_entropy, rms_norm, swiglu,
};

/// Inputs and outputs of all ranks, flattened.
type Flat = Tensor<1>;

fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
    common::normal(shape, 0.2, 1.5)
}

fn flat<const D: usize>(x: Tensor<D>) -> Flat {
    let size = x.shape().num_elements();
    x.reshape([size])
}

fn floats(x: Flat) -> Vec<f64> {
    x.into_data().try_into_vec_as::<f64>().unwrap()
}

/// The output of `run`, and the gradients of its inputs.
fn outcome<const N: usize>(inputs: [Flat; N], run: impl Fn([Flat; N]) -> Flat) -> Vec<Vec<f64>> {
    let inputs = inputs.map(|x| x.autodiff().require_grad());
    let y = run(inputs.clone());
    let gradients = common::loss(y.clone()).backward();
    let of_inputs = inputs.map(|x| floats(x.grad(&gradients).unwrap()));
    std::iter::once(floats(y)).chain(of_inputs).collect()
}

/// Compares with a tape, on the autodiff device without, and without autodiff.
fn compare<const N: usize>(
    inputs: [Flat; N],
    ours: impl Fn([Flat; N]) -> Flat,
    burns: impl Fn([Flat; N]) -> Flat,
    what: &str,
) {
    let exact = inputs.clone().map(|x| x.cast(FloatDType::F64));
    let expected = outcome(exact.clone(), burns);
    let found = outcome(inputs.clone(), &ours);
    let without_kernel = outcome(exact, &ours);
    for (place, expected) in expected.iter().enumerate() {
        close(&found[place], expected, &format!("{what}, tensor {place}"));
        close(
            &without_kernel[place],
            expected,
            &format!("{what}, f64, tensor {place}"),
        );
    }
    let no_tape = ours(inputs.clone().map(Tensor::autodiff)).inner();
    assert_eq!(floats(no_tape), found[0], "{what}: no tape");
    assert_eq!(floats(ours(inputs)), found[0], "{what}: no autodiff");
}

fn close(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let apart = norm(&mut found.iter().zip(expected).map(|(a, b)| a - b));
    let size = norm(&mut expected.iter().copied());
    assert!(apart <= 4e-6 * size.max(1e-3), "{what}: {apart} of {size}");
}

/// Rows, input and output widths: smaller and larger than a block, a vector, and a thread's share.
const SIZES: [[usize; 3]; 7] = [
    [1, 1, 1],
    [5, 3, 2],
    [1, 40, 7],
    [129, 17, 33],
    [300, 64, 130],
    [700, 50, 90],
    [20, 600, 500],
];

#[test]
fn linear_layers_equal_products() {
    for [rows, from, to] in SIZES {
        let what = format!("{rows} rows, {from} to {to}");
        let x = || random([rows * from]);
        let (weight, bias) = (random([from * to]), random([to]));
        compare(
            [x(), weight.clone(), bias],
            |[x, w, b]| {
                let x = x.reshape([rows, 1, from]);
                flat(linear(x, w.reshape([from, to]), Some(b)))
            },
            |[x, w, b]| {
                let product = x.reshape([rows, from]).matmul(w.reshape([from, to]));
                flat(product + b.unsqueeze())
            },
            &what,
        );
        compare(
            [x(), weight],
            |[x, w]| flat(linear(x.reshape([rows, from]), w.reshape([from, to]), None)),
            |[x, w]| flat(x.reshape([rows, from]).matmul(w.reshape([from, to]))),
            &format!("{what}, no bias"),
        );
        compare_by_rows([rows, from, to]);
    }
    compare_by_rows([140, 40, 7000]); // so wide that the gradient of the weight is one product
}

fn compare_by_rows([rows, from, to]: [usize; 3]) {
    let shaped = |[x, w]: [Flat; 2]| (x.reshape([rows, from]), w.reshape([to, from]));
    compare(
        [random([rows * from]), random([from * to])],
        |both| {
            let (x, w) = shaped(both);
            flat(linear_by_rows(x, w, None))
        },
        |both| {
            let (x, w) = shaped(both);
            flat(x.matmul(w.transpose()))
        },
        &format!("{rows} rows, {from} to {to}, by rows"),
    );
}

/// In each type, with and without bias; also off the kernel, in f64.
#[test]
fn frozen_linear_layers_equal_products() {
    for [rows, from, to] in SIZES {
        let (weight, bias) = (random([to, from]), random([to]));
        for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
            let weight = weight.clone().cast(dtype);
            for bias in [None, Some(bias.clone().cast(dtype))] {
                let exact = |x: &Flat| {
                    let like_x = |own: Flat| own.cast(FloatDType::from(x.dtype())).autodiff();
                    let weight = like_x(flat(weight.clone())).reshape([to, from]);
                    (weight, bias.clone().map(like_x))
                };
                compare(
                    [random([rows * from])],
                    |[x]| {
                        let x = x.reshape([rows, 1, from]);
                        let (weight, bias) = match x.is_autodiff() {
                            true => (
                                weight.clone().autodiff(),
                                bias.clone().map(Tensor::autodiff),
                            ),
                            false => (weight.clone(), bias.clone()),
                        };
                        flat(frozen_linear(x, weight, bias))
                    },
                    |[x]| {
                        let (weight, bias) = exact(&x);
                        let product = x.reshape([rows, from]).matmul(weight.transpose());
                        flat(match bias {
                            Some(bias) => product + bias.unsqueeze(),
                            None => product,
                        })
                    },
                    &format!("{rows} rows, {from} to {to}, {dtype:?}"),
                );
            }
        }
    }
}

/// The losses that count, from logits that are all there.
fn entropy(logits: Tensor<2>, target: &[i64], smoothing: f64) -> Flat {
    let [rows, classes] = logits.dims();
    let device = logits.device();
    let weights = target.iter().map(|&class| f64::from(u8::from(class >= 0)));
    let weights = TensorData::new(weights.collect::<Vec<_>>(), [rows, 1]);
    let counted = target.iter().map(|&class| class.max(0)).collect::<Vec<_>>();
    let counted = Tensor::<2, Int>::from_data(TensorData::new(counted, [rows, 1]), &device);
    let all = log_softmax(logits, 1);
    let dtype = all.dtype();
    let own = all.clone().gather(1, counted).mul_scalar(1.0 - smoothing);
    let losses = own + all.sum_dim(1).mul_scalar(smoothing / classes as f64);
    (losses * Tensor::from_data(weights, (&device, dtype)))
        .sum()
        .neg()
}

/// Rows that do not count, blocks of rows (of 33,001 classes, 127 at once), tables of fewer bits.
#[test]
fn cross_entropy_needs_few_logits_at_once() {
    for [rows, width, classes] in [
        [1, 1, 1],
        [1, 3, 7],
        [9, 5, 4],
        [40, 6, 1000],
        [150, 3, 33_001],
    ] {
        let target = |row: usize| {
            if row % 3 == 1 {
                -1
            } else {
                (row * 7919 % classes) as i64
            }
        };
        let target: Vec<_> = (0..rows).map(target).collect();
        let targets = |device: &Device| Tensor::<1, Int>::from_data(target.as_slice(), device);
        for smoothing in [0.0, 0.1] {
            let what = format!("{rows} rows, {width} to {classes}, {smoothing}");
            let shaped =
                |[x, w]: [Flat; 2]| (x.reshape([rows, width]), w.reshape([classes, width]));
            let [x, table] = [rows, classes].map(|count| random([count * width]));
            compare(
                [x.clone(), table.clone()],
                |both| {
                    let (x, table) = shaped(both);
                    let targets = targets(&Device::flex());
                    linear_cross_entropy(x, table, targets, smoothing, Some(-1)).0
                },
                |both| {
                    let (x, table) = shaped(both);
                    entropy(x.matmul(table.transpose()), &target, smoothing)
                },
                &what,
            );
            for dtype in [FloatDType::F32, FloatDType::F16, FloatDType::BF16] {
                let frozen = table.clone().reshape([classes, width]).cast(dtype);
                compare(
                    [x.clone()],
                    |[x]| {
                        let x = x.reshape([rows, width]);
                        let targets = targets(&Device::flex());
                        linear_cross_entropy(x, frozen.clone(), targets, smoothing, Some(-1)).0
                    },
                    |[x]| {
                        let table = frozen.clone().cast(FloatDType::from(x.dtype())).autodiff();
                        let logits = x.reshape([rows, width]).matmul(table.transpose());
                        entropy(logits, &target, smoothing)
                    },
                    &format!("{what}, {dtype:?}"),
                );
            }
        }
    }
}

/// Of equal logits, the first one counts as larger.
#[test]
fn cross_entropy_counts_right_answers() {
    let device = Device::flex();
    let (rows, classes) = (60, 9);
    let value = |row: usize, class: usize| ((row * 7 + class * class * 3) % 5) as f32;
    let logits: Vec<Vec<f32>> = (0..rows)
        .map(|row| (0..classes).map(|class| value(row, class)).collect())
        .collect();
    let target = |row: usize| {
        if row % 5 == 4 {
            -1
        } else {
            (row * 5 % classes) as i64
        }
    };
    let target: Vec<i64> = (0..rows).map(target).collect();
    let mut expected = [0.0; 2];
    for (logits, &class) in logits.iter().zip(&target).filter(|(_, class)| **class >= 0) {
        let class = class as usize;
        let is_above = |other: usize| {
            logits[other] > logits[class] || (logits[other] == logits[class] && other < class)
        };
        let place = (0..classes).filter(|&other| is_above(other)).count();
        for (count, most) in expected.iter_mut().zip([1, 5]) {
            *count += f64::from(u8::from(place < most));
        }
    }
    assert!(expected[0] > 0.0 && expected[0] < expected[1] && expected[1] < 40.0);
    for dtype in [FloatDType::F32, FloatDType::F64] {
        // The logits are the states: the table is the identity.
        let x = Tensor::<2>::from_data(TensorData::new(logits.concat(), [rows, classes]), &device);
        let table = Tensor::<2>::eye(classes, &device).cast(dtype);
        let x = x.cast(dtype);
        let target = Tensor::from_data(target.as_slice(), &device);
        let (_, right) = linear_cross_entropy(x, table, target, 0.0, Some(-1));
        assert_eq!(floats(right), expected, "{dtype:?}");
    }
}

#[test]
#[should_panic(expected = "the target 4 is not a class from 0 to 3")]
fn a_target_that_is_no_class_is_refused() {
    let device = Device::flex();
    let (x, table) = (Tensor::ones([2, 3], &device), Tensor::ones([4, 3], &device));
    let target = Tensor::from_ints([0, 4], &device);
    let _ = linear_cross_entropy(x, table, target, 0.0, None);
}

#[test]
fn gelu_is_exact() {
    for size in [1, 15, 16, 17, 1000, 40_000] {
        let x = random([size]) * 3.0;
        let ours = outcome([x.clone()], |[x]| gelu(x));
        // Burn's error function is accurate in single precision only.
        let burns = outcome([x.clone()], |[x]| activation::gelu(x));
        for (ours, burns) in ours.iter().zip(&burns) {
            let apart = ours.iter().zip(burns).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) < 4e-6, "{size}");
        }
    }
    let x = Tensor::<1>::from_floats([-3.0, -1.0, -0.1, 0.5, 2.0], &Device::flex());
    let [y, slope] = [0, 1].map(|i| outcome([x.clone()], |[x]| gelu(x))[i].clone());
    // x Φ(x) and Φ(x) + x φ(x), from tables of the normal distribution.
    let table = [
        (-0.004_049_694, -0.011_945_647),
        (-0.158_655_254, -0.083_315_471),
        (-0.046_017_217, 0.420_477_637),
        (0.345_731_23, 0.867_495_005),
        (1.954_499_74, 1.085_231_99),
    ];
    for (i, (expected, expected_slope)) in table.into_iter().enumerate() {
        assert!((y[i] - expected).abs() < 5e-7, "{y:?}");
        let weight = ((i + 1) as f64).sin(); // of the loss
        let apart = (slope[i] / weight - expected_slope).abs();
        assert!(apart < 1e-6, "{slope:?}");
    }
}

#[test]
fn layer_norm_equals_burns() {
    for [rows, width] in [[1, 1], [3, 5], [4, 16], [129, 33], [300, 200]] {
        for epsilon in [1e-6, 1e-2] {
            compare(
                [random([rows * width]), random([width]), random([width])],
                |[x, g, b]| flat(layer_norm(x.reshape([rows, 1, width]), g, b, epsilon)),
                |[x, g, b]| {
                    let x = x.reshape([rows, width]);
                    flat(module::layer_norm(x, g, Some(b), epsilon))
                },
                &format!("{rows} rows of {width}, {epsilon}"),
            );
        }
    }
}

#[test]
fn rms_norm_equals_its_formula() {
    for [rows, width] in [[1, 1], [3, 5], [4, 16], [129, 33], [300, 200]] {
        for epsilon in [1e-6, 1e-2] {
            compare(
                [random([rows * width]), random([width])],
                |[x, g]| flat(rms_norm(x.reshape([rows, 1, width]), g, epsilon)),
                |[x, g]| {
                    let x = x.reshape([rows, width]);
                    let root =
                        (x.clone().powi_scalar(2).sum_dim(1) / width as f64 + epsilon).sqrt();
                    flat(x / root * g.unsqueeze())
                },
                &format!("{rows} rows of {width}, {epsilon}"),
            );
        }
    }
}

#[test]
fn swiglu_equals_its_formula() {
    for size in [1, 15, 16, 17, 1000, 40_000] {
        compare(
            [random([size]) * 3.0, random([size])],
            |[gate, x]| swiglu(gate, x),
            |[gate, x]| gate.clone() / (gate.neg().exp() + 1.0) * x,
            &format!("{size} values"),
        );
    }
}

/// As products of complex numbers.
#[test]
fn rotation_equals_its_formula() {
    for (n, length, heads, half, rest) in [
        (1, 1, 1, 1, 0),
        (2, 3, 2, 2, 0),
        (2, 17, 3, 4, 5),
        (3, 40, 4, 16, 64),
        (1, 5, 0, 3, 2),
    ] {
        let frequencies: Vec<f32> = (0..half).map(|i| 1.5 / (i + 1) as f32).collect();
        let rotation = Rotation::new(&frequencies, 0.5, length + 2);
        let columns = heads * 2 * half + rest;
        let angle = |row: usize, i: usize| f64::from((row % length) as f32 * frequencies[i % half]);
        compare(
            [random([n * length * columns])],
            |[x]| flat(rotation.of_heads(x.reshape([n, length, columns]), heads)),
            |[x]| {
                let x = x.reshape([n * length, columns]);
                let head = |first: usize| -> Tensor<2> {
                    let table = |of: fn(f64) -> f64| {
                        let rows = (0..n * length)
                            .flat_map(|row| (0..half).map(move |i| of(angle(row, i)) * 0.5));
                        let data = TensorData::new(rows.collect::<Vec<f64>>(), [n * length, half]);
                        let table = Tensor::<2>::from_data(data, (&Device::flex(), DType::F64));
                        table.autodiff()
                    };
                    let [a, b] = [0, half].map(|part| x.clone().narrow(1, first + part, half));
                    let (cosine, sine) = (table(f64::cos), table(f64::sin));
                    let real = a.clone() * cosine.clone() - b.clone() * sine.clone();
                    Tensor::cat(vec![real, a * sine + b * cosine], 1)
                };
                let mut parts: Vec<_> = (0..heads).map(|nth| head(nth * 2 * half)).collect();
                if rest > 0 {
                    parts.push(x.clone().narrow(1, columns - rest, rest));
                }
                flat(Tensor::cat(parts, 1))
            },
            &format!("{n} of {length}, {heads} heads of {half}, {rest} others"),
        );
    }
}

/// Each row is turned as it is where it stands, also by Burn's operations; gradients are turned back.
#[test]
fn rotation_at_positions_is_that_of_each_place() {
    let rotation = Rotation::new(&[1.5, 0.75], 0.5, 40);
    let positions = [7, 0, 39, 7, 12, 3];
    for (n, length, own) in [
        (1, 6, &positions[..]),
        (2, 3, &positions[..]),
        (2, 3, &positions[..3]),
    ] {
        for dtype in [DType::F32, DType::F64] {
            let x = random([n * length * 9]).cast(dtype).reshape([n, length, 9]);
            let x = x.autodiff().require_grad();
            let found = rotation.of_heads_at(x.clone(), 2, own);
            let weights = random([n * length * 9]).cast(dtype).reshape([n, length, 9]);
            let weights = weights.autodiff();
            let gradient = |y: Tensor<3>| {
                let gradients = (y * weights.clone()).sum().backward();
                x.grad(&gradients).unwrap().into_data()
            };
            // Each row alone, at the end of a text of its length.
            let rows = (0..n * length).map(|row| {
                let position = own[row % own.len()];
                let one = x.clone().reshape([n * length, 1, 9]).narrow(0, row, 1);
                let text = one.repeat_dim(1, position + 1);
                rotation.of_heads(text, 2).narrow(1, position, 1)
            });
            let expected = Tensor::cat(rows.collect(), 0).reshape([n, length, 9]);
            let same = [found.clone(), expected.clone()].map(|y| y.inner().into_data());
            assert_eq!(same[0], same[1], "{n} of {length}, {dtype:?}");
            gradient(found).assert_approx_eq::<f64>(&gradient(expected), Tolerance::absolute(1e-6));
        }
    }
}

fn heads(count: usize, causal: bool) -> Heads {
    Heads::new(count, causal)
}

/// Attention as in the paper.
fn by_formula(x: Tensor<3>, heads: Heads, kept: Option<Tensor<4>>) -> Tensor<3> {
    let [n, length, columns] = x.dims();
    let Heads { count, keys, .. } = heads;
    let width = columns / (count + 2 * keys);
    let d = count * width;
    let head = |nth: usize| {
        x.clone()
            .narrow(2, nth * width, width)
            .unsqueeze_dim::<4>(1)
    };
    // Each head of keys and values as often as it is used.
    let part = |first: usize, group: usize| {
        let heads = (0..count).map(|index| head(first + index / group));
        Tensor::cat(heads.collect(), 1)
    };
    let group = count / keys;
    let (q, k, v) = (part(0, 1), part(count, group), part(count + keys, group));
    let mut scores = q.matmul(k.transpose()) / (width as f64).sqrt();
    if heads.causal {
        let later = Tensor::<2, Bool>::tril_mask([length; 2], 0, &x.device());
        scores = scores.mask_fill(later.unsqueeze(), -1e30);
    }
    let mut shares = softmax(scores, 3);
    if let Some(kept) = kept {
        shares = shares * kept;
    }
    let output = shares.matmul(v).permute([0, 2, 1, 3]);
    output.reshape([n, length, d])
}

#[test]
fn attention_equals_the_formula() {
    for (n, length, [count, keys], width) in [
        (1, 1, [1, 1], 1),
        (2, 2, [2, 2], 3),
        (3, 17, [1, 1], 5),
        (2, 33, [4, 4], 8),
        (2, 33, [4, 2], 8),
        (3, 20, [6, 1], 3),
        (2, 65, [3, 3], 16),
        (1, 130, [2, 2], 20),
        (1, 130, [6, 3], 10),
        (1, 300, [1, 1], 4), // more than a block of whole rows
    ] {
        for causal in [false, true] {
            for drops in [false, true] {
                let heads = Heads {
                    keys,
                    ..Heads::new(count, causal)
                };
                let columns = (count + 2 * keys) * width;
                // Its samples need not be those of the input.
                let samples = if causal { n } else { 1 };
                let mask = drops.then(|| mask([samples, n / samples * count * length * length]));
                let kept = |x: &Flat| {
                    let kept = mask?.factors(&x.device().inner());
                    let kept = kept.reshape([n, count, length, length]);
                    let kept = kept.cast(FloatDType::from(x.dtype()));
                    Some(match x.is_autodiff() {
                        true => kept.autodiff(),
                        false => kept,
                    })
                };
                compare(
                    [random([n * length * columns])],
                    |[x]| flat(attention(x.reshape([n, length, columns]), heads, mask)),
                    |[x]| {
                        let kept = kept(&x);
                        flat(by_formula(x.reshape([n, length, columns]), heads, kept))
                    },
                    &format!("{n} of {length}, {heads:?} of {width}, drops {drops}"),
                );
            }
        }
    }
}

/// Scores far apart and far from zero. Queries and keys are whole numbers with exact products, because
/// the exponential magnifies rounding. Values are small, since their differences are multiplied by the
/// keys.
#[test]
fn attention_does_not_overflow() {
    let heads = heads(1, false);
    let (queries_and_keys, values) = ((random([9, 8]) * 20.0).round(), random([9, 4]));
    compare(
        [flat(Tensor::cat(vec![queries_and_keys, values], 1))],
        |[x]| flat(attention(x.reshape([1, 9, 12]), heads, None)),
        |[x]| flat(by_formula(x.reshape([1, 9, 12]), heads, None)),
        "large scores",
    );
}

/// A position does not depend on later ones.
#[test]
fn causal_attention_sees_the_past_only() {
    let heads = heads(2, true);
    let x = random([1, 70, 24]);
    let changed = Tensor::cat(vec![x.clone().narrow(1, 0, 40), random([1, 30, 24])], 1);
    let [y, other] = [x, changed].map(|x| attention(x, heads, None).narrow(1, 0, 40));
    assert_eq!(y.into_data(), other.into_data());
}

#[test]
#[should_panic(expected = "cannot be split into")]
fn heads_must_divide_the_width() {
    let _ = attention(random([1, 2, 12]), heads(5, false), None);
}

/// The engine reports NaN, so kernels must pass it on.
#[test]
fn nan_stays_nan() {
    let device = Device::flex();
    let nan = || Tensor::<2>::full([3, 6], f32::NAN, &device);
    let heads = heads(1, true);
    let all = [
        flat(gelu(nan())),
        flat(layer_norm(nan(), random([6]), random([6]), 1e-5)),
        flat(linear(nan(), random([6, 2]), None)),
        flat(attention(nan().unsqueeze(), heads, None)),
    ];
    for y in all {
        assert!(floats(y).iter().all(|y| y.is_nan()));
    }
}

#[test]
fn threads_change_no_bit() {
    let heads = heads(2, true);
    let inputs = [300 * 96, 96 * 144, 144, 144, 144].map(|size| random([size]));
    let run = |[x, w, b, gamma, beta]: [Flat; 5]| {
        let y = linear(x.reshape([6, 50, 96]), w.reshape([96, 144]), Some(b));
        let y = layer_norm(gelu(y), gamma, beta, 1e-5);
        flat(attention(y, heads, None))
    };
    let with = |threads| common::pool(threads).install(|| outcome(inputs.clone(), run));
    let one = with(1);
    assert_eq!(one, with(2));
    assert_eq!(one, with(3));
}

/// Also of few bits, and of samples that threads share.
#[test]
fn dropout_multiplies_by_its_factors() {
    for (samples, each) in [(1, 1), (3, 7), (2, 640), (1, 100_001)] {
        let mask = mask([samples, each]);
        for dtype in [FloatDType::F32, FloatDType::BF16] {
            let factors = mask.factors(&Device::flex()).cast(dtype).autodiff();
            let x = common::normal::<2>([samples, each], 0.0, 1.0).cast(dtype);
            let run = |dropped: &dyn Fn(Tensor<2>) -> Tensor<2>| {
                let x = x.clone().autodiff().require_grad();
                let y = dropped(x.clone());
                let gradients = common::loss(y.clone()).backward();
                [y.inner(), x.grad(&gradients).unwrap()].map(|all| floats(flat(all)))
            };
            let found = run(&|x| dropout(x, mask));
            assert_eq!(found, run(&|x| x * factors.clone()), "{each} in {dtype:?}");
            assert_eq!(found[0], floats(flat(dropout(x.clone(), mask))));
        }
    }
}

/// A deferred gradient is the same, bit for bit.
#[test]
fn gradients_of_linear_weights_can_be_deferred() {
    let weight = |shape: [usize; 2]| {
        let value = random(shape).autodiff().require_grad();
        Param::initialized(ParamId::new(), value)
    };
    let (first, table) = (weight([12, 7]), weight([30, 7]));
    let bias = Param::initialized(ParamId::new(), random([7]).autodiff().require_grad());
    let x = random([200, 12]).autodiff().require_grad();
    let loss = || {
        let y = linear(x.clone(), first.val(), Some(bias.val()));
        linear_by_rows(gelu(y), table.val(), None)
            .powi_scalar(2)
            .sum()
    };
    let whole = loss().backward();
    let mut parameters = Parameters::default();
    parameters.insert(&first);
    parameters.insert(&table);
    parameters.insert(&bias);
    let (half, deferred) = defer(parameters, || loss().backward());
    assert_eq!(deferred.parameters(), [first.id, table.id].into());
    assert!(first.val().grad(&half).is_none() && table.val().grad(&half).is_none());
    let mut later = deferred.run();
    for weight in [&first, &table] {
        let now = weight.val().grad(&whole).unwrap();
        assert_eq!(bits(later.remove::<2>(weight.id).unwrap()), bits(now));
    }
    assert_eq!(bits(x.grad(&half).unwrap()), bits(x.grad(&whole).unwrap()));
    let of_bias = [&half, &whole].map(|found| floats(bias.val().grad(found).unwrap()));
    assert_eq!(of_bias[0], of_bias[1]);
}

#[test]
fn burns_gradient_checkpointing_gives_the_same_results() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let heads = heads(2, true);
    let (x, w) = (random([2, 9, 8]), random([8, 24]));
    let (b, g) = (random([24]), random([24]));
    let of_hidden = random([8, 8]);
    let (of_shares, of_output) = (mask([2, 2 * 9 * 9]), mask([2, 9 * 8]));
    let run = |device: &Device| {
        fn to<const D: usize>(tensor: &Tensor<D>, device: &Device) -> Tensor<D> {
            Tensor::from_data(tensor.to_data(), device).require_grad()
        }

        let [b, g] = [&b, &g].map(|tensor| to(tensor, device));
        let (w, x) = (to(&w, device), to(&x, device));
        let y = linear(x.clone(), w.clone(), Some(b.clone()));
        let y = layer_norm(gelu(y), g, b, 1e-5);
        let y = dropout(attention(y, heads, Some(of_shares)), of_output);
        let y = frozen_linear(y, of_hidden.clone(), None);
        let y = flat(linear_by_rows(y, w.transpose(), None));
        let gradients = common::loss(y.clone()).backward();
        [floats(y), floats(flat(x.grad(&gradients).unwrap()))]
    };
    let (found, expected) = (run(&device), run(&Device::flex().autodiff()));
    for (found, expected) in found.iter().zip(&expected) {
        close(found, expected, "checkpointed");
    }
}

/// The softmax and the norm in f16 and bf16 equal those in f32 on the same values, rounded at the end.
#[test]
fn softmax_and_norm_in_f16_and_bf16_compute_in_f32() {
    for (dtype, bits) in [(FloatDType::BF16, 8), (FloatDType::F16, 11)] {
        let rounding = 0.5f64.powi(bits);
        let narrow = |x: Flat| x.cast(dtype);
        let far = common::normal::<1>([6 * 40], 300.0, 900.0);
        let (gamma, beta) = (random::<1>([40]), random::<1>([40]));
        let normalized =
            |[x, gamma, beta]: [Flat; 3]| flat(layer_norm(x.reshape([6, 40]), gamma, beta, 1e-5));
        let inputs = [far, gamma, beta].map(narrow);
        let found = normalized(inputs.clone());
        assert_eq!(found.dtype(), dtype.into());
        let expected = normalized(inputs.map(|x| x.cast(FloatDType::F32)));
        assert_eq!(floats(found), floats(expected.cast(dtype)));

        let heads = heads(2, true);
        let projected = narrow(random::<1>([2 * 9 * 24]));
        let mixed = |x: Flat| flat(attention(x.reshape([2, 9, 24]), heads, None));
        let found = outcome([projected.clone()], |[x]| mixed(x));
        let expected = outcome([projected.cast(FloatDType::F32)], |[x]| mixed(x));
        for (found, expected) in found.iter().zip(&expected) {
            // Twice the roundings of scores, shares and their sums, forward and backward.
            let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            for (found, expected) in found.iter().zip(expected) {
                let apart = (found - expected).abs();
                assert!(apart < 12.0 * rounding * largest, "{apart} of {largest}");
            }
        }
    }
}
