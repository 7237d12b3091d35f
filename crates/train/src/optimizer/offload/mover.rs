//! A thread that moves what lies off a device, while its stage goes on.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::JoinHandle,
};

use burn::{
    module::ParamId,
    store::{
        bridge,
        burn_pack::{self, Error},
    },
    tensor::Device,
};
use stovepipe_pipeline::caught;

use super::{
    error::OffloadError,
    shelf::{Kept, Shelf},
    storage::Storage,
};

/// How many jobs may wait. What waits to be written is in memory.
const WAITING: usize = 1;

type Job = Box<dyn FnOnce() + Send>;

/// Does jobs on what a stage has off its device, in the order in which they come.
pub(in crate::optimizer) struct Mover {
    shelf: Arc<Mutex<Shelf>>,
    device: Device,
    jobs: Option<SyncSender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Why something was not written.
    failed: Arc<Mutex<Option<OffloadError>>>,
}

/// What comes from the thread.
pub(super) struct Coming<R> {
    reply: Receiver<Result<R, OffloadError>>,
    failed: Arc<Mutex<Option<OffloadError>>>,
}

impl<R> Coming<R> {
    /// An earlier failure to write comes first.
    pub(super) fn wait(self) -> Result<R, OffloadError> {
        let ended = |_| OffloadError::Device("its thread has ended".to_owned());
        let found = self.reply.recv().map_err(ended).flatten();
        lock(&self.failed).take().map_or(found, Err)
    }
}

impl Mover {
    pub(in crate::optimizer) fn new(storage: Box<dyn Storage>, device: Device) -> io::Result<Self> {
        let (jobs, to_do) = sync_channel::<Job>(WAITING);
        let thread = std::thread::Builder::new().name("offload".to_owned());
        let thread = thread.spawn(move || to_do.into_iter().for_each(|job| job()))?;
        Ok(Self {
            shelf: Arc::new(Mutex::new(Shelf::new(storage))),
            device,
            jobs: Some(jobs),
            thread: Some(thread),
            failed: Arc::default(),
        })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// What `job` finds, later.
    pub(super) fn fetch<R: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Shelf) -> Result<R, OffloadError> + Send + 'static,
    ) -> Coming<R> {
        let (send, reply) = sync_channel(1);
        let (shelf, device) = (self.shelf.clone(), self.device.clone());
        self.run(move || {
            let done = caught(|| job(&mut lock(&shelf)));
            let done = done.map_err(|panicked| OffloadError::Device(panicked.message));
            let done = done
                .flatten()
                .and_then(|found| flush(&device).map(|()| found));
            let _ = send.send(done); // nobody may wait for it
        });
        Coming {
            reply,
            failed: self.failed.clone(),
        }
    }

    /// Has `job` write what was computed so far. If that fails, what waits next is told.
    pub(super) fn put(
        &self,
        job: impl FnOnce(&mut Shelf) -> Result<(), OffloadError> + Send + 'static,
    ) -> Result<(), OffloadError> {
        flush(&self.device)?; // another thread uses it
        let (shelf, failed) = (self.shelf.clone(), self.failed.clone());
        self.run(move || {
            let done = caught(|| job(&mut lock(&shelf)));
            let done = done.map_err(|panicked| OffloadError::Device(panicked.message));
            if let Err(error) = done.flatten() {
                lock(&failed).get_or_insert(error);
            }
        });
        Ok(())
    }

    /// Forgets all of a kind, and why something of it was not written.
    pub(super) fn forget(&self, what: Kept) {
        let (shelf, failed) = (self.shelf.clone(), self.failed.clone());
        self.run(move || {
            lock(&shelf).clear(what);
            lock(&failed).take();
        });
    }

    /// Waits until all is written.
    pub(super) fn settle(&self) -> Result<(), OffloadError> {
        self.fetch(|_| Ok(())).wait()
    }

    /// The tensors of an item, under the parameter's name, each of which is read when it is written elsewhere.
    pub(super) fn tensors(&self, item: (Kept, ParamId), name: &str) -> Vec<burn_pack::Tensor> {
        let kept = lock(&self.shelf).of(item);
        let slots = kept.into_iter().flat_map(|kept| kept.slots);
        let tensors = slots.map(|slot| {
            let name = match slot.name.as_str() {
                "" => name.to_owned(),
                leaf => format!("{name}.{leaf}"),
            };
            let (shelf, own) = (self.shelf.clone(), slot.clone());
            let read = move || {
                let read = lock(&shelf).read_slot(&own);
                read.map_err(|error| Error::IoError(error.to_string()))
            };
            bridge::deferred(name, slot.dtype, slot.shape, None, read)
        });
        tensors.collect()
    }

    /// What is there now.
    pub(super) fn shelf(&self) -> MutexGuard<'_, Shelf> {
        lock(&self.shelf)
    }

    fn run(&self, job: impl FnOnce() + Send + 'static) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(Box::new(job)); // if the thread has ended, no reply comes
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn flush(device: &Device) -> Result<(), OffloadError> {
    let flushed = device.flush();
    flushed.map_err(|error| OffloadError::Device(error.to_string()))
}

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
