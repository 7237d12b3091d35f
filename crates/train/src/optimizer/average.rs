//! A moving average of a model's weights, which often does better than the weights themselves.

use std::{collections::HashSet, sync::Arc};

use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::{Tensor, container::TensorContainer},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

/// The exponential moving average of a pipeline's parameters and running statistics, on the devices
/// of its stages. Parameters that are frozen at its start have none: the average shares them.
///
/// Update n gives the new weights a share of 1 − min(decay, (1 + n) / (10 + n)), like TensorFlow's
/// `ExponentialMovingAverage` with `num_updates`: the first weights soon stop to count.
pub struct WeightAverage<L: Layer> {
    pub(super) pipeline: Pipeline<L>,
    /// Parameters that did not train at any update.
    frozen: Arc<HashSet<ParamId>>,
    decay: f64,
    pub(super) updates: u64,
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
            frozen: Arc::new(frozen(pipeline.layers())),
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
        if !self.frozen.is_empty() {
            let idle = idle(pipeline.layers());
            Arc::make_mut(&mut self.frozen).retain(|id| idle.contains(id));
        }
        let (decay, frozen) = (decay_of(self.decay, self.updates), self.frozen.clone());
        let current = pipeline.stage_layers().map(<[L]>::to_vec).collect();
        self.pipeline
            .change_stages(current, move |_, averages: Vec<L>, current: Vec<L>| {
                let moved = averages.into_iter().zip(&current);
                let moved =
                    moved.map(|(average, current)| move_towards(average, current, &frozen, decay));
                Ok((moved.collect(), Vec::new()))
            })?;
        self.updates += 1;
        Ok(())
    }

    /// The model with averaged weights. It runs on the workers of the trained pipeline.
    #[must_use]
    pub fn pipeline(&self) -> &Pipeline<L> {
        &self.pipeline
    }
}

/// The share that is kept of averages after so many updates.
pub(super) fn decay_of(decay: f64, updates: u64) -> f64 {
    let updates = updates as f64;
    decay.min((1.0 + updates) / (10.0 + updates))
}

/// An average, moved towards a value.
pub(super) fn moved<const D: usize>(average: Tensor<D>, value: Tensor<D>, decay: f64) -> Tensor<D> {
    // What is equal stays as it is to the bit.
    let apart = value - average.clone();
    average + apart.mul_scalar(1.0 - decay)
}

/// Moves a layer's averages towards its weights, parameter by parameter in the order of a visit.
fn move_towards<L: Layer>(average: L, current: &L, frozen: &HashSet<ParamId>, decay: f64) -> L {
    struct Move<'a> {
        values: Values,
        frozen: &'a HashSet<ParamId>,
        decay: f64,
    }

    impl ModuleMapper for Move<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let is_frozen = self.frozen.contains(&param.id);
            match self.values.next() {
                None => param,
                Some(current) if is_frozen => param.map(|_| current),
                Some(current) => param.map(|average| moved(average, current, self.decay)),
            }
        }
    }

    average.map(&mut Move {
        values: Values::of(std::slice::from_ref(current)),
        frozen,
        decay,
    })
}

/// The floating-point values of layers, in the order of a visit.
pub(super) struct Values {
    values: TensorContainer<usize>,
    count: usize,
    next: usize,
}

impl Values {
    pub(super) fn of<L: Layer>(layers: &[L]) -> Self {
        let mut values = Self {
            values: TensorContainer::new(),
            count: 0,
            next: 0,
        };
        // Without a graph, and with current statistics: those of a training layer lag behind.
        (layers.iter()).for_each(|layer| layer.valid().visit(&mut values));
        values
    }

    pub(super) fn next<const D: usize>(&mut self) -> Option<Tensor<D>> {
        self.next += 1;
        self.values.remove(&(self.next - 1))
    }
}

impl ModuleVisitor for Values {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.values.register(self.count, param.val());
        self.count += 1;
    }
}

/// The parameters that training leaves as they are. Running statistics are none of them.
pub(super) fn frozen<L: Layer>(layers: &[L]) -> HashSet<ParamId> {
    // Statistics ignore this.
    let all_train = layers.iter().cloned();
    let all_train: Vec<L> = all_train
        .map(|layer| layer.set_require_grad(true))
        .collect();
    let statistics = idle(&all_train);
    let mut frozen = idle(layers);
    frozen.retain(|id| !statistics.contains(id));
    frozen
}

/// The parameters without a gradient, and running statistics.
fn idle<L: Layer>(layers: &[L]) -> HashSet<ParamId> {
    #[derive(Default)]
    struct Find(HashSet<ParamId>);

    impl ModuleVisitor for Find {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            // Without autodiff, a tensor does not know.
            let trains =
                || param.is_require_grad() || param.clone().valid().train().is_require_grad();
            // To ask one that has no value yet would draw one.
            if param.is_initialized() && !trains() {
                self.0.insert(param.id);
            }
        }
    }

    let mut find = Find::default();
    layers.iter().for_each(|layer| layer.visit(&mut find));
    find.0
}
