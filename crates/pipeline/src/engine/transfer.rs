//! Threads that copy what stages send each other from device to device.
//!
//! Two stages on one device share values through a mailbox. Between devices, a value must be copied,
//! which may take as long as a pass; reading from a GPU also waits until the GPU has computed the
//! value. So that no stage waits for copies, each worker has a transfer thread for each worker on
//! another device that it sends to: a [`Worker`] of the runtime, which copies one message at a time.
//!
//! The sender queues a copy and continues. The transfer thread waits only for the two devices, then
//! puts the copy into the receiver's mailbox. A copy that fails or panics is sent as an error and fails
//! the receiver. If a copy hangs, the step stalls; the thread is given up like a worker that hangs, and
//! the pipeline is stuck until the copy returns. When a step has failed, messages that are left are
//! dropped. A job holds the route and not the thread, so no thread joins itself.
//!
//! On a GPU, a sender flushes its queue before it sends; that does not wait. Burn's fusion delays
//! operations per thread. Another thread that reads the value would run them on its own stream, while
//! the sender's stream already reuses the memory: gradients were off by a factor of thousands.
//!
//! On CUDA, a copy pairs the queues of both devices: each waits until the other reaches the same copy.
//! Two threads that queue copies between the same devices in opposite orders would deadlock, so these
//! copies are queued one at a time. They still run side by side.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_runtime::{self as runtime, Worker};

use crate::{
    api::error::{BoxedError, FailureCause, Transfer, TransferKind},
    engine::{
        panic::caught,
        worker::{self, GRACE},
    },
    measure::device::NamedDevice,
};

/// Called before each copy: lets tests observe, delay or fail it. With a hook, all workers count as
/// being on different devices.
pub(crate) type TransferHook = Arc<dyn Fn(&Transfer) + Send + Sync>;

/// The receiving end of a mailbox between stages.
pub(crate) type TransferInbox<T> = runtime::Inbox<Result<T, FailureCause>>;

/// The sending end of a mailbox between stages.
pub(crate) struct TransferOutbox<T> {
    queue: runtime::Outbox<Result<T, FailureCause>>,
    /// The sender's device.
    device: Device,
    path: Option<TransferPath<T>>,
}

/// How a message reaches a stage on another device.
struct TransferPath<T> {
    thread: Arc<TransferThread>,
    /// The sending and the receiving stage.
    stages: [usize; 2],
    kind: TransferKind,
    copy: fn(T, &Device) -> T,
}

struct TransferThread {
    worker: Worker,
    route: Arc<TransferRoute>,
}

/// From one device to another.
struct TransferRoute {
    from: NamedDevice,
    to: NamedDevice,
    hook: Option<TransferHook>,
    /// The copy that is running.
    current: Mutex<Option<Transfer>>,
}

impl<T: Send + 'static> TransferOutbox<T> {
    /// Sends a message; never waits. If the receiver is dropped, it has failed and reports that
    /// itself.
    pub(crate) fn send(&self, micro_batch: usize, message: T) {
        if let Err(error) = self.device.flush() {
            let _ = (self.queue).send((micro_batch, Err(FailureCause::Device(error.into()))));
            return;
        }
        let Some(path) = &self.path else {
            let _ = self.queue.send((micro_batch, Ok(message)));
            return;
        };
        let (route, copy) = (path.thread.route.clone(), path.copy);
        let transfer = Transfer {
            kind: path.kind,
            micro_batch,
            stages: path.stages,
            devices: [route.from.name.clone(), route.to.name.clone()],
        };
        let queue = self.queue.clone();
        path.thread.worker.run(move || {
            if queue.is_connected() {
                let copied = route.copy(&transfer, || copy(message, &route.to.device));
                let copied = copied.map_err(|source| FailureCause::Transfer {
                    transfer: transfer.into(),
                    source,
                });
                let _ = queue.send((micro_batch, copied));
            }
        });
    }
}

