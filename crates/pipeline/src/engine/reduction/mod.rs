//! Adds up the gradients of a stage's replicas, while backward passes go on.
//!
//! When a replica has a layer's gradients, its worker gives them away; the last layers come first. If all
//! replicas are in one process, a thread adds a layer's gradients when the last replica has given its own.
//! Otherwise each replica has a thread, which collects layers into buckets and reduces these in a ring with
//! the threads of the others, or lets MPI add them up. A worker waits only at the end of its step, for the sums.
//!
//! Both add in the order of a ring, so a sum has the same bits wherever the replicas are. Running statistics
//! of replicas in several processes are exchanged the same way: each has those of its own micro-batches.
//!
//! If a replica fails, its step is cancelled, and so are those of the others. What a worker drops then ends
//! its reduction, and the next step does not see what is left of it.

mod ring;
mod sum;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    time::Duration,
};

use burn::{module::Module, optim::GradientsParams, tensor::Device};
use stovepipe_collective::{AllReduce, Group};
use stovepipe_runtime::{self as runtime, CancelToken, Cancelled, Worker};
use stovepipe_schedule::SpanKind;

use self::ring::{Job, RingThread};
use crate::{
    api::error::{BuildError, FailureCause},
    engine::{
        panic::caught,
        processes::Processes,
        record::Recorder,
        seats::{Seat, Seats},
        worker::{self, ActionError},
    },
};

/// The channel of the first ring; the engine's messages have channel 0.
const FIRST_CHANNEL: u32 = 1;

/// The threads that add gradients, by stage.
pub(crate) struct Reducers {
    stages: Vec<Reducer>,
    bucket: usize,
}

enum Reducer {
    /// The stage has no replicas, or none here.
    None,
    /// All replicas are in this process.
    Here(Arc<Worker>),
    /// Each of this process's replicas has its place in a ring.
    Ring(HashMap<usize, Arc<RingThread>>),
}

/// What a worker gives away.
pub(super) enum Given {
    /// Of a layer of the stage.
    Gradients(usize, GradientsParams),
    Statistics(Vec<f32>),
}

/// What a worker gets: under the index of the layer, statistics after the last one.
pub(super) enum Sum {
    Gradients(GradientsParams),
    Statistics(Vec<f32>),
}

type Sums = runtime::Inbox<Result<Sum, FailureCause>>;

impl Reducers {
    /// Starts the threads of this process's replicas.
    pub(crate) fn start(seats: &Seats, processes: &Processes, bucket: usize) -> io::Result<Self> {
        let mut channel = FIRST_CHANNEL;
        let mut start = |stage: usize| {
            let seats = seats.of_stage(stage);
            let ranks: Vec<_> = seats.iter().map(|seat| processes.of(seat.worker)).collect();
            let first = channel;
            channel += ranks.len() as u32;
            let spawn = |name: String| worker::spawn(&name, 1);
            match processes.comm() {
                _ if seats.len() == 1 || processes.home(seats).is_none() => Ok(Reducer::None),
                Some(comm) if processes.of_seats(seats).len() > 1 => {
                    let own = seats.iter().filter(|seat| processes.is_own(seat.worker));
                    let thread = |seat: &Seat| {
                        let replica = seat.replica;
                        let group = Group::with_place(comm.clone(), first, &ranks, replica);
                        let group = group.map_err(io::Error::other)?;
                        let worker = spawn(format!("reduce-{stage}-{replica}"))?;
                        Ok((replica, RingThread::new(worker, group).into()))
                    };
                    Ok(Reducer::Ring(own.map(thread).collect::<io::Result<_>>()?))
                }
                _ => Ok(Reducer::Here(spawn(format!("reduce-{stage}"))?.into())),
            }
        };
        let stages = (0..seats.stages()).map(&mut start);
        Ok(Self {
            stages: stages.collect::<io::Result<_>>()?,
            bucket,
        })
    }

    /// Sets what adds up in the rings. All processes call it, after all have built theirs.
    pub(crate) fn set_all_reduce(&self, by: AllReduce) -> Result<(), BuildError> {
        for (stage, reducer) in self.stages.iter().enumerate() {
            if let Reducer::Ring(threads) = reducer {
                let mut threads = threads.values();
                let set = threads.try_for_each(|thread| thread.set_all_reduce(by));
                set.map_err(|source| BuildError::AllReduce { stage, source })?;
            }
        }
        Ok(())
    }

    /// The limit of a bucket, in bytes.
    pub(crate) fn bucket(&self) -> usize {
        self.bucket
    }

