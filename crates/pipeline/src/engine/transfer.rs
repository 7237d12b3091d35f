//! Threads that copy what stages send each other from device to device.
//!
//! Two stages on one device share values through a mailbox. Between devices, a value must be copied, which
//! may take as long as a pass. So that no stage waits for copies, each worker has a transfer thread for each
//! worker on another device that it sends to: a [`Worker`] of the runtime, which copies one message at a
//! time into the receiver's mailbox. A copy that fails is sent as an error and fails the receiver. If it
//! hangs, the step stalls, and the pipeline is stuck until the copy returns. When a step has failed, messages
//! that are left are dropped. A job holds the devices and not the thread, so no thread joins itself.
//!
//! On a GPU, a sender flushes its queue before it sends; that does not wait. Burn's fusion delays operations
//! per thread: a thread that reads the value would run them on its own stream, while the sender's stream
//! already reuses the memory.
//!
//! A transfer thread waits for its copy alone: it reads an element of it. To wait for the device would be to
//! wait for all that other threads have queued there; under Burn's fusion, they could queue nothing meanwhile.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_runtime::Worker;

use crate::{
    api::error::{BoxedError, FailureCause, Transfer},
    engine::{
        message::{Arrived, Message, Queue},
        panic::caught,
        processes::Processes,
        seats::{Seat, Seats},
        worker,
    },
    measure::device::NamedDevice,
};

/// Called before each copy: lets tests observe, delay or fail it. With a hook, all workers count as
/// being on different devices.
pub(crate) type TransferHook = Arc<dyn Fn(&Transfer) + Send + Sync>;

/// Copies what one worker sends to another.
pub(crate) struct TransferThread {
    worker: Worker,
    devices: Arc<DevicePair>,
}

/// From one device to another.
struct DevicePair {
    from: NamedDevice,
    to: NamedDevice,
    hook: Option<TransferHook>,
    /// The copy that is running.
    current: Mutex<Option<Transfer>>,
}

impl TransferThread {
    /// Copies a message into a mailbox; never waits. `stages` are the sending and the receiving one.
    pub(crate) fn send<M: Message>(
        &self,
        stages: [usize; 2],
        micro_batch: usize,
        message: M,
        queue: Queue<M>,
    ) {
        let devices = self.devices.clone();
        let transfer = Transfer {
            kind: M::KIND,
            micro_batch,
            stages,
            devices: [devices.from.name.clone(), devices.to.name.clone()],
        };
        self.worker.run(move || {
            if queue.is_connected() {
                let copied = devices.copy(&transfer, message);
                let copied = copied.map_err(|source| FailureCause::Transfer {
                    transfer: transfer.into(),
                    source,
                });
                let _ = queue.send((micro_batch, copied.map(Arrived::Here)));
            }
        });
    }
}

impl DevicePair {
    fn copy<M: Message>(&self, transfer: &Transfer, message: M) -> Result<M, BoxedError> {
        *self.lock() = Some(transfer.clone());
        let copied = caught(|| {
            if let Some(hook) = &self.hook {
                hook(transfer);
            }
            let copied = message.to_device(&self.to.device);
            // Otherwise the receiver could read a copy that has not run yet.
            copied.wait().map(|()| copied)
        });
        *self.lock() = None;
        Ok(copied??)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Transfer>> {
        (self.current.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

/// The transfer threads of a pipeline, by sending and receiving worker.
pub(crate) struct TransferThreads {
    /// The device of each worker.
    devices: Vec<Device>,
    threads: HashMap<(usize, usize), Arc<TransferThread>>,
}

impl TransferThreads {
    /// Starts one for each two workers on different devices of which one sends to the other. `devices`
    /// are those of the workers, `skips` the stages between which skips go.
    pub(crate) fn start(
        devices: &[NamedDevice],
        skips: BTreeSet<(usize, usize)>,
        (seats, processes): (&Seats, &Processes),
        hook: Option<&TransferHook>,
    ) -> io::Result<Self> {
        let neighbours = (1..seats.stages()).map(|stage| (stage - 1, stage));
        let pairs: BTreeSet<_> = neighbours.chain(skips).collect();
        let pairs = pairs.into_iter().flat_map(|(from, to)| {
            let of = |stage| seats.of_stage(stage).iter().map(|seat| seat.worker);
            of(from).flat_map(move |from| of(to).map(move |to| (from, to)))
        });
        // Gradients go the other way.
        let pairs = pairs.flat_map(|(from, to)| [(from, to), (to, from)]);
        let mut threads = HashMap::new();
        for (from, to) in pairs.collect::<BTreeSet<_>>() {
            let is_here = [from, to].iter().all(|&worker| processes.is_own(worker));
            let is_apart = devices[from].device != devices[to].device || hook.is_some();
            if from == to || !is_apart || !is_here {
                continue;
            }
            let pair = Arc::new(DevicePair {
                from: devices[from].clone(),
                to: devices[to].clone(),
                hook: hook.cloned(),
                current: Mutex::new(None),
            });
            let worker = Worker::spawn(&format!("transfer-{from}-{to}"))?;
            let thread = TransferThread {
                worker,
                devices: pair,
            };
            threads.insert((from, to), Arc::new(thread));
        }
        Ok(Self {
            devices: devices.iter().map(|device| device.device.clone()).collect(),
            threads,
        })
    }

    /// The thread that copies what one seat sends to another, if they are on different devices.
    pub(crate) fn between(&self, from: &Seat, to: &Seat) -> Option<Arc<TransferThread>> {
        self.threads.get(&(from.worker, to.worker)).cloned()
    }

    pub(crate) fn device_of(&self, seat: &Seat) -> &Device {
        &self.devices[seat.worker]
    }

    /// The copies that are running.
    pub(crate) fn current(&self) -> Vec<Transfer> {
        let threads = self.threads.values();
        let current = threads.filter_map(|thread| thread.devices.lock().clone());
        let mut current: Vec<_> = current.collect();
        current.sort_by_key(|transfer| transfer.stages);
        current
    }

    /// Waits until no copy of a failed step is left; only briefly if the step has stalled. Gives up
    /// those that have not ended by then.
    pub(crate) fn settle(&self, stall_timeout: Option<Duration>, has_stalled: bool) {
        let workers = self.threads.values().map(|thread| &thread.worker);
        worker::settle_after(workers, stall_timeout, has_stalled);
    }

    /// A copy that was given up and has not ended yet.
    pub(crate) fn stuck(&self) -> Option<Transfer> {
        let mut threads = self.threads.values();
        let thread = threads.find(|thread| thread.worker.is_stuck())?;
        thread.devices.lock().clone()
    }
}
