//! Adds up the gradients of several mini-batches for one update.

use std::collections::{HashMap, HashSet};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::{GradientsParams, StateSink},
    tensor::{Tensor, TensorData},
};
use stovepipe_pipeline::{Layer, Pipeline};

use super::{
    gradients::{add_scaled, scaled},
    states::Names,
};

/// The gradients of mini-batches that share an update.
#[derive(Default)]
pub(crate) struct GradientAccumulator {
    /// The sum of each mini-batch's gradients times its weight.
    sum: GradientsParams,
    counts: Counts,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) mini_batches: usize,
    /// Their samples or tokens.
    pub(crate) weight: f64,
    /// Whether some gradients were not finite: then the update is skipped.
    pub(crate) spoiled: bool,
}

impl GradientAccumulator {
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    fn count(&mut self, weight: f64) {
        self.counts.weight += weight;
        self.counts.mini_batches += 1;
    }

    /// Counts a mini-batch whose gradients were not finite.
    pub(crate) fn spoil(&mut self, weight: f64) {
        self.sum = GradientsParams::new();
        self.counts.spoiled = true;
        self.count(weight);
    }

    /// Adds the gradients of a mini-batch's mean loss over `weight` samples or tokens.
    pub(crate) fn add<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
        gradients: GradientsParams,
        weight: f64,
    ) {
        if !self.counts.spoiled {
            add_scaled(pipeline, &mut self.sum, gradients, weight);
        }
        self.count(weight);
    }

    /// The sum for each parameter, by its name.
    pub(crate) fn sums<L: Layer>(&self, pipeline: &Pipeline<L>, names: &Names) -> StateSink {
        struct Read<'a> {
            sum: &'a GradientsParams,
            names: &'a Names,
            seen: HashSet<ParamId>,
            read: StateSink,
        }

        impl ModuleVisitor for Read<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let is_new = self.seen.insert(param.id);
                let sum = self.sum.get::<D>(param.id).filter(|_| is_new);
                if let (Some(sum), Some(name)) = (sum, self.names.get(&param.id)) {
                    self.read.tensors.push((name.clone(), sum.into_data()));
                }
            }
        }

        let mut visitor = Read {
            sum: &self.sum,
            names,
            seen: HashSet::new(),
            read: StateSink::default(),
        };
        pipeline.visit(&mut visitor);
        visitor.read
    }

    pub(crate) fn restore<L: Layer>(
        pipeline: &Pipeline<L>,
        names: &Names,
        sums: StateSink,
        counts: Counts,
    ) -> Self {
        struct Write<'a> {
            sums: HashMap<String, TensorData>,
            names: &'a Names,
            sum: GradientsParams,
        }

        impl ModuleVisitor for Write<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let name = self.names.get(&param.id);
                let data = name.and_then(|name| self.sums.remove(name));
                if let Some(data) = data.filter(|data| data.rank() == D) {
                    let device = param.lazy_device().inner();
                    let sum = Tensor::<D>::from_data(data, &device);
                    self.sum.register(param.id, sum);
                }
            }
        }

        let mut visitor = Write {
            sums: sums.tensors.into_iter().collect(),
            names,
            sum: GradientsParams::new(),
        };
        pipeline.visit(&mut visitor);
        let sum = visitor.sum;
        Self { sum, counts }
    }

    /// The gradients of the mean loss over all mini-batches, unless some were not finite. Restarts
    /// from none.
    pub(crate) fn take<L: Layer>(&mut self, pipeline: &Pipeline<L>) -> Option<GradientsParams> {
        let Self { sum, counts } = std::mem::take(self);
        (!counts.spoiled).then(|| scaled(pipeline, sum, 1.0 / counts.weight))
    }
}
