//! A pass that is run again has other dropout masks.
//!
//! To save memory, a block's forward pass is run again when its gradients are computed. Burn's dropout draws from a
//! generator of the whole process, so the second pass has another mask, and the gradients are those of another
//! function. To seed the generator before each pass helps only as long as no other thread draws (Burn 0.22.1).

use std::thread;

use burn::{
    nn::{Dropout, DropoutConfig},
    tensor::{Device, Distribution, Tensor},
};

fn main() {
    let device = Device::flex();
    let dropout = DropoutConfig::new(0.5).init();
    let first = pass(&dropout, &device);
    report("run again", &first, &pass(&dropout, &device));

    device.seed(1);
    let first = pass(&dropout, &device);
    device.seed(1);
    report("run again, seeded", &first, &pass(&dropout, &device));

    device.seed(1);
    thread::scope(|scope| {
        // Another stage, which draws for its own layers.
        scope.spawn(|| Tensor::<1>::random([8], Distribution::Default, &device));
    });
    let what = "run again, seeded, while another thread draws";
    report(what, &first, &pass(&dropout, &device));
}

/// The block: which elements it keeps.
fn pass(dropout: &Dropout, device: &Device) -> Vec<bool> {
    let input = Tensor::<1>::ones([1000], &device.clone().autodiff());
    let output = dropout.forward(input).into_data();
    output.iter::<f32>().map(|number| number != 0.0).collect()
}

fn report(what: &str, first: &[bool], second: &[bool]) {
    let same = first.iter().zip(second).filter(|(a, b)| a == b).count();
    println!(
        "{what}: {same} of {} elements have the same mask",
        first.len()
    );
}
