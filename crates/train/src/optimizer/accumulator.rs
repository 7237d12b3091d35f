//! Adds up the gradients of several mini-batches for one update.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use burn::{
    module::{Module, ModuleVisitor, Param, ParamId},
    optim::{GradientsParams, StateSink},
    store::burn_pack,
    tensor::{Tensor, TensorData},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError, error::BoxedError};

use super::{
    gradients::{add_scaled, scaled},
    offload::{Kept, OffloadError, OffloadedGradients},
    staged::StagedOptimizer,
    states::Names,
};
use crate::weights::tensor_file;

/// The gradients of mini-batches that share an update.
pub(crate) struct GradientAccumulator {
    /// The sum of each mini-batch's gradients times its weight.
    sum: GradientsParams,
    /// What of each stage's gradients, and of their sum, is off its device.
    away: Vec<Option<Arc<OffloadedGradients>>>,
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
    /// Of the gradients that an optimizer will take.
    pub(crate) fn new(optimizer: &StagedOptimizer) -> Self {
        Self {
            sum: GradientsParams::new(),
            away: optimizer.gradients().collect(),
            counts: Counts::default(),
        }
    }

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
        let away = self.away.iter().flatten();
        away.for_each(|away| away.clear(Kept::Sum));
        self.counts.spoiled = true;
        self.count(weight);
    }

    /// Adds the gradients of a mini-batch's mean loss over `weight` samples or tokens: these, and those off their devices.
    pub(crate) fn add<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
        gradients: GradientsParams,
        weight: f64,
    ) -> Result<(), StepError> {
        if !self.counts.spoiled {
            add_scaled(pipeline, &mut self.sum, gradients, weight);
            self.each_away(pipeline, move |layers, away| {
                let mut sums = away.in_order(Kept::Sum, layers, true);
                let mut gradients = away.in_order(Kept::Gradient, layers, true);
                for layer in layers {
                    let mut sum = sums.next(layer)?;
                    add_scaled(layer, &mut sum, gradients.next(layer)?, weight);
                    away.put(Kept::Sum, layer, &mut sum)?;
                }
                Ok(away.settle()?)
            })?;
        }
        self.count(weight);
        Ok(())
    }

    /// Runs `work` for each stage that has gradients off its device, on its worker.
    fn each_away<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
        work: impl Fn(&[L], &Arc<OffloadedGradients>) -> Result<(), BoxedError> + Clone + Send + 'static,
    ) -> Result<(), StepError> {
        if self.away.iter().flatten().next().is_none() {
            return Ok(());
        }
        let work =
            move |layers: &[L], away: Option<_>| away.map_or(Ok(()), |away| work(layers, &away));
        pipeline.read_stages(self.away.clone(), work).map(drop)
    }

    /// The sum for each parameter, under its name. What is off its device is read when it is written.
    pub(crate) fn sums<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
        names: &Names,
    ) -> Vec<burn_pack::Tensor> {
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
        let mut tensors = tensor_file::of_state(visitor.read);
        for away in self.away.iter().flatten() {
            let of_all = names
                .iter()
                .map(|(id, name)| away.tensors(Kept::Sum, *id, name));
            tensors.extend(of_all.flatten());
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        tensors
    }

    /// Restores sums from a checkpoint.
    pub(crate) fn restore<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
        names: &Names,
        sums: StateSink,
        counts: Counts,
    ) -> Result<(), OffloadError> {
        struct Write<'a> {
            sums: HashMap<String, TensorData>,
            names: &'a Names,
            sum: GradientsParams,
            /// Where those of the current layer lie, if not on its device.
            away: Option<&'a OffloadedGradients>,
            failed: Result<(), OffloadError>,
        }

        impl ModuleVisitor for Write<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let name = self.names.get(&param.id);
                let data = name.and_then(|name| self.sums.remove(name));
                let Some(data) = data.filter(|data| data.rank() == D) else {
                    return;
                };
                match self.away {
                    Some(away) => {
                        let put = away.put_data(Kept::Sum, param.id, data);
                        self.failed = std::mem::replace(&mut self.failed, Ok(())).and(put);
                    }
                    None => {
                        let device = param.lazy_device().inner();
                        let sum = Tensor::<D>::from_data(data, &device);
                        self.sum.register(param.id, sum);
                    }
                }
            }
        }

        let mut visitor = Write {
            sums: sums.tensors.into_iter().collect(),
            names,
            sum: GradientsParams::new(),
            away: None,
            failed: Ok(()),
        };
        for (stage, away) in pipeline.stages().iter().zip(&self.away) {
            for layer in stage.layers.clone() {
                let away = away.as_deref();
                visitor.away = away.filter(|_| pipeline.stores_gradients(layer));
                pipeline.layers()[layer].visit(&mut visitor);
            }
        }
        visitor.failed?;
        let mut away = self.away.iter().flatten();
        away.try_for_each(|away| away.settle())?;
        (self.sum, self.counts) = (visitor.sum, counts);
        Ok(())
    }

    /// The gradients of the mean loss over all mini-batches, unless some were not finite; those off their devices are
    /// there. Restarts from none.
    pub(crate) fn take<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
    ) -> Result<Option<GradientsParams>, StepError> {
        let (sum, counts) = (
            std::mem::take(&mut self.sum),
            std::mem::take(&mut self.counts),
        );
        if counts.spoiled {
            return Ok(None);
        }
        let factor = 1.0 / counts.weight;
        self.each_away(pipeline, move |layers, away| {
            let mut sums = away.in_order(Kept::Sum, layers, true);
            for layer in layers {
                let mut mean = scaled(layer, sums.next(layer)?, factor);
                away.put(Kept::Gradient, layer, &mut mean)?;
            }
            Ok(away.settle()?)
        })?;
        Ok(Some(scaled(pipeline, sum, factor)))
    }
}
