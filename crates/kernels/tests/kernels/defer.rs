//! Deferred gradients of weights equal, bit for bit, those of a whole backward pass.

use crate::common::{self, bits, loss};

use burn::{
    module::{Param, ParamId},
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{
        Device,
        FloatDType::{self, BF16, F16, F64},
        Gradients, Tensor, Tolerance,
        activation::relu,
        module,
    },
};
use stovepipe_autodiff::{Deferred, Parameters, WeightGradients, defer};
use stovepipe_kernels::{convolve, linear, linear_by_rows, relu_convolve, relu_convolve_odd};

fn device() -> Device {
    Device::flex().autodiff()
}

fn conv(kernel: [usize; 2]) -> Conv2d {
    let [rows, columns] = kernel.map(|size| size / 2);
    Conv2dConfig::new([3, 3], kernel)
        .with_padding(PaddingConfig2d::Explicit(rows, columns, rows, columns))
        .with_bias(false)
        .init(&device())
}

fn map() -> Tensor<4> {
    common::normal([5, 3, 6, 7], 0.0, 1.0)
}

fn parameters(convs: &[&Conv2d]) -> Parameters {
    let mut parameters = Parameters::default();
    (convs.iter()).for_each(|conv| parameters.insert(&conv.weight));
    parameters
}

/// The gradients of `x` and of the weights, at once.
fn whole(x: &Tensor<4>, convs: &[&Conv2d], run: impl Fn(Tensor<4>) -> Tensor<4>) -> Vec<Vec<u32>> {
    let x = x.clone().autodiff().require_grad();
    let gradients = loss(run(x.clone())).backward();
    let of_weights = (convs.iter()).map(|conv| now(&conv.weight, &gradients).unwrap());
    let of_x = bits(x.grad(&gradients).unwrap());
    std::iter::once(of_x).chain(of_weights).collect()
}

/// The same in two halves. In the first, no weight may have a gradient.
fn halves(x: &Tensor<4>, convs: &[&Conv2d], run: impl Fn(Tensor<4>) -> Tensor<4>) -> Vec<Vec<u32>> {
    let x = x.clone().autodiff().require_grad();
    let loss = loss(run(x.clone()));
    let (gradients, deferred) = defer(parameters(convs), || loss.backward());
    let mut early = convs.iter().map(|conv| now(&conv.weight, &gradients));
    assert!(early.all(|gradient| gradient.is_none()));
    let mut later = deferred.run();
    let later = |conv: &&Conv2d| bits(later.remove::<4>(conv.weight.id).unwrap());
    let of_weights = convs.iter().map(later);
    let of_x = bits(x.grad(&gradients).unwrap());
    std::iter::once(of_x).chain(of_weights).collect()
}

fn now(weight: &Param<Tensor<4>>, gradients: &Gradients) -> Option<Vec<u32>> {
    weight.val().grad(gradients).map(bits)
}

#[test]
fn the_bits_equal_those_of_a_whole_backward_pass() {
    for kernel in [[1, 1], [1, 7], [3, 3], [5, 1]] {
        let conv = conv(kernel);
        let x = map();
        let all = [&conv];
        let check = |run: &dyn Fn(Tensor<4>) -> Tensor<4>| {
            assert_eq!(halves(&x, &all, run), whole(&x, &all, run), "{kernel:?}");
        };
        check(&|x| convolve(&conv, x));
        check(&|x| relu_convolve(&conv, x));
        if kernel == [1, 1] {
            check(&|x| relu_convolve_odd(&conv, x));
        }
        // Read twice and three times: sums in the order of the backward pass.
        check(&|x| convolve(&conv, relu_convolve(&conv, x)));
        check(&|x| convolve(&conv, relu_convolve(&conv, convolve(&conv, x.tanh()))));
    }
}

/// Where the CPU has no kernel, as on other backends. The gradients are near those of Burn's layers.
#[test]
fn weights_of_every_precision_are_deferred() {
    for (dtype, limit) in [(F64, 1e-12), (F16, 3e-3), (BF16, 3e-2)] {
        let cast = |module: Conv2d| cast(module, dtype);
        let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
        let config = Conv2dConfig::new([3, 3], [3, 3]).with_padding(padding);
        let [plain, biased] = [false, true].map(|bias| {
            let config = config.clone().with_stride([2, 1]);
            cast(config.with_bias(bias).init(&device()))
        });
        let one = cast(Conv2dConfig::new([3, 1], [1, 7]).init(&device()));
        let (weight, table) = (parameter([7, 5], dtype), parameter([2, 5], dtype));
        let bias = parameter([5], dtype);
        let ours = |x: Tensor<4>| {
            let y = convolve(&one, convolve(&biased, relu_convolve(&plain, x)));
            let y = linear(
                y.narrow(3, 0, 1).expand([-1, -1, -1, 7]),
                weight.val(),
                Some(bias.val()),
            );
            linear_by_rows(y, table.val(), None)
        };
        let burns = |x: Tensor<4>| {
            let y = one.forward(biased.forward(plain.forward(relu(x))));
            let y = y.narrow(3, 0, 1).expand([-1, -1, -1, 7]);
            let y = module::linear(y, weight.val(), Some(bias.val()));
            module::linear(y, table.val().transpose(), None)
        };
        let all = || {
            let mut all = parameters(&[&plain, &biased, &one]);
            all.insert(&weight);
            all.insert(&table);
            all
        };
        let of = |mut gradients: Gradients, mut later: WeightGradients| {
            let maps = [&plain, &biased, &one].map(|conv| &conv.weight).into_iter();
            let mut found = Vec::new();
            let mut take = |gradient: Tensor<1>| found.push(gradient.cast(F64).into_data());
            for weight in maps {
                let now = weight.val().grad_remove(&mut gradients);
                take(
                    now.or_else(|| later.remove::<4>(weight.id))
                        .unwrap()
                        .flatten(0, 3),
                );
            }
            for weight in [&weight, &table] {
                let now = weight.val().grad_remove(&mut gradients);
                take(
                    now.or_else(|| later.remove::<2>(weight.id))
                        .unwrap()
                        .flatten(0, 1),
                );
            }
            take(bias.val().grad(&gradients).unwrap());
            found
        };
        let x = map().cast(dtype).autodiff();
        let whole = of(loss(ours(x.clone())).backward(), WeightGradients::default());
        let loss_of_half = loss(ours(x.clone()));
        let (early, deferred) = defer(all(), || loss_of_half.backward());
        assert_eq!(deferred.parameters().len(), 4, "{dtype:?}"); // `one` has a computed weight
        assert!(weight.val().grad(&early).is_none());
        assert_eq!(of(early, deferred.run()), whole, "{dtype:?}");
        let expected = of(loss(burns(x)).backward(), WeightGradients::default());
        for (found, expected) in whole.iter().zip(&expected) {
            found.assert_approx_eq::<f64>(expected, Tolerance::rel_abs(limit, limit));
        }
    }
}

