//! The kernels for sequences against Burn's own operations in double precision: outputs and gradients.

use crate::common;

use burn::{
    module::{Param, ParamId},
    tensor::{
        Bool, Device, FloatDType, Int, Tensor,
        activation::{self, softmax},
        module,
    },
};
use stovepipe_autodiff::{Parameters, defer};
use stovepipe_kernels::{Heads, attention, gelu, layer_norm, linear, linear_by_rows};

/// Tensors by Burn alone, of the rank that all are reshaped to here, and so is what is made of them.
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

/// What `run` makes of inputs, and their gradients for a loss that weighs every number differently.
fn outcome<const N: usize>(inputs: [Flat; N], run: impl Fn([Flat; N]) -> Flat) -> Vec<Vec<f64>> {
    let inputs = inputs.map(|x| x.autodiff().require_grad());
    let y = run(inputs.clone());
    let slopes = Tensor::<1, Int>::arange(1..y.dims()[0] as i64 + 1, &y.device());
    let slopes = slopes.float().sin().cast(FloatDType::from(y.dtype()));
    let gradients = (y.clone() * slopes).sum().backward();
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
    let expected = outcome(exact, burns);
    let found = outcome(inputs.clone(), &ours);
    for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
        close(found, expected, &format!("{what}, tensor {place}"));
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

/// Rows, numbers in and numbers out: fewer and more than a block, a vector, and what other threads are
/// worth.
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
fn linear_layers_are_products() {
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
            [x(), weight.clone()],
            |[x, w]| flat(linear(x.reshape([rows, from]), w.reshape([from, to]), None)),
            |[x, w]| flat(x.reshape([rows, from]).matmul(w.reshape([from, to]))),
            &format!("{what}, no bias"),
        );
        compare(
            [x(), weight],
            |[x, w]| {
                flat(linear_by_rows(
                    x.reshape([rows, from]),
                    w.reshape([to, from]),
                ))
            },
            |[x, w]| {
                let w = w.reshape([to, from]).transpose();
                flat(x.reshape([rows, from]).matmul(w))
            },
            &format!("{what}, by rows"),
        );
    }
}

/// One so large that its gradient is one product.
#[test]
fn a_wide_linear_layer_is_a_product() {
    let [rows, from, to] = [140, 40, 7000];
    compare(
        [random([rows * from]), random([from * to])],
        |[x, w]| {
            flat(linear_by_rows(
                x.reshape([rows, from]),
                w.reshape([to, from]),
            ))
        },
        |[x, w]| {
            let w = w.reshape([to, from]).transpose();
            flat(x.reshape([rows, from]).matmul(w))
        },
        "wide",
    );
}

#[test]
fn gelu_is_exact() {
    // Burn's error function is accurate in single precision only.
    let by_formula = |[x]: [Flat; 1]| activation::gelu(x);
    for size in [1, 15, 16, 17, 1000, 40_000] {
        let x = random([size]) * 3.0;
        let ours = outcome([x.clone()], |[x]| gelu(x));
        let burns = outcome([x.clone()], by_formula);
        for (ours, burns) in ours.iter().zip(&burns) {
            let apart = ours.iter().zip(burns).map(|(a, b)| (a - b).abs());
            assert!(apart.fold(0.0, f64::max) < 4e-6, "{size}");
        }
    }
    let x = Tensor::<1>::from_floats([-3.0, -1.0, -0.1, 0.5, 2.0], &Device::flex());
    let [y, slope] = [0, 1].map(|i| outcome([x.clone()], |[x]| gelu(x))[i].clone());
    // x Φ(x) and Φ(x) + x φ(x), from tables of the normal distribution.
    let expected = [
        -0.004_049_694,
        -0.158_655_254,
        -0.046_017_217,
        0.345_731_23,
        1.954_499_74,
    ];
    assert!(
        y.iter().zip(expected).all(|(y, e)| (y - e).abs() < 5e-7),
        "{y:?}"
    );
    let sines = (1..=5).map(|i| f64::from(i).sin());
    let slopes = [
        -0.011_945_647,
        -0.083_315_471,
        0.420_477_637,
        0.867_495_005,
        1.085_231_99,
    ];
    let mut pairs = slope.iter().zip(sines).zip(slopes);
    assert!(
        pairs.all(|((s, sine), e)| (s / sine - e).abs() < 1e-6),
        "{slope:?}"
    );
}

