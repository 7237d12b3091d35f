//! A moving average of weights off their devices.

use std::{collections::HashSet, sync::Arc};

use burn::{
    module::{ModuleMapper, ModuleVisitor, Param, ParamId},
    store::burn_pack,
    tensor::{Tensor, TensorData, container::TensorContainer},
};
use stovepipe_pipeline::{Layer, Pipeline, StepError};

use super::{
    error::OffloadError,
    mover::{Coming, Mover},
    shelf::Kept,
    visits::Visits,
};
use crate::optimizer::{
    average::{Values, decay_of, frozen, moved},
    value::with_value,
};

/// The averages of a pipeline's weights, which visit the devices of their stages one at a time.
pub(crate) struct OffloadedAverage {
    /// Those of stages that this process updates.
    stages: Vec<Option<Arc<Mover>>>,
    /// Parameters that have no average, because training leaves them as they are.
    frozen: Arc<HashSet<ParamId>>,
    decay: f64,
    updates: u64,
    /// Whether the pipeline has the averages.
    is_swapped: bool,
}

/// The averages of a stage.
#[derive(Clone)]
struct OfStage {
    mover: Arc<Mover>,
    frozen: Arc<HashSet<ParamId>>,
}

impl OffloadedAverage {
    /// Starts with the current weights.
    pub(in crate::optimizer) fn new<L: Layer>(
        stages: Vec<Option<Mover>>,
        pipeline: &Pipeline<L>,
        decay: f64,
    ) -> Result<Self, StepError> {
        let stages = stages.into_iter().map(|mover| mover.map(Arc::new));
        let mut average = Self {
            stages: stages.collect(),
            frozen: Arc::new(frozen(pipeline.layers())),
            decay,
            updates: 0,
            is_swapped: false,
        };
        average.begin(pipeline, 0)?;
        Ok(average)
    }

    /// Takes the weights of the pipeline as averages after so many updates.
    pub(in crate::optimizer) fn begin<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
        updates: u64,
    ) -> Result<(), StepError> {
        (self.updates, self.is_swapped) = (updates, false);
        self.on_stages(pipeline, None)
    }

    /// Moves towards the weights of the pipeline, as a [`WeightAverage`](crate::optimizer::WeightAverage) does.
    pub(in crate::optimizer) fn update<L: Layer>(
        &mut self,
        pipeline: &Pipeline<L>,
    ) -> Result<(), StepError> {
        self.on_stages(pipeline, Some(decay_of(self.decay, self.updates)))?;
        self.updates += 1;
        Ok(())
    }

    pub(in crate::optimizer) fn updates(&self) -> u64 {
        self.updates
    }

    fn on_stages<L: Layer>(
        &self,
        pipeline: &Pipeline<L>,
        decay: Option<f64>,
    ) -> Result<(), StepError> {
        let is_swapped = self.is_swapped;
        let update = move |layers: &[L], own: Option<OfStage>| {
            if is_swapped {
                return Err(OffloadError::Swapped.into());
            }
            Ok(own.map_or(Ok(()), |own| own.update(layers, decay))?)
        };
        pipeline.read_stages(self.of_stages(), update).map(drop)
    }

    /// Gives the pipeline the averages, and keeps its weights in their place. Twice, and all is as before.
    pub(crate) fn swap<L: Layer>(&mut self, pipeline: &mut Pipeline<L>) -> Result<(), StepError> {
        let swap = |_, layers: Vec<L>, own: Option<OfStage>| match &own {
            Some(of_stage) => Ok((of_stage.swap(layers)?, own)),
            None => Ok((layers, own)),
        };
        let _ = pipeline.change_stages(self.of_stages(), swap)?;
        self.is_swapped = !self.is_swapped;
        Ok(())
    }

    /// The same tensors of a pipeline with averages instead of weights, each of which is read when it is written
    /// elsewhere.
    pub(in crate::optimizer) fn tensors(
        &self,
        of_pipeline: Vec<burn_pack::Tensor>,
    ) -> Vec<burn_pack::Tensor> {
        let average = |tensor: &burn_pack::Tensor| {
            let item = (Kept::Average, tensor.param_id?.into());
            let mut stages = self.stages.iter().flatten();
            stages.find_map(|mover| mover.tensors(item, &tensor.name).pop())
        };
        let tensors = of_pipeline.into_iter();
        let tensors = tensors.map(|tensor| average(&tensor).unwrap_or(tensor));
        tensors.collect()
    }

    fn of_stages(&self) -> Vec<Option<OfStage>> {
        let of_stage = |mover: &Option<Arc<Mover>>| {
            let (mover, frozen) = (mover.clone()?, self.frozen.clone());
            Some(OfStage { mover, frozen })
        };
        self.stages.iter().map(of_stage).collect()
    }
}

