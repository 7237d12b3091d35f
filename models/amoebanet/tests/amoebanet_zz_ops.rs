use burn::{
    nn::{
        BatchNormConfig, PaddingConfig2d,
        conv::Conv2dConfig,
        pool::{AvgPool2dConfig, MaxPool2dConfig},
    },
    tensor::{
        Device, Distribution, Tensor, activation::relu, module::unfold4d, ops::UnfoldOptions,
    },
};
use std::time::Instant;

fn best(n: usize, mut f: impl FnMut()) -> f64 {
    f();
    f();
    (0..n)
        .map(|_| {
            let t = Instant::now();
            f();
            t.elapsed().as_secs_f64() * 1e3
        })
        .fold(f64::MAX, f64::min)
}

fn pointwise(weight: Tensor<4>, x: Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let [o, ..] = weight.dims();
    weight
        .reshape([1, o, c])
        .expand([n, o, c])
        .matmul(x.reshape([n, c, h * w]))
        .reshape([n, o, h, w])
}

fn unfolded(weight: Tensor<4>, x: Tensor<4>) -> Tensor<4> {
    let [n, _, h, w] = x.dims();
    let [o, c, kh, kw] = weight.dims();
    let columns = unfold4d(
        x,
        [kh, kw],
        UnfoldOptions::new([1, 1], [kh / 2, kw / 2], [1, 1]),
    );
    weight
        .reshape([1, o, c * kh * kw])
        .expand([n, o, c * kh * kw])
        .matmul(columns)
        .reshape([n, o, h, w])
}

fn shifted(weight: Tensor<4>, x: Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let [o, _, kh, kw] = weight.dims();
    let x = x.pad([(kh / 2, kh / 2), (kw / 2, kw / 2)], 0.0);
    let mut slices = vec![];
    for i in 0..kh {
        for j in 0..kw {
            slices.push(x.clone().slice([0..n, 0..c, i..i + h, j..j + w]));
        }
    }
    let columns = Tensor::cat(slices, 1).reshape([n, c * kh * kw, h * w]);
    let weight = weight
        .permute([0, 2, 3, 1])
        .reshape([1, o, kh * kw * c])
        .expand([n, o, kh * kw * c]);
    weight.matmul(columns).reshape([n, o, h, w])
}

fn band(n: usize, device: &Device) -> Tensor<2> {
    let mut v = vec![0f32; n * n];
    for i in 0..n {
        let lo = i.saturating_sub(1);
        let hi = (i + 1).min(n - 1);
        for j in lo..=hi {
            v[i * n + j] = 1.0 / (hi - lo + 1) as f32;
        }
    }
    Tensor::<1>::from_floats(&v[..], device).reshape([n, n])
}

fn avg_matmul(x: Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let d = x.device();
    let y = x
        .reshape([1, n * c * h, w])
        .matmul(band(w, &d).transpose().unsqueeze::<3>());
    let y = band(h, &d)
        .unsqueeze::<3>()
        .expand([n * c, h, h])
        .matmul(y.reshape([n * c, h, w]));
    y.reshape([n, c, h, w])
}

fn window(n: usize, device: &Device) -> Tensor<2> {
    let place = Tensor::<1, burn::tensor::Int>::arange(0..n as i64, device).reshape([n, 1]);
    let near = (place.clone() - place.transpose())
        .abs()
        .lower_equal_elem(1)
        .float();
    let count = near.clone().sum_dim(0);
    near / count
}

fn avg_step(x: Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let d = x.device();
    x.reshape([n * c * h, w])
        .matmul(window(w, &d))
        .reshape([n, c, h, w])
        .swap_dims(2, 3)
}

fn avg_step_band(x: Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let d = x.device();
    x.reshape([n * c * h, w])
        .matmul(band(w, &d).transpose())
        .reshape([n, c, h, w])
        .swap_dims(2, 3)
}

fn max_shifted(x: Tensor<4>) -> Tensor<4> {
    let [n, c, h, w] = x.dims();
    let p = x.pad([(0, 0), (1, 1)], f32::NEG_INFINITY);
    let r = p
        .clone()
        .slice([0..n, 0..c, 0..h, 0..w])
        .max_pair(p.clone().slice([0..n, 0..c, 0..h, 1..w + 1]))
        .max_pair(p.slice([0..n, 0..c, 0..h, 2..w + 2]));
    let p = r.pad([(1, 1), (0, 0)], f32::NEG_INFINITY);
    p.clone()
        .slice([0..n, 0..c, 0..h, 0..w])
        .max_pair(p.clone().slice([0..n, 0..c, 1..h + 1, 0..w]))
        .max_pair(p.slice([0..n, 0..c, 2..h + 2, 0..w]))
}