/// With other values, the same in every run.
fn cast(conv: Conv2d, dtype: FloatDType) -> Conv2d {
    let bias = conv.bias.map(|bias| bias.lazy_shape().dims());
    Conv2d {
        weight: parameter(conv.weight.lazy_shape().dims(), dtype),
        bias: bias.map(|shape| parameter(shape, dtype)),
        ..conv
    }
}

fn parameter<const D: usize>(shape: [usize; D], dtype: FloatDType) -> Param<Tensor<D>> {
    Param::from_tensor(leaf(common::normal(shape, 0.0, 0.2), dtype))
}

fn leaf<const D: usize>(x: Tensor<D>, dtype: FloatDType) -> Tensor<D> {
    let x = if x.is_autodiff() { x.inner() } else { x };
    x.cast(dtype).autodiff().require_grad()
}

#[test]
fn each_gradient_goes_to_its_own_weight() {
    let (first, second) = (conv([3, 3]), conv([1, 7]));
    let run = |x| convolve(&second, relu_convolve(&first, x).tanh());
    let x = map();
    let all = [&first, &second];
    assert_eq!(halves(&x, &all, run), whole(&x, &all, run));
}

/// Not deferred: weights of other modules, passes outside of the scope, and Burn's operations.
#[test]
fn other_gradients_are_not_deferred() {
    let (first, second) = (conv([3, 3]), conv([1, 7]));
    let y = || convolve(&second, relu_convolve(&first, map().autodiff()));
    let found = |(gradients, deferred): (Gradients, Deferred)| {
        let ids: Vec<ParamId> = deferred.parameters().into_iter().collect();
        let all = [&first, &second].map(|conv| now(&conv.weight, &gradients).is_some());
        (all, ids)
    };
    let half = found(defer(parameters(&[&first]), || y().sum().backward()));
    assert_eq!(half, ([false, true], vec![first.weight.id]));
    let none = found(defer(Parameters::default(), || y().sum().backward()));
    assert_eq!(none, ([true, true], vec![]));
    let ((), nothing) = defer(parameters(&[&first]), || ());
    assert!(nothing.is_empty());
    assert!(now(&first.weight, &y().sum().backward()).is_some());
    let all = parameters(&[&first, &second]);
    let burns = || second.forward(first.forward(map().autodiff())).sum();
    let burns = found(defer(all, || burns().backward()));
    assert_eq!(burns, ([true, true], vec![]));
}

/// The gradient of a computed weight is needed for its inputs.
#[test]
fn the_gradient_of_a_computed_weight_is_not_deferred() {
    let raw = conv([3, 3]);
    let mut computed = raw.clone();
    computed.weight = Param::initialized(ParamId::new(), raw.weight.val().tanh());
    let y = convolve(&computed, map().autodiff());
    let (gradients, deferred) = defer(parameters(&[&raw]), || y.sum().backward());
    assert!(deferred.is_empty());
    assert!(now(&raw.weight, &gradients).is_some());
}

/// Scopes can be nested, and a panic in one restores the outer one.
#[test]
fn a_scope_ends_when_its_backward_pass_does() {
    let (outer, inner) = (conv([1, 1]), conv([3, 3]));
    let run = |conv: &Conv2d| convolve(conv, map().autodiff()).sum().backward();
    let ((), deferred) = defer(parameters(&[&outer]), || {
        let (_, deferred) = defer(parameters(&[&inner]), || run(&inner));
        assert!(deferred.parameters().contains(&inner.weight.id));
        let panicked = std::panic::catch_unwind(|| {
            let _ = defer(Parameters::default(), || panic!("on purpose"));
        });
        assert!(panicked.is_err());
        run(&outer);
    });
    let ids: Vec<_> = deferred.parameters().into_iter().collect();
    assert_eq!(ids, [outer.weight.id]);
    assert!(now(&outer.weight, &run(&outer)).is_some());
}
