//! AdamW in one pass over the parameters.

use burn::{
    optim::{AdamWConfig, AdamWState, AdaptiveMomentumState, LearningRate, Optimizer},
    tensor::{Device, Tensor},
};
use stovepipe_kernels::AdamWUpdate;

use crate::settings::TrainSettings;

/// β₁.
pub(super) const BETA: f32 = 0.9;

/// The same as Burn's `AdamW`, bit for bit, with the same state.
#[derive(Clone)]
pub(crate) struct AdamW {
    betas: [f32; 2],
    epsilon: f32,
    weight_decay: f32,
    burn: burn::optim::AdamW,
}

impl AdamW {
    pub(crate) fn new(settings: &TrainSettings, weight_decay: f32) -> Self {
        let betas = [BETA, settings.beta2 as f32];
        let epsilon = settings.epsilon as f32;
        Self {
            betas,
            epsilon,
            weight_decay,
            burn: AdamWConfig::new()
                .with_beta_1(betas[0])
                .with_beta_2(betas[1])
                .with_epsilon(epsilon)
                .with_weight_decay(weight_decay)
                .build(),
        }
    }
}

impl Optimizer for AdamW {
    type State<const D: usize> = AdamWState<D>;

    fn step<const D: usize>(
        &self,
        rate: LearningRate,
        parameter: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<AdamWState<D>>,
    ) -> (Tensor<D>, Option<AdamWState<D>>) {
        let Some(AdamWState { momentum }) = state else {
            return self.burn.step(rate, parameter, gradient, None);
        };
        let time = momentum.time + 1;
        let update = AdamWUpdate {
            betas: self.betas,
            epsilon: self.epsilon,
            weight_decay: self.weight_decay,
            rate,
            time: time as i32,
        };
        let means = [momentum.moment_1, momentum.moment_2];
        let (parameter, [mean, square]) = update.apply(parameter, gradient, means);
        let momentum = AdaptiveMomentumState::new(time, mean, square);
        (parameter, Some(AdamWState { momentum }))
    }

    fn to_device<const D: usize>(state: AdamWState<D>, device: &Device) -> AdamWState<D> {
        <burn::optim::AdamW as Optimizer>::to_device(state, device)
    }
}