    /// Makes the reductions of a run.
    pub(crate) fn of_run(&self) -> RunReductions<'_> {
        RunReductions {
            reducers: self,
            here: HashMap::new(),
        }
    }

    fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.stages.iter().flat_map(|reducer| match reducer {
            Reducer::None => Vec::new(),
            Reducer::Here(worker) => vec![&**worker],
            Reducer::Ring(threads) => threads.values().map(|thread| &thread.worker).collect(),
        })
    }

    /// Waits until nothing of a failed step is left; only briefly if the step has stalled.
    pub(crate) fn settle(&self, stall_timeout: Option<Duration>, has_stalled: bool) {
        worker::settle_after(self.workers(), stall_timeout, has_stalled);
    }

    /// Whether a thread was given up and has not ended yet.
    pub(crate) fn are_stuck(&self) -> bool {
        self.workers().any(Worker::is_stuck)
    }
}

/// Makes the reductions of a run's seats.
pub(crate) struct RunReductions<'a> {
    reducers: &'a Reducers,
    /// By stage, what the replicas in this process share.
    here: HashMap<usize, Arc<Collected>>,
}

impl RunReductions<'_> {
    /// The reduction of a seat of this process, if it is one of several `replicas`. The devices are the
    /// seat's, and where the stage's sums are to be. In one process, the first seat of a stage gets them.
    pub(crate) fn of(
        &mut self,
        seat: Seat,
        replicas: usize,
        [own, device]: [&Device; 2],
    ) -> Option<Reduction> {
        let (outbox, sums) = runtime::mailbox();
        let replica = seat.replica;
        let (way, sums) = match &self.reducers.stages[seat.stage] {
            Reducer::None => return None,
            Reducer::Ring(threads) => {
                let ring = Ring {
                    thread: threads.get(&replica)?.clone(),
                    device: device.clone(),
                    bucket: self.reducers.bucket,
                    outbox: Some(outbox),
                    begun: None,
                };
                (Way::Ring(ring), Some(sums))
            }
            Reducer::Here(worker) => match self.here.get(&seat.stage) {
                Some(collected) => (Way::Here(collected.clone(), replica), None),
                None => {
                    let collected = Arc::new(Collected {
                        worker: worker.clone(),
                        replicas,
                        device: device.clone(),
                        given: Mutex::default(),
                        sums: outbox,
                    });
                    self.here.insert(seat.stage, collected.clone());
                    (Way::Here(collected, replica), Some(sums))
                }
            },
        };
        Some(Reduction {
            device: own.clone(),
            way,
            sums,
            is_given: Vec::new(),
            order: Vec::new(),
            recorder: None,
        })
    }
}

/// A seat's part of a reduction.
pub(crate) struct Reduction {
    /// The seat's.
    device: Device,
    way: Way,
    /// `None` if another seat of this process gets the sums.
    sums: Option<Sums>,
    /// By layer of the stage.
    is_given: Vec<bool>,
    /// The layers in the order in which they are reduced.
    order: Vec<usize>,
    /// Of the seat's worker.
    recorder: Option<Recorder>,
}

enum Way {
    /// With the seat's replica.
    Here(Arc<Collected>, usize),
    Ring(Ring),
}

/// What the replicas in one process have given.
struct Collected {
    worker: Arc<Worker>,
    replicas: usize,
    device: Device,
    given: Mutex<HashMap<usize, Vec<Option<GradientsParams>>>>,
    sums: runtime::Outbox<Result<Sum, FailureCause>>,
}

/// A seat's way to its thread.
struct Ring {
    thread: Arc<RingThread>,
    device: Device,
    bucket: usize,
    /// Moves to the thread: then the end of its job ends the wait for it.
    outbox: Option<runtime::Outbox<Result<Sum, FailureCause>>>,
    /// The run, and where the thread listens.
    begun: Option<(u64, mpsc::Sender<Given>)>,
}