#[test]
fn layer_norm_is_burns() {
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

/// Attention as the paper writes it.
fn by_the_book(x: Tensor<3>, heads: Heads, kept: Option<Tensor<4>>) -> Tensor<3> {
    let [n, length, width] = x.dims();
    let d = width / 3;
    let by_head = |part: usize| {
        let part = x.clone().slice([0..n, 0..length, part * d..(part + 1) * d]);
        part.reshape([n, length, heads.count, d / heads.count])
            .permute([0, 2, 1, 3])
    };
    let (q, k, v) = (by_head(0), by_head(1), by_head(2));
    let mut scores = q.matmul(k.transpose()) / ((d / heads.count) as f64).sqrt();
    if heads.causal {
        let later = Tensor::<2, Bool>::tril_mask([length; 2], 0, &x.device());
        scores = scores.mask_fill(later.unsqueeze(), -1e30);
    }
    let mut shares = softmax(scores, 3);
    if let Some(kept) = kept {
        shares = shares * kept;
    }
    shares
        .matmul(v)
        .permute([0, 2, 1, 3])
        .reshape([n, length, d])
}

#[test]
fn attention_is_by_the_book() {
    for (n, length, count, width) in [
        (1, 1, 1, 1),
        (2, 2, 2, 3),
        (3, 17, 1, 5),
        (2, 33, 4, 8),
        (2, 65, 3, 16),
        (1, 130, 2, 20),
        (1, 300, 1, 4), // more than a block of whole rows
    ] {
        for causal in [false, true] {
            for drops in [false, true] {
                let heads = Heads { count, causal };
                let d = count * width;
                let kept = drops.then(|| {
                    let drawn = random([n, count, length, length]);
                    drawn.greater_elem(-0.5).float() * 1.6
                });
                let kept = |x: &Flat| {
                    let kept = kept.clone()?.cast(FloatDType::from(x.dtype()));
                    Some(if x.is_autodiff() {
                        kept.autodiff()
                    } else {
                        kept
                    })
                };
                compare(
                    [random([n * length * 3 * d])],
                    |[x]| {
                        let kept = kept(&x);
                        flat(attention(x.reshape([n, length, 3 * d]), heads, kept))
                    },
                    |[x]| {
                        let kept = kept(&x);
                        flat(by_the_book(x.reshape([n, length, 3 * d]), heads, kept))
                    },
                    &format!("{n} of {length}, {heads:?} of {width}, drops {drops}"),
                );
            }
        }
    }
}

/// Scores far apart and far from zero. Queries and keys are whole numbers, whose products are exact: what is
/// exponential in a score would else show how it is rounded. Values are small, since differences of them are
/// multiplied by the keys.
#[test]
fn attention_does_not_overflow() {
    let heads = Heads {
        count: 1,
        causal: false,
    };
    let (queries_and_keys, values) = ((random([9, 8]) * 20.0).round(), random([9, 4]));
    compare(
        [flat(Tensor::cat(vec![queries_and_keys, values], 1))],
        |[x]| flat(attention(x.reshape([1, 9, 12]), heads, None)),
        |[x]| flat(by_the_book(x.reshape([1, 9, 12]), heads, None)),
        "large scores",
    );
}

/// No place hears of those after it.
#[test]
fn causal_attention_looks_back() {
    let heads = Heads {
        count: 2,
        causal: true,
    };
    let x = random([1, 70, 24]);
    let changed = Tensor::cat(vec![x.clone().narrow(1, 0, 40), random([1, 30, 24])], 1);
    let [y, other] = [x, changed].map(|x| attention(x, heads, None).narrow(1, 0, 40));
    assert_eq!(y.into_data(), other.into_data());
}

#[test]
#[should_panic(expected = "cannot be split into")]
fn heads_must_divide_the_width() {
    let heads = Heads {
        count: 5,
        causal: false,
    };
    let _ = attention(random([1, 2, 12]), heads, None);
}

/// NaNs are found by the engine; they must come out.
#[test]
fn what_is_not_a_number_stays_none() {
    let device = Device::flex();
    let nan = || Tensor::<2>::full([3, 6], f32::NAN, &device);
    let heads = Heads {
        count: 1,
        causal: true,
    };
    let all = [
        flat(gelu(nan())),
        flat(layer_norm(nan(), random([6]), random([6]), 1e-5)),
        flat(linear(nan(), random([6, 2]), None)),
        flat(attention(nan().unsqueeze(), heads, None)),
    ];
    assert!(
        all.into_iter()
            .all(|y| floats(y).iter().all(|y| y.is_nan()))
    );
}

/// More than rounding stays the same here: not a bit changes with the number of threads.
#[test]
fn threads_change_no_bit() {
    let heads = Heads {
        count: 2,
        causal: true,
    };
    let inputs = [
        random([300 * 96]),
        random([96 * 144]),
        random([144]),
        random([144]),
        random([144]),
    ];
    let run = |[x, w, b, gamma, beta]: [Flat; 5]| {
        let y = linear(x.reshape([6, 50, 96]), w.reshape([96, 144]), Some(b));
        let y = layer_norm(gelu(y), gamma, beta, 1e-5);
        flat(attention(y, heads, None))
    };
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .unwrap();
        pool.install(|| outcome(inputs.clone(), run))
    };
    let one = with(1);
    assert_eq!(one, with(2));
    assert_eq!(one, with(3));
}