impl TransferRoute {
    fn copy<T>(&self, transfer: &Transfer, copy: impl FnOnce() -> T) -> Result<T, BoxedError> {
        *self.lock() = Some(transfer.clone());
        let copied = caught(|| {
            if let Some(hook) = &self.hook {
                hook(transfer);
            }
            let copied = {
                let _one_at_a_time = is_paired_copy(&self.from.device, &self.to.device)
                    .then(|| PAIRED_COPIES.lock().unwrap_or_else(PoisonError::into_inner));
                copy()
            };
            // Otherwise the receiver could read a copy that has not run yet.
            self.to.device.sync().map(|()| copied)
        });
        *self.lock() = None;
        Ok(copied??)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Transfer>> {
        (self.current.lock()).unwrap_or_else(PoisonError::into_inner)
    }
}

static PAIRED_COPIES: Mutex<()> = Mutex::new(());

#[cfg(feature = "cuda")]
fn is_paired_copy(from: &Device, to: &Device) -> bool {
    use burn::backend::{CubeDevice, DispatchDevice};
    let is_cuda = |device: &Device| {
        matches!(
            device.as_dispatch(),
            DispatchDevice::Cube(CubeDevice::Cuda(_))
        )
    };
    is_cuda(from) && is_cuda(to)
}

#[cfg(not(feature = "cuda"))]
fn is_paired_copy(_: &Device, _: &Device) -> bool {
    false
}

/// The transfer threads of a pipeline, by sending and receiving worker.
pub(crate) struct TransferThreads {
    /// The worker of each stage.
    owners: Vec<usize>,
    /// The device of each stage.
    devices: Vec<Device>,
    threads: HashMap<(usize, usize), Arc<TransferThread>>,
}

impl TransferThreads {
    /// Starts one for each two workers on different devices of which one sends to the other.
    /// `devices` are those of the stages, `skips` the stages between which skips go.
    pub(crate) fn start(
        devices: &[NamedDevice],
        skips: BTreeSet<(usize, usize)>,
        owners: &[usize],
        hook: Option<&TransferHook>,
    ) -> io::Result<Self> {
        let neighbours = (1..devices.len()).map(|stage| (stage - 1, stage));
        // Gradients go the other way.
        let pairs = neighbours.chain(skips);
        let pairs = pairs.flat_map(|(from, to)| [(from, to), (to, from)]);
        let mut threads = HashMap::new();
        for (from, to) in pairs.collect::<BTreeSet<_>>() {
            let workers = (owners[from], owners[to]);
            let is_apart = devices[from].device != devices[to].device || hook.is_some();
            if workers.0 == workers.1 || !is_apart || threads.contains_key(&workers) {
                continue;
            }
            let route = Arc::new(TransferRoute {
                from: devices[from].clone(),
                to: devices[to].clone(),
                hook: hook.cloned(),
                current: Mutex::new(None),
            });
            let name = format!("transfer-{}-{}", workers.0, workers.1);
            let worker = Worker::spawn(&name, || Ok(()))?;
            threads.insert(workers, Arc::new(TransferThread { worker, route }));
        }
        Ok(Self {
            owners: owners.to_vec(),
            devices: devices.iter().map(|device| device.device.clone()).collect(),
            threads,
        })
    }

    /// A mailbox from one stage to another. `copy` copies a message to a device.
    pub(crate) fn mailbox<T>(
        &self,
        [from, to]: [usize; 2],
        kind: TransferKind,
        copy: fn(T, &Device) -> T,
    ) -> (TransferOutbox<T>, TransferInbox<T>) {
        let (queue, inbox) = runtime::mailbox();
        let thread = self.threads.get(&(self.owners[from], self.owners[to]));
        let path = thread.map(|thread| TransferPath {
            thread: thread.clone(),
            stages: [from, to],
            kind,
            copy,
        });
        let device = self.devices[from].clone();
        let outbox = TransferOutbox {
            queue,
            device,
            path,
        };
        (outbox, inbox)
    }

    /// The copies that are running.
    pub(crate) fn current(&self) -> Vec<Transfer> {
        let threads = self.threads.values();
        let mut current: Vec<_> = threads
            .filter_map(|thread| thread.route.lock().clone())
            .collect();
        current.sort_by_key(|transfer| transfer.stages);
        current
    }

    /// Waits until no copy of a failed step is left; only briefly if the step has stalled. Gives up
    /// those that have not ended by then.
    pub(crate) fn settle(&self, stall_timeout: Option<Duration>, has_stalled: bool) {
        let limit = match stall_timeout {
            Some(limit) if has_stalled => Some(limit.min(GRACE)),
            limit => limit,
        };
        worker::settle(self.threads.values().map(|thread| &thread.worker), limit);
    }

    /// A copy that was given up and has not ended yet.
    pub(crate) fn stuck(&self) -> Option<Transfer> {
        let mut threads = self.threads.values();
        let thread = threads.find(|thread| thread.worker.is_stuck())?;
        thread.route.lock().clone()
    }
}