impl Reduction {
    /// The run begins. `layers` are the seat's, as it trains them. Replicas have gradients of layers unless
    /// the run `only_counts` statistics.
    pub(crate) fn begin<L: Module + Send + 'static>(
        &mut self,
        run: u64,
        layers: &[&L],
        (only_counts, has_statistics): (bool, bool),
        recorder: &Recorder,
    ) {
        self.recorder = Some(recorder.clone());
        self.is_given = vec![only_counts; layers.len()];
        if !only_counts {
            self.order = (0..layers.len()).rev().collect();
        }
        let Way::Ring(ring) = &mut self.way else {
            return;
        };
        let Some(sums) = ring.outbox.take() else {
            return;
        };
        let buckets = match only_counts {
            true => Vec::new(),
            false => ring::buckets(layers, ring.bucket),
        };
        let (to_thread, given) = mpsc::channel();
        ring.begun = Some((run, to_thread));
        let job = Job {
            layers: layers.iter().map(|&layer| layer.clone()).collect(),
            buckets,
            exchanges_statistics: has_statistics,
            device: ring.device.clone(),
            given,
            sums,
            recorder: recorder.clone(),
        };
        ring.thread.run(run, job);
    }

    /// Gives a layer's gradients away; never waits. What is given twice counts once.
    pub(crate) fn give<L: Module + Send + 'static>(
        &mut self,
        layer: usize,
        module: &L,
        gradients: GradientsParams,
    ) {
        if std::mem::replace(&mut self.is_given[layer], true) {
            return;
        }
        let _ = self.device.flush(); // another thread reads them; a lost device fails there
        match &self.way {
            Way::Here(collected, replica) => {
                let recorder = self.recorder.clone();
                collected.give((layer, module), *replica, gradients, recorder);
            }
            Way::Ring(ring) => ring.give(Given::Gradients(layer, gradients)),
        }
    }

    /// The layers that are still to be given, the last one first.
    pub(crate) fn missing(&self) -> Vec<usize> {
        let layers = self.is_given.iter().enumerate().rev();
        layers
            .filter(|(_, is_given)| !**is_given)
            .map(|(layer, _)| layer)
            .collect()
    }

    /// Whether replicas in other processes need the seat's running statistics.
    pub(crate) fn exchanges_statistics(&self) -> bool {
        matches!(self.way, Way::Ring(_))
    }

    /// Waits for the sums of all layers. There are none if another seat of this process gets them.
    pub(crate) fn gradients(
        &mut self,
        cancel: &CancelToken,
    ) -> Result<Vec<GradientsParams>, ActionError> {
        if self.sums.is_none() {
            return Ok(Vec::new());
        }
        let none = self.is_given.iter().map(|_| GradientsParams::new());
        let mut sums: Vec<_> = none.collect();
        for layer in std::mem::take(&mut self.order) {
            if let Sum::Gradients(sum) = self.receive(layer, cancel)? {
                sums[layer] = sum;
            }
        }
        Ok(sums)
    }

    /// Drops a reduction that is over, while its run goes on.
    pub(crate) fn end(mut self) {
        if let Way::Ring(ring) = &mut self.way {
            ring.begun = None;
        }
    }

    /// Gives running statistics away; never waits.
    pub(crate) fn give_statistics(&self, own: Vec<f32>) {
        if let Way::Ring(ring) = &self.way {
            ring.give(Given::Statistics(own));
        }
    }

    /// Waits for the sums of running statistics over all replicas.
    pub(crate) fn statistics(&mut self, cancel: &CancelToken) -> Result<Vec<f32>, ActionError> {
        match self.receive(self.is_given.len(), cancel)? {
            Sum::Statistics(sums) => Ok(sums),
            Sum::Gradients(_) => Err(ActionError::Cancelled),
        }
    }

    fn receive(&mut self, key: usize, cancel: &CancelToken) -> Result<Sum, ActionError> {
        let Some(sums) = &mut self.sums else {
            return Err(ActionError::Cancelled);
        };
        let received = sums.receive(key, cancel);
        received
            .map_err(|Cancelled| ActionError::Cancelled)?
            .map_err(ActionError::Failed)
    }
}

impl Drop for Reduction {
    /// Ends what is left of the run, if its step has failed.
    fn drop(&mut self) {
        if let Way::Ring(ring) = &self.way
            && let Some((run, _)) = &ring.begun
        {
            ring.thread.cancel.cancel(*run);
        }
    }
}

impl Ring {
    fn give(&self, given: Given) {
        if let Some((_, thread)) = &self.begun {
            let _ = thread.send(given);
        }
    }
}

impl Collected {
    /// Queues the sum of a layer when all replicas have given theirs.
    fn give<L: Module + Send + 'static>(
        &self,
        (layer, module): (usize, &L),
        replica: usize,
        gradients: GradientsParams,
        recorder: Option<Recorder>,
    ) {
        let mut given = self.given.lock().unwrap_or_else(PoisonError::into_inner);
        let none = || (0..self.replicas).map(|_| None).collect();
        let of_layer = given.entry(layer).or_insert_with(none);
        of_layer[replica] = Some(gradients);
        if of_layer.iter().any(Option::is_none) {
            return;
        }
        let all: Vec<_> = given
            .remove(&layer)
            .into_iter()
            .flatten()
            .flatten()
            .collect();
        drop(given);
        let (module, device, sums) = (module.clone(), self.device.clone(), self.sums.clone());
        self.worker.run(move || {
            let add = || {
                let sum = caught(|| sum::sum(&module, all, &device))?;
                let flushed = device.flush(); // other threads read it
                flushed.map_err(|error| FailureCause::Device(error.into()))?;
                Ok(Sum::Gradients(sum))
            };
            let sum = match recorder {
                Some(recorder) => recorder.time(SpanKind::AllReduce, None, add),
                None => add(),
            };
            let _ = sums.send((layer, sum));
        });
    }
}
