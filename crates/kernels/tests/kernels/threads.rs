//! Results for several numbers of threads: more and fewer than there are samples.

use crate::common::{bits, loss, mask, normal, pool};

use burn::{
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Int, Tensor, Tolerance},
};
use stovepipe_kernels::{
    Heads, attention, convolve, linear, linear_cross_entropy, relu_convolve, relu_convolve_odd,
};

const SAMPLES: [usize; 4] = [1, 2, 3, 5];
const THREADS: [usize; 3] = [2, 3, 8];

/// The output and the gradients of `x` and of the weight.
fn convolved(
    conv: &Conv2d,
    x: &Tensor<4>,
    run: impl Fn(&Conv2d, Tensor<4>) -> Tensor<4>,
) -> [Tensor<4>; 3] {
    let x = x.clone().autodiff().require_grad();
    let y = run(conv, x.clone());
    let gradients = loss(y.clone()).backward();
    let of_weight = conv.weight.val().grad(&gradients).unwrap();
    [y.inner(), x.grad(&gradients).unwrap(), of_weight]
}

/// Outputs and gradients of inputs have the same bits for any number of threads. So have those of weights if
/// there are fewer samples than threads: otherwise, each thread adds up those of its samples first.
#[test]
fn threads_change_no_bit_of_a_convolution() {
    let conv = |kernel: [usize; 2], stride| {
        let [rows, columns] = kernel.map(|size| size / 2);
        let padding = PaddingConfig2d::Explicit(rows, columns, rows, columns);
        let config = Conv2dConfig::new([24, 40], kernel).with_padding(padding);
        let config = config.with_stride([stride; 2]).with_bias(false);
        config.init(&Device::flex().autodiff())
    };
    type Run = fn(&Conv2d, Tensor<4>) -> Tensor<4>;
    let cases: [(Conv2d, Run); 5] = [
        (conv([3, 3], 1), convolve),
        (conv([1, 7], 1), relu_convolve),
        (conv([1, 1], 1), convolve),
        (conv([3, 3], 2), relu_convolve),
        (conv([1, 1], 2), relu_convolve_odd),
    ];
    for samples in SAMPLES {
        let x = normal([samples, 24, 40, 41], 0.1, 1.0); // worth sharing
        for (number, (conv, run)) in cases.iter().enumerate() {
            let of = |threads| pool(threads).install(|| convolved(conv, &x, run));
            let expected = of(1);
            for threads in THREADS {
                let found = of(threads);
                let what = format!("case {number}, {samples} samples, {threads} threads");
                let exact = if samples < threads { 3 } else { 2 };
                for (found, expected) in found.iter().zip(&expected).take(exact) {
                    assert!(bits(found.clone()) == bits(expected.clone()), "{what}");
                }
                let [found, expected] = [&found, &expected].map(|all| all[2].to_data());
                found.assert_approx_eq::<f32>(&expected, Tolerance::rel_abs(1e-4, 1e-3));
            }
        }
    }
}

#[test]
fn threads_change_no_bit_of_attention() {
    let (count, width, length) = (3, 32, 70);
    for samples in SAMPLES {
        let mask = mask([samples, count * length * length]);
        for (keys, causal, drops) in [(3, false, false), (3, true, true), (1, true, false)] {
            let heads = Heads {
                keys,
                ..Heads::new(count, causal)
            };
            let projected = normal([samples, length, (count + 2 * keys) * width], 0.0, 1.0);
            let of = |threads| {
                pool(threads).install(|| {
                    let x = projected.clone().autodiff().require_grad();
                    let y = attention(x.clone(), heads, drops.then_some(mask));
                    let gradients = loss(y.clone()).backward();
                    [y.inner(), x.grad(&gradients).unwrap()].map(bits)
                })
            };
            let expected = of(1);
            for threads in THREADS {
                assert!(
                    of(threads) == expected,
                    "{samples} samples, {threads} threads"
                );
            }
        }
    }
}

/// A weight of more values than the sum of a block has: large and small shares must add in one order.
#[test]
fn threads_change_no_bit_of_a_large_linear_layer() {
    let (x, weight) = (normal([300, 600], 0.0, 1.0), normal([600, 500], 0.0, 1.0));
    let of = |threads| {
        pool(threads).install(|| {
            let [x, weight] = [&x, &weight].map(|x| x.clone().autodiff().require_grad());
            let y = linear(x.clone(), weight.clone(), None);
            let gradients = loss(y.clone()).backward();
            let [of_x, of_weight] = [x, weight].map(|x| x.grad(&gradients).unwrap());
            [y.inner(), of_x, of_weight].map(bits)
        })
    };
    let expected = of(1);
    for threads in THREADS {
        assert!(of(threads) == expected, "{threads} threads");
    }
}

#[test]
fn threads_change_no_bit_of_cross_entropy() {
    let [rows, width, classes] = [300, 16, 20_000]; // in two blocks
    let [x, table] = [rows, classes].map(|count| normal([count, width], 0.0, 1.0));
    let target = |row: usize| {
        if row % 7 == 3 {
            -1
        } else {
            (row * 7919 % classes) as i64
        }
    };
    let target: Vec<_> = (0..rows).map(target).collect();
    let target = Tensor::<1, Int>::from_data(target.as_slice(), &Device::flex());
    let of = |threads| {
        pool(threads).install(|| {
            let [x, table] = [&x, &table].map(|own| own.clone().autodiff().require_grad());
            let operands = (x.clone(), table.clone());
            let (loss, right) =
                linear_cross_entropy(operands.0, operands.1, target.clone(), 0.1, Some(-1));
            let gradients = loss.backward();
            let all = [x.grad(&gradients), table.grad(&gradients)].map(Option::unwrap);
            (bits(loss.inner()), bits(right.inner()), all.map(bits))
        })
    };
    let expected = of(1);
    for threads in THREADS {
        assert!(of(threads) == expected, "{threads} threads");
    }
}