impl OfStage {
    /// Moves towards these weights, and keeps a share of `decay`; without one, starts with them.
    fn update<L: Layer>(&self, layers: &[L], decay: Option<f64>) -> Result<(), OffloadError> {
        struct Update<'a> {
            own: &'a OfStage,
            decay: Option<f64>,
            visits: Visits<Option<TensorData>>,
            seen: HashSet<ParamId>,
            result: Result<(), OffloadError>,
        }

        impl ModuleVisitor for Update<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if self.result.is_ok() && self.own.has(param.id) && self.seen.insert(param.id) {
                    let average = match self.decay {
                        Some(decay) => (self.own.take(&mut self.visits, param.id))
                            .map(|average| moved(average, param.val(), decay)),
                        None => Ok(param.val()),
                    };
                    self.result = average.and_then(|average| self.own.put(param.id, average));
                }
            }
        }

        let asked = decay.map_or_else(Vec::new, |_| self.parameters(layers).0);
        let mut update = Update {
            own: self,
            decay,
            visits: Visits::begin(asked, |parameter, _| self.coming(parameter)),
            seen: HashSet::new(),
            result: Ok(()),
        };
        // Without a graph, and with current statistics: those of a training layer lag behind.
        (layers.iter()).for_each(|layer| layer.valid().visit(&mut update));
        update.result?;
        self.mover.settle()
    }

    fn swap<L: Layer>(&self, layers: Vec<L>) -> Result<Vec<L>, OffloadError> {
        struct Swap<'a> {
            own: &'a OfStage,
            visits: Visits<Option<TensorData>>,
            /// The weights by their places: for statistics, these are newer than what is mapped.
            weights: Values,
            tied: HashSet<ParamId>,
            /// The averages of tied parameters.
            averages: TensorContainer<ParamId>,
            result: Result<(), OffloadError>,
        }

        impl Swap<'_> {
            fn average<const D: usize>(
                &mut self,
                id: ParamId,
                weights: Tensor<D>,
            ) -> Result<Tensor<D>, OffloadError> {
                if let Some(average) = self.averages.get::<Tensor<D>>(&id) {
                    return Ok(average);
                }
                let average = self.own.take::<D>(&mut self.visits, id)?;
                self.own.put(id, weights)?;
                if self.tied.contains(&id) {
                    self.averages.register(id, average.clone());
                }
                Ok(average)
            }
        }

        impl ModuleMapper for Swap<'_> {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                let weights = self.weights.next::<D>();
                let is_next = self.result.is_ok() && self.own.has(param.id);
                let Some(weights) = weights.filter(|_| is_next) else {
                    return param;
                };
                match self.average(param.id, weights) {
                    Ok(average) => with_value(param, |_, _| average),
                    Err(error) => {
                        self.result = Err(error);
                        param
                    }
                }
            }
        }

        let (parameters, tied) = self.parameters(&layers);
        let mut swap = Swap {
            own: self,
            visits: Visits::begin(parameters, |parameter, _| self.coming(parameter)),
            weights: Values::of(&layers),
            tied,
            averages: TensorContainer::new(),
            result: Ok(()),
        };
        let swapped = layers.into_iter().map(|layer| layer.map(&mut swap));
        let swapped = swapped.collect();
        swap.result?;
        self.mover.settle()?;
        Ok(swapped)
    }

    /// Whether this parameter has an average.
    fn has(&self, parameter: ParamId) -> bool {
        !self.frozen.contains(&parameter)
    }

    /// The parameters with averages in the order of a visit, each once, and those that are met again.
    fn parameters<L: Layer>(&self, layers: &[L]) -> (Vec<(ParamId, usize)>, HashSet<ParamId>) {
        struct Find<'a> {
            own: &'a OfStage,
            seen: HashSet<ParamId>,
            found: Vec<(ParamId, usize)>,
            again: HashSet<ParamId>,
        }

        impl ModuleVisitor for Find<'_> {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                if !self.own.has(param.id) {
                    return;
                }
                if self.seen.insert(param.id) {
                    self.found.push((param.id, D));
                } else {
                    self.again.insert(param.id);
                }
            }
        }

        let mut find = Find {
            own: self,
            seen: HashSet::new(),
            found: Vec::new(),
            again: HashSet::new(),
        };
        layers.iter().for_each(|layer| layer.visit(&mut find));
        (find.found, find.again)
    }

    fn coming(&self, parameter: ParamId) -> Coming<Option<TensorData>> {
        (self.mover).fetch(move |shelf| shelf.read_tensor((Kept::Average, parameter)))
    }

    /// The average of the next parameter, on the device.
    fn take<const D: usize>(
        &self,
        visits: &mut Visits<Option<TensorData>>,
        parameter: ParamId,
    ) -> Result<Tensor<D>, OffloadError> {
        let data = visits.take(parameter, |next, _| self.coming(next))?;
        let data = data.ok_or(OffloadError::Order)?;
        let dtype = data.dtype();
        Ok(Tensor::from_data(data, (self.mover.device(), dtype)))
    }

    /// Takes an average off the device, while the stage goes on.
    fn put<const D: usize>(
        &self,
        parameter: ParamId,
        average: Tensor<D>,
    ) -> Result<(), OffloadError> {
        (self.mover).put(move |shelf| shelf.write_from_device((Kept::Average, parameter), average))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::{io, sync::Mutex};

    use burn::{module::Module, tensor::Device};

    use super::*;
    use crate::{
        example::Dense,
        optimizer::{HostMemory, Storage, WeightAverage},
    };

    /// Memory that notes how many more tensors were read than written.
    #[derive(Clone, Default)]
    struct Noted {
        memory: Arc<Mutex<HostMemory>>,
        /// Now, and at most.
        apart: Arc<Mutex<[i32; 2]>>,
        is_lost: bool,
    }

    impl Noted {
        fn note(&self, change: i32) {
            let mut apart = self.apart.lock().unwrap();
            *apart = [apart[0] + change, apart[1].max(apart[0] + change)];
        }
    }

    impl Storage for Noted {
        fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
            self.note(1);
            if self.is_lost {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.memory.lock().unwrap().read(place, bytes)
        }

        fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
            self.note(-1);
            self.memory.lock().unwrap().write(place, bytes)
        }
    }

    /// Eight layers in one stage: the first is frozen, and two are one.
    fn pipeline(seed: u64) -> Pipeline<Dense> {
        let tied = Dense::new(3, 3);
        let mut layers = vec![Dense::new(3, 3).no_grad(), tied.clone(), tied];
        layers.extend((0..5).map(|_| Dense::new(3, 3)));
        let builder = Pipeline::builder(layers).devices([Device::flex()]);
        builder.seed(seed).build().unwrap().materialize()
    }

    fn values(pipeline: &Pipeline<Dense>) -> Vec<Vec<f32>> {
        struct Find(Vec<Vec<f32>>);

        impl ModuleVisitor for Find {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                self.0.push(param.val().into_data().try_to_vec().unwrap());
            }
        }

        let mut find = Find(Vec::new());
        pipeline.valid().visit(&mut find);
        find.0
    }

    /// Any change of all parameters, as an optimizer makes: tied ones stay equal, frozen ones as they are.
    fn change(pipeline: &mut Pipeline<Dense>) {
        struct Change;

        impl ModuleMapper for Change {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                match param.is_require_grad() {
                    true => with_value(param, |_, value| value.mul_scalar(1.25).add_scalar(0.1)),
                    false => param,
                }
            }
        }

        let change = |_, layers: Vec<Dense>, ()| {
            let changed = layers.into_iter().map(|layer| layer.map(&mut Change));
            Ok((changed.collect(), ()))
        };
        pipeline.change_stages(vec![()], change).unwrap();
    }

    fn offloaded(storage: Noted, pipeline: &Pipeline<Dense>) -> OffloadedAverage {
        let mover = Mover::new(Box::new(storage), Device::flex()).unwrap();
        OffloadedAverage::new(vec![Some(mover)], pipeline, 0.9).unwrap()
    }

    #[test]
    fn averages_off_the_device_are_those_on_it_and_visit_it_one_at_a_time() {
        let storage = Noted::default();
        let mut pipeline = pipeline(0);
        let frozen = values(&pipeline)[..2].to_vec();
        let mut here = WeightAverage::new(&pipeline, 0.9);
        let mut away = offloaded(storage.clone(), &pipeline);
        // Seven trained layers have weights and biases; the two that are one have theirs once.
        assert_eq!(*storage.apart.lock().unwrap(), [-12, 0]);
        *storage.apart.lock().unwrap() = [0; 2];
        for _ in 0..3 {
            change(&mut pipeline);
            let weights = values(&pipeline);
            here.update(&pipeline).unwrap();
            away.update(&pipeline).unwrap();
            assert_eq!(values(&pipeline), weights);
            away.swap(&mut pipeline).unwrap();
            assert_eq!(values(&pipeline), values(here.pipeline()));
            assert_ne!(values(&pipeline), weights);
            assert_eq!(values(&pipeline)[..2], frozen);
            away.swap(&mut pipeline).unwrap();
            assert_eq!(values(&pipeline), weights);
        }
        // One that is moved, one that comes, and one that waits to be written.
        let [now, most] = *storage.apart.lock().unwrap();
        assert!(now == 0 && (1..=3).contains(&most), "{now}, {most}");
    }

    #[test]
    fn a_lost_average_is_an_error() {
        let storage = Noted {
            is_lost: true,
            ..Noted::default()
        };
        let mut pipeline = pipeline(0);
        let mut average = offloaded(storage, &pipeline);
        for failed in [average.update(&pipeline), average.swap(&mut pipeline)] {
            let failed = failed.unwrap_err().to_string();
            assert!(
                failed.contains("could not be read: unexpected end of file"),
                "{failed}"
            );
        }
    }
}
