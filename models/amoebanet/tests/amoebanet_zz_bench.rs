mod common;
use std::time::Instant;
use burn::tensor::{Device, Distribution, Tensor};
use stovepipe_amoebanet::{AmoebaNetDConfig, Stem};
use stovepipe_pipeline::Context;

fn best(n: usize, mut f: impl FnMut()) -> f64 {
    f();
    (0..n).map(|_| { let t = Instant::now(); f(); t.elapsed().as_secs_f64() * 1e3 }).fold(f64::MAX, f64::min)
}

#[test]
fn bench() {
    let device = Device::flex().autodiff();
    let n: usize = std::env::var("ITER").map_or(10, |v| v.parse().unwrap());
    for filters in [16, 32] {
        let layers = AmoebaNetDConfig::new(3, filters, 10).with_stem(Stem::Small).init(&device).unwrap();
        let x = Tensor::<4>::random([16, 3, 32, 32], Distribution::Normal(0.0, 1.0), &device);
        let forward = best(n, || { common::run(&layers, x.clone(), &mut Context::new(&(), true)).unwrap().sum().into_scalar::<f32>(); });
        let both = best(n, || {
            let y = common::run(&layers, x.clone(), &mut Context::new(&(), true)).unwrap();
            let g = y.powi_scalar(2).sum().backward();
            std::hint::black_box(g);
        });
        println!("D={filters}: forward {:.2} ms, forward+backward {:.2} ms a sample", forward / 16.0, both / 16.0);
    }
}
