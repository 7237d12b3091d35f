//! A moving average of a model's weights, which often does better than the weights themselves.

use std::path::Path;

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param},
    tensor::{Tensor, container::TensorContainer},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

use crate::{error::TrainError, model_file::load_model};

/// The exponential moving average of a pipeline's parameters and running statistics, stage by stage where
/// they lie.
///
/// Update n counts the weights by 1 − min(decay, (1 + n) / (10 + n)): at first more than in the long run, so
/// that those of the beginning are soon forgotten, as TensorFlow's `ExponentialMovingAverage` does with
/// `num_updates`.
pub struct WeightAverage<L: Layer> {
    pipeline: Pipeline<L>,
    decay: f64,
    updates: u64,
}

impl<L: Layer> WeightAverage<L> {
    /// Begins with the weights as they are.
    ///
    /// ```
    /// # use burn::{module::{Module, Param}, nn::{Linear, LinearConfig}, tensor::{Device, Tensor}};
    /// # use stovepipe_pipeline::{Context, Layer, LayerError, Pipeline};
    /// # #[derive(Module, Debug)]
    /// # struct Dense { linear: Linear }
    /// # impl Layer for Dense {
    /// #     type Input = Tensor<2>; type Flow = Tensor<2>; type Output = Tensor<2>; type Side = ();
    /// #     fn enter(input: Tensor<2>) -> Tensor<2> { input }
    /// #     fn forward(&self, x: Tensor<2>, _: &mut Context<'_, Self>) -> Result<Tensor<2>, LayerError> {
    /// #         Ok(self.linear.forward(x))
    /// #     }
    /// #     fn leave(flow: Tensor<2>) -> Result<Tensor<2>, LayerError> { Ok(flow) }
    /// # }
    /// use stovepipe_train::WeightAverage;
    ///
    /// let device = Device::flex();
    /// let layers = vec![Dense { linear: LinearConfig::new(3, 2).init(&device) }];
    /// let pipeline = Pipeline::builder(layers).devices([device.clone()]).build()?;
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

    /// Moves towards the weights of `pipeline`, the one that the average began with.
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
                (moved.collect(), Vec::new())
            })?;
        self.updates += 1;
        Ok(())
    }

    /// Updates that it has seen.
    pub(crate) fn updates(&self) -> u64 {
        self.updates
    }

    /// Goes on from averages in a file, which have seen so many updates.
    pub(crate) fn restore(&mut self, path: &Path, updates: u64) -> Result<(), TrainError> {
        load_model(&mut self.pipeline, path)?;
        self.updates = updates;
        Ok(())
    }

    /// The model with the averages for weights. It runs on the workers of the pipeline that is trained.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }
}

/// A layer's averages when they have moved towards its weights, parameter by parameter in the order of a visit.
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
                    let kept = average.mul_scalar(self.decay);
                    kept + current.mul_scalar(1.0 - self.decay)
                }),
            }
        }
    }

    let mut values = Values::default();
    // Without their graph; and statistics, unlike those that a training layer shows, up to date.
    current.valid().visit(&mut values);
    average.map(&mut Move {
        values: values.values,
        place: 0,
        decay,
    })
}
