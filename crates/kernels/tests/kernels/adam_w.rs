//! AdamW in one pass against Burn's.

use burn::{
    optim::{AdamWConfig, Optimizer},
    tensor::{Device, Int, Tensor},
};
use stovepipe_kernels::AdamWUpdate;

use crate::common::bits;

fn waves(length: i64, pitch: f32) -> Tensor<1> {
    (Tensor::<1, Int>::arange(0..length, &Device::flex()).float() * pitch).sin()
}

/// Several updates of tensors that do not fill the last vector or block.
#[test]
fn bits_equal_burns() {
    for (length, weight_decay, rate) in [(5, 0.0, 1e-1), (40_003, 1e-2, 1e-3)] {
        let theirs = AdamWConfig::new().with_epsilon(1e-8);
        let theirs = theirs.with_weight_decay(weight_decay).build();
        let (mut parameter, mut state) = (waves(length, 0.1), None);
        let (mut ours, mut means) = (parameter.clone(), [waves(length, 0.0), waves(length, 0.0)]);
        for time in 1..=4 {
            let gradient = waves(length, 0.37 * time as f32) * 1e-2;
            (parameter, state) = theirs.step(rate, parameter, gradient.clone(), state);
            let update = AdamWUpdate {
                betas: [0.9, 0.999],
                epsilon: 1e-8,
                weight_decay,
                rate,
                time,
            };
            let before = gradient.clone();
            (ours, means) = update.apply(ours, gradient.clone(), means);
            assert_eq!(bits(ours.clone()), bits(parameter.clone()), "update {time}");
            assert_eq!(bits(gradient), bits(before), "a shared gradient changed");
        }
        let state = state.unwrap().momentum;
        let [mean, square] = means;
        assert_eq!(bits(mean), bits(state.moment_1));
        assert_eq!(bits(square), bits(state.moment_2));
    }
}
