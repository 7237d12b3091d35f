//! An optimizer's state that lies off its device between updates, and visits it one parameter at a time.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, Sender, channel},
    },
    thread::JoinHandle,
};

use burn::{
    module::ParamId,
    optim::{DynOptimizer, DynState, StateSink, StateSource},
    store::{
        bridge,
        burn_pack::{self, Error, Scalar},
    },
    tensor::{Bytes, DType, Device, Shape, TensorData},
};
use stovepipe_pipeline::caught;

use super::offload_error::OffloadError;
use crate::weights::tensor_file;

/// Where bytes lie that are not on a device: a file, or [`HostMemory`].
///
/// What is read was written before, with the same place and length.
pub trait Storage: Send + 'static {
    /// Reads what was written at a place.
    ///
    /// # Errors
    ///
    /// If it cannot be read, or there is less.
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Writes, over what was there.
    ///
    /// # Errors
    ///
    /// If it cannot be written, as on a full disk.
    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()>;
}

impl Storage for File {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.seek(SeekFrom::Start(place))?;
        self.read_exact(bytes)
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        self.seek(SeekFrom::Start(place))?;
        self.write_all(bytes)
    }
}

/// Memory of the host, for states of GPUs.
///
/// ```
/// use stovepipe_train::optimizer::{HostMemory, Storage};
///
/// let mut memory = HostMemory::default();
/// memory.write(8, b"state")?;
/// let mut found = [0; 5];
/// memory.read(8, &mut found)?;
/// assert_eq!(&found, b"state");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct HostMemory(BTreeMap<u64, Vec<u8>>);

impl Storage for HostMemory {
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> io::Result<()> {
        let found = self.0.get(&place).filter(|own| own.len() == bytes.len());
        let found = found.ok_or(io::ErrorKind::UnexpectedEof)?;
        bytes.copy_from_slice(found);
        Ok(())
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> io::Result<()> {
        let own = self.0.entry(place).or_default();
        own.clear();
        own.extend_from_slice(bytes);
        Ok(())
    }
}

/// The state of a stage's parameters in a storage.
struct Shelf {
    storage: Box<dyn Storage>,
    kept: HashMap<ParamId, Kept>,
    end: u64,
}

struct Kept {
    tensors: Vec<Slot>,
    scalars: Vec<(String, Scalar)>,
}

/// Where the bytes of a tensor are.
#[derive(Clone)]
struct Slot {
    name: String,
    dtype: DType,
    shape: Shape,
    place: u64,
    length: usize,
    sum: u32,
}

impl Shelf {
    fn write(&mut self, parameter: ParamId, state: StateSink) -> Result<(), OffloadError> {
        let before = self.kept.remove(&parameter);
        let mut before = before.into_iter().flat_map(|kept| kept.tensors);
        let mut tensors = Vec::with_capacity(state.tensors.len());
        for (name, data) in state.tensors {
            let bytes = data.as_bytes();
            let length = bytes.len();
            let place = before.next().filter(|slot| slot.length == length);
            let place = place.map_or(self.end, |slot| slot.place);
            self.end = self.end.max(place + length.max(1) as u64);
            let what = "written";
            let written = self.storage.write(place, bytes);
            written.map_err(|source| OffloadError::Storage { what, source })?;
            tensors.push(Slot {
                name,
                dtype: data.dtype(),
                shape: data.shape().clone(),
                place,
                length,
                sum: crc32fast::hash(bytes),
            });
        }
        let scalars = state.scalars;
        self.kept.insert(parameter, Kept { tensors, scalars });
        Ok(())
    }

    fn read(&mut self, slot: &Slot) -> Result<TensorData, OffloadError> {
        let mut bytes = vec![0; slot.length];
        let what = "read";
        let read = self.storage.read(slot.place, &mut bytes);
        read.map_err(|source| OffloadError::Storage { what, source })?;
        if crc32fast::hash(&bytes) != slot.sum {
            return Err(OffloadError::Changed);
        }
        let bytes = Bytes::from_bytes_vec(bytes);
        TensorData::try_from_bytes(bytes, slot.shape.clone(), slot.dtype)
            .map_err(|_| OffloadError::Changed)
    }

    fn read_all(&mut self, parameter: ParamId) -> Result<Option<StateSource>, OffloadError> {
        let Some(kept) = self.kept.get(&parameter) else {
            return Ok(None);
        };
        let slots = kept.tensors.clone();
        let mut source = StateSource::new(kept.scalars.iter().cloned().collect());
        for slot in slots {
            source.insert_tensor(slot.name.clone(), self.read(&slot)?);
        }
        Ok(Some(source))
    }
}

/// What moves states, while their stage updates others.
#[derive(Clone)]
struct Mover {
    shelf: Arc<Mutex<Shelf>>,
    optimizer: Arc<dyn DynOptimizer>,
    device: Device,
}

impl Mover {
    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To the device.
    fn fetch(&self, parameter: ParamId, rank: usize) -> Result<Option<DynState>, OffloadError> {
        let Some(mut source) = self.shelf().read_all(parameter)? else {
            return Ok(None);
        };
        let device = &self.device;
        let state = (self.optimizer).state_unflatten(rank, "", &mut source, device);
        self.flush()?;
        Ok(state)
    }

    /// From the device.
    fn put(&self, parameter: ParamId, state: &DynState) -> Result<(), OffloadError> {
        let mut sink = StateSink::default();
        self.optimizer.state_flatten("", state, &mut sink);
        self.shelf().write(parameter, sink)
    }

