//! What the programs ask of a model, whatever its layers are.
//!
//! Behind a trait object, so that the engine is compiled once for each kind of layer and not once
//! more in every program.

use burn::tensor::Device;
use serde_json::Value;
use stovepipe::{
    pipeline::{Profiler, count_parameters},
    plan::Profile,
};

use crate::{
    Failure,
    agreement::{Agreement, agreement},
    boundary::boundary_row,
    classifier::Classifier,
    layers::{LayerCost, measure_layers},
    learning::{Learning, losses},
    piped::{Piped, PipedLoop, PipelineSettings},
    plain::{Plain, PlainLoop},
    recipe::{Recipe, Shape},
};

/// A model that can be measured.
pub trait Measured: Send + Sync {
    /// What tables and flags call it.
    fn name(&self) -> &'static str;

    /// Its sizes.
    fn shape(&self) -> Shape;

    /// The samples of a micro-batch.
    fn samples(&self) -> usize;

    /// The number of its layers.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    fn layers(&self) -> Result<usize, Failure>;

    /// The number of its parameters; none is allocated.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    fn parameters(&self) -> Result<usize, Failure>;

    /// The same with so many samples in a micro-batch.
    fn with_samples(&self, samples: usize) -> Box<dyn Measured>;

    /// The same graph where there is next to nothing to compute.
    fn least(&self) -> Box<dyn Measured>;

    /// A plain loop over so many micro-batches.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    fn plain(&self, micro_batches: usize) -> Result<Box<dyn PlainLoop>, Failure>;

    /// A pipeline.
    ///
    /// # Errors
    ///
    /// If the plan does not fit the model.
    fn piped(&self, plan: &PipelineSettings) -> Result<Box<dyn PipedLoop>, Failure>;

    /// What each layer costs.
    ///
    /// # Errors
    ///
    /// If a layer fails.
    fn layer_costs(&self, rounds: usize) -> Result<Vec<LayerCost>, Failure>;

    /// What each layer costs, as the program measures it before it trains.
    ///
    /// # Errors
    ///
    /// If a layer fails.
    fn profile(&self) -> Result<Profile, Failure>;

    /// What crosses a cut after so many layers, as a row of a table.
    ///
    /// # Errors
    ///
    /// If a layer fails.
    fn boundary(&self, after: usize) -> Result<Value, Failure>;

    /// How far a step that runs as planned lies from the CPU's.
    ///
    /// # Errors
    ///
    /// If a device is not available, or a step fails.
    fn agreement(&self, plan: &PipelineSettings) -> Result<Agreement, Failure>;

    /// The losses of a training from given weights.
    ///
    /// # Errors
    ///
    /// If the weights are another model's, or a step fails.
    fn losses(&self, learning: &Learning) -> Result<Vec<f64>, Failure>;
}

impl<L: Classifier> Measured for Recipe<L> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn samples(&self) -> usize {
        self.samples
    }

    fn layers(&self) -> Result<usize, Failure> {
        Ok(Recipe::layers(self)?.len())
    }

    fn parameters(&self) -> Result<usize, Failure> {
        Ok(count_parameters(&self.layers()?))
    }

    fn with_samples(&self, samples: usize) -> Box<dyn Measured> {
        Box::new(self.with_size(self.shape, samples))
    }

    fn least(&self) -> Box<dyn Measured> {
        Box::new(self.with_size(self.shape.least(), 1))
    }

    fn plain(&self, micro_batches: usize) -> Result<Box<dyn PlainLoop>, Failure> {
        let layers = Recipe::layers(self)?;
        Ok(Box::new(Plain::new(self, layers, micro_batches)))
    }

    fn piped(&self, plan: &PipelineSettings) -> Result<Box<dyn PipedLoop>, Failure> {
        let layers = Recipe::layers(self)?;
        Ok(Box::new(Piped::new(self, layers, plan)?))
    }

    fn layer_costs(&self, rounds: usize) -> Result<Vec<LayerCost>, Failure> {
        measure_layers(self, rounds)
    }

    fn profile(&self) -> Result<Profile, Failure> {
        let (input, _) = self.batch(self.samples);
        Ok(Profiler::new(&Device::flex()).measure(&Recipe::layers(self)?, input)?)
    }

    fn boundary(&self, after: usize) -> Result<Value, Failure> {
        boundary_row(self, after)
    }

    fn agreement(&self, plan: &PipelineSettings) -> Result<Agreement, Failure> {
        agreement(self, plan)
    }

    fn losses(&self, learning: &Learning) -> Result<Vec<f64>, Failure> {
        losses(self, learning)
    }
}
