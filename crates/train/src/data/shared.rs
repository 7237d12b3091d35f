//! Batches in several processes.

use burn::tensor::{Bool, Device, Int, Tensor, kind::Basic};
use stovepipe_pipeline::{
    Batch, Flow, FlowMapper, Layer, Packed, Pipeline,
    error::{PackError, ProcessError},
};

use super::source::Batches;
use crate::{error::TrainError, processes::Processes};

/// The batches that `load` returns, for a pipeline in several processes. The processes of the first stage
/// alone load them: several if it has replicas. One of these sends targets and side inputs to the others; of
/// inputs they get the batch size.
///
/// If a type does not [pack](Flow::PACKS), every process loads all batches.
///
/// ```
/// use burn::tensor::{Device, Int, Tensor};
/// use stovepipe_pipeline::Pipeline;
/// use stovepipe_train::{Batches, data::shared, example::Dense};
///
/// let device = Device::flex();
/// let pipeline = Pipeline::builder(vec![Dense::new(3, 2)]).devices([device.clone()]).build()?;
/// let batch = (Tensor::ones([4, 3], &device), Tensor::<1, Int>::zeros([4], &device));
/// let load = || -> Batches<_, _> { Box::new([Ok(batch.into())].into_iter()) };
/// assert_eq!(shared(&pipeline, load).count(), 1);
/// # Ok::<(), stovepipe_pipeline::BuildError>(())
/// ```
pub fn shared<L: Layer, T: Flow>(
    pipeline: &Pipeline<L>,
    load: impl FnOnce() -> Batches<L::Input, T, L::Side>,
) -> Batches<L::Input, T, L::Side> {
    let processes = Processes::of(pipeline);
    if processes.communicator().is_none() {
        return load();
    }
    let packs = L::Input::PACKS && T::PACKS && L::Side::PACKS;
    let first = pipeline.stages().into_iter().next();
    let (loader, loaders) =
        first.map_or_else(Default::default, |stage| (stage.process, stage.processes));
    let loads = !packs || loaders.contains(&processes.rank());
    Box::new(Shared {
        batches: loads.then(load),
        loader: packs.then_some(loader),
        processes,
        ended: false,
    })
}

struct Shared<I, T, S> {
    processes: Processes,
    /// In the processes that load.
    batches: Option<Batches<I, T, S>>,
    /// The one that does; `None` for all.
    loader: Option<usize>,
    ended: bool,
}

impl<I: Flow, T: Flow, S: Flow> Iterator for Shared<I, T, S> {
    type Item = Result<Batch<I, T, S>, TrainError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let next = self.exchange().transpose();
        self.ended = !matches!(next, Some(Ok(_)));
        next
    }
}

impl<I: Flow, T: Flow, S: Flow> Shared<I, T, S> {
    fn exchange(&mut self) -> Result<Option<Batch<I, T, S>>, TrainError> {
        let own = self.batches.as_mut().and_then(Iterator::next).transpose();
        let Some(loader) = self.loader else {
            return self.processes.agree(own);
        };
        let own = own.and_then(|own| {
            let packed = own.as_ref().map(packed).transpose();
            Ok((own, packed.map_err(TrainError::data)?))
        });
        let ((own, _), told) = self.processes.tell(own, |(_, packed)| packed.clone())?;
        let told = told.into_iter().nth(loader).flatten();
        let elsewhere = told
            .filter(|_| own.is_none())
            .map(|mut told| unpacked(&mut told));
        let elsewhere = elsewhere.transpose();
        let elsewhere = elsewhere.map_err(|error| ProcessError::Unreadable(error.into()))?;
        Ok(own.or(elsewhere))
    }
}

/// What the process that loads tells the others.
fn packed<I: Flow, T: Flow, S: Flow>(batch: &Batch<I, T, S>) -> Result<Packed, PackError> {
    let mut packed = Packed::default();
    let count = Tensor::<1, Int>::from_ints([batch.parts().count() as i32], &Device::flex());
    count.pack(&mut packed)?;
    for (input, target, side) in batch.parts() {
        input.clone().map(&mut Corner).pack(&mut packed)?;
        target.clone().pack(&mut packed)?;
        side.clone().pack(&mut packed)?;
    }
    Ok(packed)
}

fn unpacked<I: Flow, T: Flow, S: Flow>(packed: &mut Packed) -> Result<Batch<I, T, S>, PackError> {
    let device = Device::flex();
    let count: i64 = Tensor::<1, Int>::unpack(packed, &device)?.into_scalar();
    let mut part = || {
        let input = I::unpack(packed, &device)?;
        let target = T::unpack(packed, &device)?;
        Ok::<_, PackError>(Batch::from((input, target, S::unpack(packed, &device)?)))
    };
    let first = part()?;
    (1..count).try_fold(first, |batch, _| Ok(batch.and(part()?)))
}

/// One number of each sample: a stage that does not read the input needs its batch size alone.
struct Corner;

fn corner<const D: usize, K: Basic>(tensor: Tensor<D, K>) -> Tensor<D, K> {
    let mut dims = tensor.dims();
    dims.iter_mut().skip(1).for_each(|dim| *dim = (*dim).min(1));
    tensor.slice(dims.map(|dim| 0..dim))
}

impl FlowMapper for Corner {
    fn float<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        corner(tensor)
    }

    fn int<const D: usize>(&mut self, tensor: Tensor<D, Int>) -> Tensor<D, Int> {
        corner(tensor)
    }

    fn bool<const D: usize>(&mut self, tensor: Tensor<D, Bool>) -> Tensor<D, Bool> {
        corner(tensor)
    }
}
