//! GPUs by name, and one that is full.

use burn::{module::Module, nn::Linear, tensor::Tensor};
use stovepipe_pipeline::{NamedDevice, Pipeline, device::DeviceError};

use crate::{
    beside_cpu::{cpu, two_devices},
    models::*,
};

#[test]
fn an_index_past_the_end_says_how_many_there_are() {
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    let kind = gpu.name.split(':').next().unwrap();
    let offered = NamedDevice::offered();
    let is_of_kind = |device: &&NamedDevice| device.name.starts_with(kind);
    let count = offered.iter().filter(is_of_kind).count();
    match format!("{kind}:77").parse::<NamedDevice>().unwrap_err() {
        DeviceError::NotThere { count: found, .. } => assert_eq!(found, count),
        error => panic!("{error}"),
    }
    for device in offered {
        assert_eq!(NamedDevice::from(device.device.clone()), device);
        assert_eq!(NamedDevice::from(device.device.clone().autodiff()), device);
        assert_eq!(device.name.parse(), Ok(device));
    }
}

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
    let Some([gpu, _]) = two_devices() else {
        return;
    };
    let linear = linear(2, 2);
    let builder = Pipeline::builder(vec![Greedy { linear }]).devices([gpu.clone()]);
    let pipeline = builder.micro_batches(2).build().unwrap();
    let step = |value: f32| {
        let batch = Tensor::<2>::full([4, 2], value, &cpu().device);
        pipeline.train_step((batch.clone(), batch), &SQUARED)
    };
    let before = step(1.0).unwrap().loss;
    let failure = failure(step(2.0));
    assert_contains(&failure, &format!("stage 0 failed on {gpu}"));
    assert_contains(&failure, "no memory left");
    let after = step(1.0).unwrap().loss;
    assert_eq!(before, after, "the model changed, or the device is lost");
}
