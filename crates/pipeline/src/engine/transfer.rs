//! Threads that take what stages send each other from device to device, while the stages go
//! on.
//!
//! Where two stages lie on one device, what one sends is put into the other's mailbox as it is. Where
//! they do not, it must be copied, which may take as long as a pass, and to read from a GPU is to wait
//! until it has computed what is read. A stage's own thread would do neither end any good there. So each
//! worker has a carrier for each worker elsewhere that it sends to: a [`Worker`] of the runtime, that
//! lives as long as the pipeline, and whose jobs are the messages. A message keeps its place: a carrier
//! has one route, and goes it with one message at a time.
//!
//! Who wakes whom: the sender hands over a job and goes on, which wakes the carrier. The carrier
//! waits for nobody but the two devices, and puts what has arrived into the receiver's mailbox, which
//! wakes the receiver. It is the receiver that hears the siren, and that counts as waiting while a message
//! travels; the flight record says which messages do.
//!
//! What can go wrong: a copy that fails or panics is a message too, and fails the receiver, which ends
//! the step as any failure does. A copy that does not come back leaves the receiver waiting until the
//! step's limit is over; the carrier is then given up like a worker that hangs (`settle`), and the
//! pipeline says that it is stuck until the copy is back. Messages that are left over when a step has
//! failed have nobody to receive them any more, and are dropped as their turn comes, uncopied. A job holds
//! the route and not the carrier, so that no thread is ever the one to join itself.
//!
//! On a GPU, what is sent must be asked for before it is sent. Burn's fusion holds operations back, by
//! thread; what another thread reads, it would compute on that one's stream, while memory that it reads from
//! is already given to others on its own. Gradients were seen to be off by a factor of thousands. So the
//! sender flushes, which does not wait.
//!
//! To copy between two devices of CUDA is a meeting: each of them waits in its queue of work until the
//! other has come to the same copy (`send` and `recv` of CubeCL). If one carrier asked A and then B,
//! while another asked B and then A, neither would ever be met. So these copies are asked for one at a
//! time; they still run side by side.

use std::{
    collections::{BTreeSet, HashMap},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use burn::tensor::Device;
use stovepipe_runtime::{self as runtime, Worker};

use crate::{
    api::error::{Transfer, TransferKind},
    engine::{
        Placement,
        guard::caught,
        worker::{self, GRACE},
    },
};

/// What is called before each copy: a test's way to see it, to hold it up, and to make it fail. If there
/// is one, all workers are taken to lie on devices of their own.
pub(crate) type TransferHook = Arc<dyn Fn(&Transfer) + Send + Sync>;

/// The end of a mailbox that receives, from a stage that may lie elsewhere.
pub(crate) type Inbox<T> = runtime::Inbox<Result<T, String>>;

/// The end of a mailbox that sends, to a stage that may lie elsewhere.
pub(crate) struct Outbox<T> {
    queue: runtime::Outbox<Result<T, String>>,
    /// Where messages are made.
    device: Device,
    way: Option<TransferPath<T>>,
}

/// How a message gets from a stage to one on another device.
struct TransferPath<T> {
    carrier: Arc<TransferThread>,
    /// The stages.
    from: usize,
    to: usize,
    kind: TransferKind,
    copy: fn(T, &Device) -> T,
}

struct TransferThread {
    worker: Worker,
    route: Arc<TransferRoute>,
}

/// From a device to another.
struct TransferRoute {
    from: Device,
    to: Device,
    /// What they are called.
    names: [String; 2],
    hook: Option<TransferHook>,
    under_way: Mutex<Option<Transfer>>,
}

impl<T: Send + 'static> Outbox<T> {
    /// Sends a message on its way; never waits. A receiver that is gone has failed, and says so itself.
    pub(crate) fn send(&self, micro_batch: usize, message: T) {
        if let Err(error) = self.device.flush() {
            let _ = self.queue.send((micro_batch, Err(error.to_string())));
            return;
        }
        let Some(way) = &self.way else {
            let _ = self.queue.send((micro_batch, Ok(message)));
            return;
        };
        let (route, copy) = (way.carrier.route.clone(), way.copy);
        let transfer = Transfer {
            kind: way.kind,
            micro_batch,
            stages: [way.from, way.to],
            devices: route.names.clone(),
        };
        let queue = self.queue.clone();
        way.carrier.worker.run(move || {
            if queue.is_connected() {
                let arrived = route.carry(&transfer, || copy(message, &route.to));
                let _ = queue.send((micro_batch, arrived));
            }
        });
    }
}