/// The gradient of a weight can wait, and is then the same, bit for bit.
#[test]
fn weights_of_linear_layers_can_wait() {
    let weight = |shape: [usize; 2]| {
        let value = random(shape).autodiff().require_grad();
        Param::initialized(ParamId::new(), value)
    };
    let (first, table) = (weight([12, 7]), weight([30, 7]));
    let bias = Param::initialized(ParamId::new(), random([7]).autodiff().require_grad());
    let x = random([200, 12]).autodiff().require_grad();
    let loss = || {
        let y = linear(x.clone(), first.val(), Some(bias.val()));
        linear_by_rows(gelu(y), table.val()).powi_scalar(2).sum()
    };
    let bits = |x: Tensor<2>| x.into_data().try_to_vec::<f32>().unwrap();

    let whole = loss().backward();
    let mut parameters = Parameters::default();
    parameters.insert(&first);
    parameters.insert(&bias);
    parameters.insert(&table);
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

/// Where kernels are Burn's operations, they are the same functions.
#[test]
fn under_burns_checkpointing_the_operations_are_burns() {
    let device = Device::flex().autodiff().gradient_checkpointing();
    let heads = Heads {
        count: 2,
        causal: true,
    };
    let (x, w) = (random([2, 9, 8]), random([8, 24]));
    let (b, g) = (random([24]), random([24]));
    let kept = random([2, 2, 9, 9]).greater_elem(0.0).float() * 2.0;
    let run = |device: Option<&Device>| {
        let [b, g] = [&b, &g].map(|t| device.map_or(t.clone(), |d| t.clone().to_device(d)));
        let w = device.map_or(w.clone(), |d| w.clone().to_device(d));
        let x = device.map_or(x.clone(), |d| x.clone().to_device(d));
        let kept = device.map_or(kept.clone(), |d| kept.clone().to_device(d));
        let y = layer_norm(gelu(linear(x, w.clone(), Some(b.clone()))), g, b, 1e-5);
        let y = attention(y, heads, Some(kept));
        floats(flat(linear_by_rows(y, w.transpose())))
    };
    close(&run(Some(&device)), &run(None), "checkpointed");
}

/// The softmax and the norm of f16 and bf16 are those of f32 on the same numbers, rounded when they are found.
#[test]
fn few_bits_are_widened_for_sums_and_exponentials() {
    for (dtype, rounding) in [
        (FloatDType::BF16, 0.5f64.powi(8)),
        (FloatDType::F16, 0.5f64.powi(11)),
    ] {
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

        let heads = Heads {
            count: 2,
            causal: true,
        };
        let projected = narrow(random::<1>([2 * 9 * 24]));
        let mixed = |x: Flat| flat(attention(x.reshape([2, 9, 24]), heads, None));
        let found = outcome([projected.clone()], |[x]| mixed(x));
        let expected = outcome([projected.cast(FloatDType::F32)], |[x]| mixed(x));
        for (found, expected) in found.iter().zip(&expected) {
            // Rounded are scores, shares and what they are summed to, and as much on the way back, twice over.
            let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            for (found, expected) in found.iter().zip(expected) {
                let difference = (found - expected).abs();
                assert!(
                    difference < 12.0 * rounding * largest,
                    "{difference} of {largest}"
                );
            }
        }
    }
}
