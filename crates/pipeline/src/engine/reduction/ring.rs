//! Adds the gradients of replicas in several processes, bucket by bucket, in a ring.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, mpsc::Receiver},
};

use burn::{
    module::{Module, Param},
    optim::GradientsParams,
    tensor::{Device, Tensor, TensorData},
};
use stovepipe_collective::{AllReduce, CollectiveError, Group, GroupCancel, Reduction};
use stovepipe_runtime::{self as runtime, Worker};
use stovepipe_schedule::SpanKind;

use super::{Given, Sum};
use crate::{
    api::error::FailureCause,
    engine::{panic::caught, record::Recorder},
    model::parameters::{ParameterVisitor, visit_parameters},
};

/// The limit of the first bucket, in bytes: small, so that the reduction begins early.
const FIRST_BUCKET: usize = 1 << 20;

/// A seat's place in the ring of its stage, and the thread that reduces there.
pub(crate) struct RingThread {
    pub(super) worker: Worker,
    group: Arc<Mutex<Group>>,
    pub(super) cancel: GroupCancel,
}

/// What a thread reduces in a run.
pub(super) struct Job<L> {
    pub(super) layers: Vec<L>,
    /// The layers of each bucket, in the order in which they are reduced.
    pub(super) buckets: Vec<Vec<usize>>,
    /// Whether the replicas exchange running statistics, too.
    pub(super) exchanges_statistics: bool,
    pub(super) device: Device,
    pub(super) given: Receiver<Given>,
    pub(super) sums: runtime::Outbox<Result<Sum, FailureCause>>,
    pub(super) recorder: Recorder,
}

/// What a worker has given so far.
#[derive(Default)]
struct Taken {
    layers: HashMap<usize, GradientsParams>,
    statistics: Option<Vec<f32>>,
}

impl Taken {
    /// Waits for more. False if nothing comes, because the run has failed.
    fn next(&mut self, given: &Receiver<Given>) -> bool {
        match given.recv() {
            Ok(Given::Gradients(layer, gradients)) => drop(self.layers.insert(layer, gradients)),
            Ok(Given::Statistics(numbers)) => self.statistics = Some(numbers),
            Err(_) => return false,
        }
        true
    }
}

impl RingThread {
    pub(super) fn new(worker: Worker, group: Group) -> Self {
        Self {
            worker,
            cancel: group.cancel_handle(),
            group: Arc::new(Mutex::new(group)),
        }
    }

    pub(super) fn set_all_reduce(&self, by: AllReduce) -> Result<(), CollectiveError> {
        let mut group = self.group.lock().unwrap_or_else(PoisonError::into_inner);
        group.set_all_reduce(by)
    }

    /// Reduces what is given, until all is reduced or the run is cancelled.
    pub(super) fn run<L: Module + Send + 'static>(&self, run: u64, job: Job<L>) {
        let group = self.group.clone();
        self.worker.run(move || {
            let mut group = group.lock().unwrap_or_else(PoisonError::into_inner);
            group.begin(run);
            job.run(&mut group);
        });
    }
}

impl<L: Module> Job<L> {
    fn run(self, group: &mut Group) {
        let mut taken = Taken::default();
        for (number, bucket) in self.buckets.iter().enumerate() {
            while bucket.iter().any(|layer| !taken.layers.contains_key(layer)) {
                if !taken.next(&self.given) {
                    return;
                }
            }
            let own = bucket.iter().map(|layer| taken.layers.remove(layer));
            let own = own.map(Option::unwrap_or_default).collect();
            let reduce = || caught(|| self.reduce(group, number, own))?;
            let reduced = self.recorder.time(SpanKind::AllReduce, None, reduce);
            match reduced {
                Ok(sums) => {
                    for (&layer, sum) in bucket.iter().zip(sums) {
                        let _ = self.sums.send((layer, Ok(Sum::Gradients(sum))));
                    }
                }
                Err(cause) => return self.fail(bucket[0], cause),
            }
        }
        if self.exchanges_statistics {
            while taken.statistics.is_none() {
                if !taken.next(&self.given) {
                    return;
                }
            }
            let mut numbers = taken.statistics.unwrap_or_default();
            let number = self.buckets.len() as u64;
            let reduced = group.all_reduce(number, &mut [&mut numbers], Reduction::Sum);
            match reduced {
                Ok(()) => {
                    let sum = Ok(Sum::Statistics(numbers));
                    let _ = self.sums.send((self.layers.len(), sum));
                }
                Err(error) => self.fail(self.layers.len(), error.into()),
            }
        }
    }