impl TransferRoute {
    fn carry<T>(&self, transfer: &Transfer, copy: impl FnOnce() -> T) -> Result<T, String> {
        *self.lock() = Some(transfer.clone());
        let carried = caught(|| {
            if let Some(hook) = &self.hook {
                hook(transfer);
            }
            let copied = match is_paired_copy(&self.from, &self.to) {
                true => {
                    let _one_at_a_time =
                        PAIRED_COPIES.lock().unwrap_or_else(PoisonError::into_inner);
                    copy()
                }
                false => copy(),
            };
            // The receiver's thread would else find a copy that is only asked for.
            let synced = self.to.sync();
            synced.map(|()| copied).map_err(|error| error.to_string())
        });
        *self.lock() = None;
        let carried = carried.unwrap_or_else(|panic| Err(format!("panicked: {panic}")));
        carried.map_err(|cause| format!("{transfer} did not arrive: {cause}"))
    }

    fn lock(&self) -> MutexGuard<'_, Option<Transfer>> {
        (self.under_way.lock()).unwrap_or_else(PoisonError::into_inner)
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

/// The transfers of a pipeline, by the workers between which they go.
pub(crate) struct TransferThreads {
    /// The worker of each stage.
    owners: Vec<usize>,
    /// The device of each stage.
    devices: Vec<Device>,
    transfers: HashMap<(usize, usize), Arc<TransferThread>>,
}

impl TransferThreads {
    /// One for each two workers on different devices of which the first sends the second something.
    pub(crate) fn between(
        stages: &[Placement],
        owners: &[usize],
        hook: Option<&TransferHook>,
    ) -> io::Result<Self> {
        let mut transfers = HashMap::new();
        for (from, to) in correspondents(stages) {
            let workers = (owners[from], owners[to]);
            let [source, target] = [&stages[from], &stages[to]];
            let is_apart = source.device != target.device || hook.is_some();
            if workers.0 == workers.1 || !is_apart || transfers.contains_key(&workers) {
                continue;
            }
            let route = TransferRoute {
                from: source.device.clone(),
                to: target.device.clone(),
                names: [source.device_name.clone(), target.device_name.clone()],
                hook: hook.cloned(),
                under_way: Mutex::new(None),
            };
            let name = format!("transfer-{}-{}", workers.0, workers.1);
            let worker = Worker::spawn(&name, || Ok(()))?;
            let route = Arc::new(route);
            transfers.insert(workers, Arc::new(TransferThread { worker, route }));
        }
        Ok(Self {
            owners: owners.to_vec(),
            devices: stages.iter().map(|stage| stage.device.clone()).collect(),
            transfers,
        })
    }

    /// A mailbox from a stage to another for a kind of messages, with a way to copy one of them.
    pub(crate) fn mailbox<T>(
        &self,
        from: usize,
        to: usize,
        kind: TransferKind,
        copy: fn(T, &Device) -> T,
    ) -> (Outbox<T>, Inbox<T>) {
        let (queue, inbox) = runtime::mailbox();
        let workers = (self.owners[from], self.owners[to]);
        let way = self.transfers.get(&workers).map(|carrier| TransferPath {
            carrier: carrier.clone(),
            from,
            to,
            kind,
            copy,
        });
        let device = self.devices[from].clone();
        (Outbox { queue, device, way }, inbox)
    }

    /// What is under way.
    pub(crate) fn under_way(&self) -> Vec<Transfer> {
        let transfers = self.transfers.values();
        let mut under_way: Vec<_> = transfers
            .filter_map(|carrier| carrier.route.lock().clone())
            .collect();
        under_way.sort_by_key(|transfer| transfer.stages);
        under_way
    }

    /// Waits until nothing of a step that has failed is under way any more; if something did not come
    /// back, not for long. What is not back by then is given up.
    pub(crate) fn settle(&self, stall_timeout: Option<Duration>, has_stalled: bool) {
        let stall_timeout = match (stall_timeout, has_stalled) {
            (Some(stall_timeout), true) => Some(stall_timeout.min(GRACE)),
            (stall_timeout, _) => stall_timeout,
        };
        worker::settle(
            self.transfers.values().map(|carrier| &carrier.worker),
            stall_timeout,
        );
    }

    /// What was given up and is not back yet.
    pub(crate) fn stuck(&self) -> Option<Transfer> {
        let stuck = |carrier: &&Arc<TransferThread>| carrier.worker.is_stuck();
        let carrier = self.transfers.values().find(stuck)?;
        carrier.route.lock().clone()
    }
}

/// Each two stages of which the first sends the second something: neighbours, and where skips go.
fn correspondents(stages: &[Placement]) -> BTreeSet<(usize, usize)> {
    let neighbours = (1..stages.len()).map(|stage| (stage - 1, stage));
    let skips = stages.iter().enumerate().flat_map(|(from, stage)| {
        (stage.skips.outgoing().into_iter()).map(move |(_, to)| (from, to))
    });
    // What goes forward has a gradient that comes back.
    (neighbours.chain(skips))
        .flat_map(|(from, to)| [(from, to), (to, from)])
        .collect()
}