    /// Another thread uses what this one computed.
    fn flush(&self) -> Result<(), OffloadError> {
        let flushed = self.device.flush();
        flushed.map_err(|error| OffloadError::Device(error.to_string()))
    }
}

enum Request {
    Fetch(ParamId, usize),
    Put(ParamId, DynState),
    /// Asks whether all was put.
    End,
}

type Reply = Result<Option<DynState>, OffloadError>;

/// The state of a stage's parameters off its device.
pub(super) struct Offloaded {
    mover: Mover,
    requests: Option<Sender<Request>>,
    replies: Receiver<Reply>,
    thread: Option<JoinHandle<()>>,
    /// The parameters of an update, with their ranks, that were not asked for yet, and those that are on their way.
    coming: std::vec::IntoIter<(ParamId, usize)>,
    asked: VecDeque<ParamId>,
}

impl Offloaded {
    pub(super) fn new(
        storage: Box<dyn Storage>,
        optimizer: Arc<dyn DynOptimizer>,
        device: Device,
    ) -> io::Result<Self> {
        let shelf = Shelf {
            storage,
            kept: HashMap::new(),
            end: 0,
        };
        let mover = Mover {
            shelf: Arc::new(Mutex::new(shelf)),
            optimizer,
            device,
        };
        let (requests, to_do) = channel();
        let (done, replies) = channel();
        let own = mover.clone();
        let thread = std::thread::Builder::new().name("offload".to_owned());
        let thread = thread.spawn(move || serve(&own, &to_do, &done))?;
        Ok(Self {
            mover,
            requests: Some(requests),
            replies,
            thread: Some(thread),
            coming: Vec::new().into_iter(),
            asked: VecDeque::new(),
        })
    }

    /// Begins an update of these parameters, in this order.
    pub(super) fn begin(&mut self, parameters: Vec<(ParamId, usize)>) {
        self.coming = parameters.into_iter();
        self.ask_for_next();
    }

    /// The state of the next parameter, whose successor's is then on its way.
    pub(super) fn take(&mut self, parameter: ParamId) -> Reply {
        self.ask_for_next();
        match self.asked.pop_front() {
            Some(next) if next == parameter => self.reply(),
            _ => Err(OffloadError::Order),
        }
    }

    /// Takes a state off the device, while the stage goes on.
    pub(super) fn put(&self, parameter: ParamId, state: DynState) -> Result<(), OffloadError> {
        self.mover.flush()?;
        self.ask(Request::Put(parameter, state));
        Ok(())
    }

    /// Ends an update: all states are off the device.
    pub(super) fn end(&mut self) -> Result<(), OffloadError> {
        self.ask(Request::End);
        self.reply().map(drop)
    }

    /// Takes a state off the device, now.
    pub(super) fn restore(&self, parameter: ParamId, state: &DynState) -> Result<(), OffloadError> {
        self.mover.put(parameter, state)
    }

    pub(super) fn clear(&self) {
        self.mover.shelf().kept.clear();
    }

    /// The tensors of a parameter's state, under its name, each of which is read when it is written.
    pub(super) fn tensors(&self, parameter: ParamId, name: &str) -> Vec<burn_pack::Tensor> {
        let shelf = self.mover.shelf();
        let Some(kept) = shelf.kept.get(&parameter) else {
            return Vec::new();
        };
        let scalars = kept.scalars.iter();
        let scalars = scalars.map(|(leaf, scalar)| (format!("{name}.{leaf}"), *scalar));
        let scalars = tensor_file::of_state(StateSink {
            tensors: Vec::new(),
            scalars: scalars.collect(),
        });
        let tensors = kept.tensors.iter().cloned().map(|slot| {
            let (mover, own) = (self.mover.clone(), slot.clone());
            let read = move || {
                let read = mover.shelf().read(&own);
                read.map_err(|error| Error::IoError(error.to_string()))
            };
            let name = format!("{name}.{}", slot.name);
            bridge::deferred(name, slot.dtype, slot.shape, None, read)
        });
        tensors.chain(scalars).collect()
    }

    fn ask_for_next(&mut self) {
        if let Some((parameter, rank)) = self.coming.next() {
            self.asked.push_back(parameter);
            self.ask(Request::Fetch(parameter, rank));
        }
    }

    fn ask(&self, request: Request) {
        if let Some(requests) = &self.requests {
            let _ = requests.send(request); // if the thread has ended, no reply comes
        }
    }

    fn reply(&self) -> Reply {
        let ended = |_| OffloadError::Device("its thread has ended".to_owned());
        self.replies.recv().map_err(ended).flatten()
    }
}

impl Drop for Offloaded {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Does what is asked for, one request after the other. A failed put is told with the next reply.
fn serve(mover: &Mover, requests: &Receiver<Request>, replies: &Sender<Reply>) {
    let mut failed = None;
    for request in requests {
        let done = caught(|| match request {
            Request::Fetch(parameter, rank) => Some(mover.fetch(parameter, rank)),
            Request::Put(parameter, state) => {
                let put = mover.put(parameter, &state);
                failed = failed.take().or(put.err());
                None
            }
            Request::End => Some(Ok(None)),
        });
        let reply = match done {
            Ok(None) => continue,
            Ok(Some(reply)) => reply,
            Err(panicked) => Err(OffloadError::Device(panicked.message)),
        };
        let reply = failed.take().map_or(reply, Err);
        if replies.send(reply).is_err() {
            return;
        }
    }
}