fn report(name: &str, x: &Tensor<4>, f: impl Fn(Tensor<4>) -> Tensor<4>) {
    let n = 15;
    let plain = x.clone().inner();
    let fwd = best(n, || {
        std::hint::black_box(f(plain.clone()));
    });
    let both = best(n, || {
        let x = x.clone().require_grad();
        let g = f(x).sum().backward();
        std::hint::black_box(g);
    });
    println!("  {name:24} forward {fwd:7.3} both {both:7.3} ms");
}

#[test]
fn ops() {
    let device = Device::flex().autodiff();
    for dims in [
        [16, 8, 32, 32],
        [16, 16, 16, 16],
        [16, 32, 8, 8],
        [16, 64, 4, 4],
        [2, 32, 56, 56],
    ] {
        println!("{dims:?}");
        let x = Tensor::<4>::random(dims, Distribution::Normal(0.0, 1.0), &device);
        let c = dims[1];
        let bn = BatchNormConfig::new(c).init(&device);
        let max = MaxPool2dConfig::new([3, 3])
            .with_strides([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .init();
        let avg = AvgPool2dConfig::new([3, 3])
            .with_strides([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_count_include_pad(false)
            .init();
        let q = (c / 4).max(1);
        let xq = Tensor::<4>::random(
            [dims[0], q, dims[2], dims[3]],
            Distribution::Normal(0.0, 1.0),
            &device,
        );
        let p = Conv2dConfig::new([c, c], [1, 1])
            .with_bias(false)
            .init(&device);
        let k17 = Conv2dConfig::new([q, q], [1, 7])
            .with_padding(PaddingConfig2d::Explicit(0, 3, 0, 3))
            .with_bias(false)
            .init(&device);
        let k71 = Conv2dConfig::new([q, q], [7, 1])
            .with_padding(PaddingConfig2d::Explicit(3, 0, 3, 0))
            .with_bias(false)
            .init(&device);
        let k33 = Conv2dConfig::new([q, q], [3, 3])
            .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
            .with_bias(false)
            .init(&device);
        report("identity (sum)", &x, |x| x);
        report("relu", &x, relu);
        report("batch norm", &x, |x| bn.forward(x));
        report("max 3x3", &x, |x| max.forward(x));
        report("max 3x3 shifted", &x, max_shifted);
        report("avg 3x3", &x, |x| avg.forward(x));
        report("avg 3x3 matmul", &x, avg_matmul);
        report("avg 3x3 steps", &x, |x| avg_step(avg_step(x)));
        report("avg 3x3 steps host", &x, |x| {
            avg_step_band(avg_step_band(x))
        });
        let row = MaxPool2dConfig::new([1, 3])
            .with_strides([1, 1])
            .with_padding(PaddingConfig2d::Explicit(0, 1, 0, 1))
            .init();
        let col = MaxPool2dConfig::new([3, 1])
            .with_strides([1, 1])
            .with_padding(PaddingConfig2d::Explicit(1, 0, 1, 0))
            .init();
        report("max 1x3 3x1", &x, |x| col.forward(row.forward(x)));
        report("1x1 matmul", &x, |x| pointwise(p.weight.val(), x));
        report("1x1 conv2d", &x, |x| p.forward(x));
        report("1x7 conv2d", &xq, |x| k17.forward(x));
        report("1x7 unfold", &xq, |x| unfolded(k17.weight.val(), x));
        report("1x7 shifted", &xq, |x| shifted(k17.weight.val(), x));
        report("7x1 conv2d", &xq, |x| k71.forward(x));
        report("7x1 unfold", &xq, |x| unfolded(k71.weight.val(), x));
        report("7x1 shifted", &xq, |x| shifted(k71.weight.val(), x));
        report("3x3 conv2d", &xq, |x| k33.forward(x));
        report("3x3 unfold", &xq, |x| unfolded(k33.weight.val(), x));
        report("3x3 shifted", &xq, |x| shifted(k33.weight.val(), x));
    }
}
