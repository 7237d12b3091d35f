//! A device that has no memory left, in the middle of a step.
#![allow(clippy::unwrap_used, missing_docs)]

use burn::{
    module::Module,
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor},
};
use stovepipe_pipeline::{MeanOf, NamedDevice, Pipeline, layer};

/// A linear layer that allocates too much memory if its input is a two.
#[derive(Module, Debug)]
struct Greedy {
    linear: Linear,
}

/// 2⁴⁰ numbers.
const MORE_THAN_THERE_IS: [usize; 2] = [1 << 20, 1 << 20];

#[layer]
impl Greedy {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let is_two = x.clone().max().into_scalar::<f32>() == 2.0;
        let more = if is_two {
            Tensor::<2>::zeros(MORE_THAN_THERE_IS, &x.device()).mean()
        } else {
            Tensor::zeros([1], &x.device())
        };
        self.linear.forward(x) + more.reshape([1, 1])
    }
}

#[test]
#[ignore = "takes many minutes where the adapter is in software: its kernels are compiled and chosen on the CPU"]
fn a_full_device_ends_the_step_with_advice() {
    let found = NamedDevice::offered();
    let Some(gpu) = found.iter().find(|device| device.name == "wgpu:0") else {
        let is_required = std::env::var("STOVEPIPE_REQUIRE_WGPU").is_ok_and(|value| value == "1");
        assert!(!is_required, "no graphics adapter");
        return eprintln!("skipped: no graphics adapter");
    };
    let device = Device::flex();
    let layer = || Greedy {
        linear: LinearConfig::new(2, 2).init(&device),
    };
    let builder = Pipeline::builder(vec![layer()]).devices([gpu.clone()]);
    let pipeline = builder.micro_batches(2).build().unwrap();
    let squared = |y: Tensor<2>, t: Tensor<2>| (y - t).powi_scalar(2).mean();
    let objective = MeanOf(squared);
    let step = |value: f32| {
        let batch = Tensor::<2>::full([4, 2], value, &device);
        pipeline.train_step((batch.clone(), batch), &objective)
    };
    let before = step(1.0).unwrap().loss;
    let error = step(2.0).map(|step| step.loss).unwrap_err().to_string();
    assert!(error.contains("stage 0 failed on wgpu:0"), "{error}");
    assert!(error.contains("no memory left"), "{error}");
    let after = step(1.0).unwrap().loss;
    assert_eq!(before, after, "the model changed, or the device is lost");
}
