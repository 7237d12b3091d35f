//! scratch
#![allow(missing_docs)]
use burn::{
    module::Module,
    nn::loss::CrossEntropyLossConfig,
    tensor::{Device, Int, Tensor},
};
use mimalloc::MiMalloc;
use stovepipe::prelude::*;
use stovepipe_amoebanet::{AmoebaLayer, AmoebaNetDConfig, Stem};
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let n = |i: usize| a[i].parse::<usize>().unwrap();
    let (mode, filters, size, batch, steps, m) = (&a[1], n(2), n(3), n(4), n(5), n(6));
    let _pool = rayon::ThreadPoolBuilder::new()
        .num_threads(1)
        .use_current_thread()
        .build()
        .unwrap();
    let stem = if size > 64 {
        Stem::ImageNet
    } else {
        Stem::Small
    };
    let layers = AmoebaNetDConfig::new(3, filters, 10)
        .with_stem(stem)
        .init(&Device::flex())
        .unwrap();
    let device = Device::flex();
    let images: Tensor<4> = Tensor::random(
        [batch, 3, size, size],
        burn::tensor::Distribution::Default,
        &device,
    );
    let labels: Vec<i64> = (0..batch as i64).map(|i| i % 10).collect();
    let labels = Tensor::<1, Int>::from_ints(labels.as_slice(), &device);
    let mut times = vec![];
    let mut spans: Vec<f64> = vec![];
    if mode == "plain" || mode == "forward" {
        let layers: Vec<_> = layers.into_iter().map(Module::train).collect();
        let layers: Vec<_> = if mode == "forward" {
            layers.into_iter().map(|l| l.no_grad()).collect()
        } else {
            layers
        };
        let loss = CrossEntropyLossConfig::new().init(&device);
        for _ in 0..steps {
            let t = std::time::Instant::now();
            for i in 0..m {
                let k = batch / m;
                let mut flow =
                    AmoebaLayer::enter(images.clone().slice([i * k..(i + 1) * k]).autodiff());
                for layer in &layers {
                    flow = layer.forward(flow, &mut Context::new(&(), true)).unwrap();
                }
                let logits = AmoebaLayer::leave(flow).unwrap();
                let l = loss.forward(
                    logits,
                    labels.clone().slice([i * k..(i + 1) * k]).autodiff(),
                );
                if mode == "plain" {
                    let _ = l.backward();
                }
            }
            times.push(t.elapsed().as_secs_f64());
        }
    } else {
        let stages = if mode == "two" { 2 } else { 1 };
        let b = Pipeline::builder(layers)
            .devices(vec![device.clone(); stages])
            .micro_batches(m)
            .recompute(Recompute::Never);
        let b = if stages == 2 {
            b.balance(Balance::Layers(vec![a[7].parse().unwrap(), 9 - n(7)]))
        } else {
            b
        };
        let p = b.build().unwrap();
        for _ in 0..steps {
            let t = std::time::Instant::now();
            let s = p
                .train_step(images.clone(), labels.clone(), &CrossEntropy::new())
                .unwrap();
            times.push(t.elapsed().as_secs_f64());
            let total: f64 = s
                .timeline
                .workers
                .iter()
                .map(|w| {
                    w.iter()
                        .map(|x| (x.end - x.start).as_secs_f64())
                        .sum::<f64>()
                })
                .sum();
            spans.push(total);
        }
    }
    spans.sort_by(f64::total_cmp);
    if !spans.is_empty() {
        println!("spans {:.2} ms", 1e3 * spans[spans.len() / 2]);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "{mode}: median {:.2} ms, {:.1} samples/s",
        1e3 * times[times.len() / 2],
        batch as f64 / times[times.len() / 2]
    );
}
