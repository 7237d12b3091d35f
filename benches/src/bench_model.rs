//! A model that the programs measure, for any kind of layer.
//!
//! It is a trait object, so that the engine is compiled once for each kind of layer and not again
//! in every program.

use std::sync::Arc;

use burn::tensor::Device;
use stovepipe::{
    pipeline::{Profiler, count_parameters},
    plan::Profile,
};
use stovepipe_comm::Communicator;

use crate::{
    Failure,
    agreement::{Agreement, agreement},
    layers::{Boundary, LayerCost, boundary, measure_layers},
    learning::{Learning, losses},
    piped::{Piped, PipedLoop, PipedSettings},
    plain::{Plain, PlainLoop},
    recipe::{Classifier, ModelRecipe, ModelShape},
};

/// A model that can be measured.
pub trait BenchModel: Send + Sync {
    fn name(&self) -> &'static str {
        self.shape().name()
    }
    fn shape(&self) -> ModelShape;

    /// The samples of a micro-batch.
    fn samples(&self) -> usize;
    fn layers(&self) -> Result<usize, Failure>;

    /// The number of its parameters; none is allocated.
    fn parameters(&self) -> Result<usize, Failure>;
    fn with_samples(&self, samples: usize) -> Box<dyn BenchModel>;

    /// The same graph on the smallest input, where there is almost nothing to compute.
    fn smallest(&self) -> Box<dyn BenchModel>;
    fn plain(&self, micro_batches: usize) -> Result<Box<dyn PlainLoop>, Failure>;
    fn piped(&self, plan: &PipedSettings) -> Result<Box<dyn PipedLoop>, Failure>;

    /// The part of a process that is connected to the others.
    fn connected(
        &self,
        plan: &PipedSettings,
        communicator: Arc<Communicator>,
    ) -> Result<Box<dyn PipedLoop>, Failure>;
    fn layer_costs(&self, rounds: usize) -> Result<Vec<LayerCost>, Failure>;

    /// The cost of each layer: alone, or on so many workers side by side, as the program measures it.
    fn profile(&self, side_by_side: usize) -> Result<Profile, Failure>;

    /// The same, as the profiler measures it.
    fn profile_by(&self, profiler: &Profiler) -> Result<Profile, Failure>;

    /// What crosses the cut after the first `after` layers.
    fn boundary(&self, after: usize) -> Result<Boundary, Failure>;

    /// The difference of a step through this pipeline from the CPU's.
    fn agreement(&self, plan: &PipedSettings) -> Result<Agreement, Failure>;

    /// The losses of a training from given weights.
    fn losses(&self, learning: &Learning) -> Result<Vec<f64>, Failure>;
}

impl<L: Classifier> ModelRecipe<L> {
    fn measure(&self, profiler: &Profiler) -> Result<Profile, Failure> {
        let (input, _) = self.batch(self.samples);
        Ok(profiler.measure(&ModelRecipe::layers(self)?, input)?)
    }
}

impl<L: Classifier> BenchModel for ModelRecipe<L> {
    fn shape(&self) -> ModelShape {
        self.shape
    }

    fn samples(&self) -> usize {
        self.samples
    }

    fn layers(&self) -> Result<usize, Failure> {
        Ok(ModelRecipe::layers(self)?.len())
    }

    fn parameters(&self) -> Result<usize, Failure> {
        Ok(count_parameters(&self.layers()?))
    }

    fn with_samples(&self, samples: usize) -> Box<dyn BenchModel> {
        Box::new(self.with_size(self.shape, samples))
    }

    fn smallest(&self) -> Box<dyn BenchModel> {
        Box::new(self.with_size(self.shape.smallest(), 1))
    }

    fn plain(&self, micro_batches: usize) -> Result<Box<dyn PlainLoop>, Failure> {
        let layers = ModelRecipe::layers(self)?;
        Ok(Box::new(Plain::new(self, layers, micro_batches)))
    }

    fn piped(&self, plan: &PipedSettings) -> Result<Box<dyn PipedLoop>, Failure> {
        let layers = ModelRecipe::layers(self)?;
        Ok(Box::new(Piped::new(self, layers, plan)?))
    }

    fn connected(
        &self,
        plan: &PipedSettings,
        communicator: Arc<Communicator>,
    ) -> Result<Box<dyn PipedLoop>, Failure> {
        let (layers, communicator) = (ModelRecipe::layers(self)?, Some(communicator));
        let piped = Piped::connected(self, layers, plan, communicator)?;
        Ok(Box::new(piped))
    }

    fn layer_costs(&self, rounds: usize) -> Result<Vec<LayerCost>, Failure> {
        measure_layers(self, rounds)
    }

    fn profile(&self, side_by_side: usize) -> Result<Profile, Failure> {
        self.measure(&Profiler::new(&Device::flex()).side_by_side(side_by_side))
    }

    fn profile_by(&self, profiler: &Profiler) -> Result<Profile, Failure> {
        self.measure(profiler)
    }

    fn boundary(&self, after: usize) -> Result<Boundary, Failure> {
        boundary(self, after)
    }

    fn agreement(&self, plan: &PipedSettings) -> Result<Agreement, Failure> {
        agreement(self, plan)
    }

    fn losses(&self, learning: &Learning) -> Result<Vec<f64>, Failure> {
        losses(self, learning)
    }
}
