//! Burn's optimizers, stepped stage by stage in parallel.

use std::{collections::HashSet, time::Instant};

use burn::{
    module::{ModuleVisitor, Param, ParamId},
    optim::{
        AdamConfig, AdamWConfig, GradientsParams, ModuleOptimizer, RmsPropConfig, SgdConfig,
        decay::WeightDecayConfig, momentum::MomentumConfig,
    },
    tensor::Tensor,
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};
use stovepipe_schedule::{Span, SpanKind};

use crate::settings::{OptimizerSetting, TrainSettings};

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
        let mut gradients = pipeline.split_gradients(gradients);
        if let Some(largest) = self.clip {
            let stages = pipeline.stage_layers().zip(gradients).collect();
            gradients = clip(stages, largest);
        }
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
    match settings.optimizer {
        OptimizerSetting::RmsProp => RmsPropConfig::new()
            .with_alpha(0.9)
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
        OptimizerSetting::Adam => AdamConfig::new().with_weight_decay(weight_decay).init(),
        OptimizerSetting::AdamW => AdamWConfig::new()
            .with_weight_decay(settings.weight_decay as f32)
            .init(),
    }
}

/// Scales the gradients of all stages by one factor, so that the norm of all together is `largest`
/// at most. The squares are added up parameter by parameter in the order of the layers: stages make
/// no difference to the sum.
fn clip<L: Layer>(stages: Vec<(&[L], GradientsParams)>, largest: f64) -> Vec<GradientsParams> {
    let squares = stages
        .iter()
        .flat_map(|(layers, gradients)| squares(layers, gradients));
    let norm = squares.sum::<f64>().sqrt();
    // As PyTorch's clip_grad_norm_ has it, the small number included.
    let factor = largest / (norm + 1e-6);
    stages
        .into_iter()
        .map(|(layers, gradients)| match factor < 1.0 {
            true => scale(layers, gradients, factor),
            false => gradients,
        })
        .collect()
}

/// The squared norm of each gradient of a stage, read from its device at once.
fn squares<L: Layer>(layers: &[L], gradients: &GradientsParams) -> Vec<f64> {
    struct Squares<'a> {
        gradients: &'a GradientsParams,
        /// A parameter that several layers share has one gradient.
        seen: HashSet<ParamId>,
        sums: Vec<Tensor<1>>,
    }

    impl ModuleVisitor for Squares<'_> {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let is_new = self.seen.insert(param.id);
            if let Some(gradient) = self.gradients.get::<D>(param.id).filter(|_| is_new) {
                self.sums.push(gradient.powi_scalar(2).sum());
            }
        }
    }

    let mut visitor = Squares {
        gradients,
        seen: HashSet::new(),
        sums: Vec::new(),
    };
    layers.iter().for_each(|layer| layer.visit(&mut visitor));
    if visitor.sums.is_empty() {
        return Vec::new();
    }
    let sums = Tensor::cat(visitor.sums, 0).into_data();
    sums.iter::<f64>().collect()
}

fn scale<L: Layer>(layers: &[L], gradients: GradientsParams, factor: f64) -> GradientsParams {
    struct Scale {
        gradients: GradientsParams,
        scaled: GradientsParams,
        factor: f64,
    }

    impl ModuleVisitor for Scale {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = self.gradients.remove::<D>(param.id) {
                let gradient = gradient.mul_scalar(self.factor);
                self.scaled.register(param.id, gradient);
            }
        }
    }

    let mut visitor = Scale {
        gradients,
        scaled: GradientsParams::new(),
        factor,
    };
    layers.iter().for_each(|layer| layer.visit(&mut visitor));
    visitor.scaled
}
