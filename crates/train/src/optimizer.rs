//! Burn's optimizers, stepped stage by stage in parallel.

use std::time::Instant;

use burn::optim::{
    AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, RmsPropConfig, SgdConfig,
    decay::WeightDecayConfig, momentum::MomentumConfig,
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};
use stovepipe_schedule::{Span, SpanKind};

use crate::{
    gradients::clip,
    settings::{OptimizerSetting, TrainSettings},
};

/// One of Burn's optimizers for each stage, so that stages are updated at once, where they lie.
///
/// Gradients are clipped before by their norm over *all* stages, as one device would clip them.
pub struct StagedOptimizer {
    optimizers: Vec<ModuleOptimizer>,
    clip: Option<f64>,
}

impl StagedOptimizer {
    /// The optimizer that the settings name, for so many stages.
    #[must_use]
    pub fn new(settings: &TrainSettings, stages: usize) -> Self {
        Self {
            optimizers: vec![optimizer(settings); stages],
            clip: Some(settings.clip).filter(|&clip| clip > 0.0),
        }
    }

    /// Updates a pipeline's parameters. Returns when each stage was updated, counted from `began`.
    ///
    /// # Errors
    ///
    /// Those of [`Pipeline::change_stages`].
    pub fn step<L: Layer>(
        &mut self,
        rate: f64,
        pipeline: &mut Pipeline<L>,
        gradients: GradientsParams,
        began: Instant,
    ) -> Result<Vec<Span>, StepError> {
        let gradients = match self.clip {
            Some(largest) => clip(pipeline, gradients, largest),
            None => gradients,
        };
        let gradients = pipeline.split_gradients(gradients);
        let optimizers = std::mem::take(&mut self.optimizers);
        let states = optimizers
            .into_iter()
            .zip(gradients)
            .map(|(optimizer, gradients)| (optimizer, gradients, None))
            .collect();
        let states = pipeline.change_stages(
            states,
            move |_, layers: Vec<L>, (mut optimizer, gradients, _)| {
                let start = began.elapsed();
                let layers = optimizer.step(rate, layers, gradients);
                let span = Span {
                    action: None,
                    kind: SpanKind::Update,
                    start,
                    end: began.elapsed(),
                };
                (layers, (optimizer, GradientsParams::new(), Some(span)))
            },
        )?;
        let mut spans = Vec::new();
        for (optimizer, _, span) in states {
            self.optimizers.push(optimizer);
            spans.extend(span);
        }
        Ok(spans)
    }
}

fn optimizer(settings: &TrainSettings) -> ModuleOptimizer {
    let weight_decay = Some(settings.weight_decay)
        .filter(|&rate| rate > 0.0)
        .map(|rate| WeightDecayConfig::new(rate as f32));
    let epsilon = settings.epsilon as f32;
    match settings.optimizer {
        OptimizerSetting::RmsProp => RmsPropConfig::new()
            .with_alpha(0.9)
            .with_epsilon(epsilon)
            .with_momentum(settings.momentum as f32)
            .with_weight_decay(weight_decay)
            .init(),
        OptimizerSetting::Sgd => {
            // Burn dampens momentum by 0.1 unless told otherwise; PyTorch does not.
            let momentum = MomentumConfig::new()
                .with_momentum(settings.momentum)
                .with_dampening(0.0);
            SgdConfig::new()
                .with_momentum(Some(momentum).filter(|_| settings.momentum > 0.0))
                .with_weight_decay(weight_decay)
                .init()
        }
        OptimizerSetting::Adam => AdamConfig::new()
            .with_epsilon(epsilon)
            .with_weight_decay(weight_decay)
            .init(),
        OptimizerSetting::AdamW => AdamWConfig::new()
            .with_epsilon(epsilon)
            .with_weight_decay(settings.weight_decay as f32)
            .init(),
    }
}