    /// The worker knows that the run was cancelled.
    fn fail(&self, waits_for: usize, cause: FailureCause) {
        if !matches!(cause, FailureCause::Reduction(CollectiveError::Cancelled)) {
            let _ = self.sums.send((waits_for, Err(cause)));
        }
    }

    /// The sums of the layers of a bucket.
    fn reduce(
        &self,
        group: &mut Group,
        number: usize,
        own: Vec<GradientsParams>,
    ) -> Result<Vec<GradientsParams>, FailureCause> {
        let layers: Vec<_> = self.buckets[number]
            .iter()
            .map(|&layer| &self.layers[layer])
            .collect();
        let mut read = Read::default();
        for (layer, gradients) in layers.iter().zip(own) {
            read.gradients = gradients;
            visit_parameters(*layer, &mut read);
        }
        if let Some(source) = read.error {
            return Err(FailureCause::Device(source.into()));
        }
        let mut numbers: Vec<&mut [f32]> =
            read.numbers.iter_mut().map(|own| &mut own[..]).collect();
        numbers.push(&mut read.counts);
        group.all_reduce(number as u64, &mut numbers, Reduction::Sum)?;
        let mut write = Write {
            device: &self.device,
            sums: read.numbers.into_iter().zip(read.counts),
            gradients: GradientsParams::new(),
        };
        let mut write = |layer: &&L| {
            visit_parameters(*layer, &mut write);
            std::mem::take(&mut write.gradients)
        };
        let sums = layers.iter().map(&mut write).collect();
        let flushed = self.device.flush(); // other threads read them
        flushed.map_err(|error| FailureCause::Device(error.into()))?;
        Ok(sums)
    }
}

/// Gradients in main memory, in the order of a visit.
#[derive(Default)]
struct Read {
    gradients: GradientsParams,
    numbers: Vec<Vec<f32>>,
    /// Of each gradient, whether this replica has it: of all, how many have it.
    counts: Vec<f32>,
    error: Option<burn::tensor::DataError>,
}

impl ParameterVisitor for Read {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        let own = self.gradients.remove::<D>(param.id);
        self.counts.push(if own.is_some() { 1.0 } else { 0.0 });
        let numbers = own.map(|own| own.into_data().try_into_vec::<f32>());
        self.numbers.push(match numbers {
            Some(Ok(numbers)) => numbers,
            Some(Err(error)) => {
                self.error.get_or_insert(error);
                Vec::new()
            }
            None => vec![0.0; param.lazy_shape().num_elements()],
        });
    }
}

/// Sums on a device, in the order of a visit.
struct Write<'a, I> {
    device: &'a Device,
    sums: I,
    gradients: GradientsParams,
}

impl<I: Iterator<Item = (Vec<f32>, f32)>> ParameterVisitor for Write<'_, I> {
    fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() {
            return;
        }
        // A parameter that no replica used has no gradient.
        if let Some((numbers, count)) = self.sums.next()
            && count > 0.0
        {
            let data = TensorData::new(numbers, param.lazy_shape());
            let sum = Tensor::<D>::from_data(data, self.device);
            self.gradients.register(param.id, sum);
        }
    }
}

/// The layers of each bucket of at most `limit` bytes, the last ones first. A layer is not split.
pub(super) fn buckets<M: Module>(layers: &[&M], limit: usize) -> Vec<Vec<usize>> {
    struct Bytes(usize);

    impl ParameterVisitor for Bytes {
        fn parameter<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0 += param.lazy_shape().num_elements() * size_of::<f32>();
            }
        }
    }

    // Layers without gradients go with the next one: they must not delay those before.
    let (mut buckets, mut empty) = (vec![Vec::new()], Vec::new());
    let mut filled = 0;
    for (layer, module) in layers.iter().enumerate().rev() {
        let mut own = Bytes(0);
        visit_parameters(*module, &mut own);
        if own.0 == 0 {
            empty.push(layer);
            continue;
        }
        let limit = match buckets.len() {
            1 => FIRST_BUCKET.min(limit),
            _ => limit,
        };
        if filled > 0 && filled + own.0 > limit {
            buckets.push(Vec::new());
            filled = 0;
        }
        filled += own.0;
        let last = buckets.len() - 1;
        buckets[last].append(&mut empty);
        buckets[last].push(layer);
    }
    let last = buckets.len() - 1;
    buckets[last].append(&mut empty);
    buckets
}
