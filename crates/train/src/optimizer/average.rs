//! A moving average of a model's weights, which often does better than the weights themselves.

use std::path::Path;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Tensor, container::TensorContainer},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

use crate::{error::TrainError, weights::Base};

/// The exponential moving average of a pipeline's parameters and running statistics, on the devices
/// of its stages.
///
/// Update n gives the new weights a share of 1 − min(decay, (1 + n) / (10 + n)), like TensorFlow's
/// `ExponentialMovingAverage` with `num_updates`: the first weights soon stop to count.
pub struct WeightAverage<L: Layer> {
    pipeline: Pipeline<L>,
    decay: f64,
    updates: u64,
}

impl<L: Layer> WeightAverage<L> {
    /// Starts with the current weights.
    ///
    /// ```
    /// use burn::tensor::{Device, Tensor};
    /// use stovepipe_pipeline::Pipeline;
    /// use stovepipe_train::{example::Dense, optimizer::WeightAverage};
    ///
    /// let device = Device::flex();
    /// let pipeline = Pipeline::builder(vec![Dense::new(3, 2)]).devices([device.clone()]).build()?;
    /// let mut average = WeightAverage::new(&pipeline, 0.999);
    /// // … a step of an optimizer …
    /// average.update(&pipeline)?;
    /// let x = Tensor::ones([1, 3], &device);
    /// assert_eq!(average.pipeline().infer(x.clone())?.to_data(), pipeline.infer(x)?.to_data());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn new(pipeline: &Pipeline<L>, decay: f64) -> Self {
        Self {
            pipeline: pipeline.valid(),
            decay,
            updates: 0,
        }
    }

    /// Moves towards the weights of `pipeline`, the pipeline that the average started with.
    ///
    /// # Errors
    ///
    /// Those of [`Pipeline::change_stages`].
    pub fn update(&mut self, pipeline: &Pipeline<L>) -> Result<(), StepError> {
        let updates = self.updates as f64;
        let decay = self.decay.min((1.0 + updates) / (10.0 + updates));
        let current = pipeline.stage_layers().map(<[L]>::to_vec).collect();
        self.pipeline
            .change_stages(current, move |_, averages: Vec<L>, current: Vec<L>| {
                let moved = averages.into_iter().zip(&current);
                let moved = moved.map(|(average, current)| move_towards(average, current, decay));
                Ok((moved.collect(), Vec::new()))
            })?;
        self.updates += 1;
        Ok(())
    }

    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// Restores averages from a file, after this many updates.
    pub(crate) fn restore(
        &mut self,
        path: &Path,
        (base, updates): (&Base, u64),
    ) -> Result<(), TrainError> {
        base.load_into(&mut self.pipeline, path)?;
        self.updates = updates;
        Ok(())
    }

    /// The model with averaged weights. It runs on the workers of the trained pipeline.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }
}

/// Moves a layer's averages towards its weights, parameter by parameter in the order of a visit.
fn move_towards<L: Layer>(average: L, current: &L, decay: f64) -> L {
    #[derive(Default)]
    struct Values {
        values: TensorContainer<usize>,
        count: usize,
    }

    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.values.register(self.count, param.val());
            self.count += 1;
        }
    }

    struct Move {
        values: TensorContainer<usize>,
        place: usize,
        decay: f64,
    }

    impl ModuleMapper for Move {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let current = self.values.remove::<Tensor<D>>(&self.place);
            self.place += 1;
            match current {
                None => param,
                Some(current) => param.map(|average| {
                    // What is equal, as frozen weights are, stays as it is to the bit.
                    let apart = current - average.clone();
                    average + apart.mul_scalar(1.0 - self.decay)
                }),
            }
        }
    }

    let mut values = Values::default();
    // Without a graph, and with current statistics: those of a training layer lag behind.
    current.valid().visit(&mut values);
    average.map(&mut Move {
        values: values.values,
        place: 0,
        decay,
    })
}
