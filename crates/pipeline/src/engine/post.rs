//! Messages to and from other processes, of which each belongs to a run. Which of them arrive is the business of
//! [`Agreement`].

use std::{
    collections::HashMap,
    io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use burn::tensor::{DType, TensorData};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stovepipe_comm::{Agreement, CommError, Communicator, Peer, ProcessError};
use stovepipe_runtime::{CancelHandle, Worker};

use crate::{
    api::error::{BoxedError, FailureCause, TransferKind},
    engine::{message::Message, panic::caught, seats::Seat},
    model::{
        packed::{PackError, Packed},
        ties::Place,
    },
};

/// The engine's channel of the communicator.
const CHANNEL: u32 = 0;

/// Takes what arrives for a mailbox, by micro-batch.
type Take = Box<dyn Fn(usize, Result<Packed, FailureCause>) + Send>;

/// Where a message goes within a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct Address {
    kind: TransferKind,
    /// The sending and the receiving one.
    pub(crate) stages: [usize; 2],
    /// Of the receiving stage.
    replica: usize,
}

impl Address {
    pub(crate) fn of<M: Message>(from: &Seat, to: &Seat) -> Self {
        Self {
            kind: M::KIND,
            stages: [from.stage, to.stage],
            replica: to.replica,
        }
    }
}

pub(crate) struct Post {
    agreement: Arc<Agreement>,
    /// Packs what is sent, so that no stage waits until its device returns a tensor.
    packer: Worker,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    mailboxes: HashMap<Address, Take>,
    /// Of this run, for parameters that this process owns.
    gradients: Vec<SharedGradient>,
}

/// The value of a parameter that several processes share, for the next run.
pub(crate) struct SharedValue {
    /// The first place of the parameter.
    pub(crate) owner: Place,
    pub(crate) is_trained: bool,
    pub(crate) tensor: Packed,
}

/// The gradient of a layer for such a parameter.
pub(crate) struct SharedGradient {
    pub(crate) owner: Place,
    pub(crate) layer: usize,
    pub(crate) tensor: Packed,
}

/// The first part of a message in a run. The other parts are the bytes of its tensors.
#[derive(Serialize, Deserialize)]
enum Envelope {
    /// For a mailbox.
    Mail {
        address: Address,
        micro_batch: usize,
        content: Result<Content, String>,
    },
    Gradient {
        owner: Place,
        layer: usize,
        content: Content,
    },
}

/// The first part of a [`SharedValue`].
#[derive(Serialize, Deserialize)]
struct ValueEnvelope {
    owner: Place,
    is_trained: bool,
    content: Content,
}

/// What was packed, without the bytes of its tensors.
#[derive(Serialize, Deserialize)]
struct Content {
    numbers: Vec<u64>,
    tensors: Vec<(Vec<usize>, DType)>,
}

impl Post {
    /// Takes the messages of a communicator. Failures of other processes cancel runs.
    pub(crate) fn new(
        comm: Arc<Communicator>,
        cancel: CancelHandle<BoxedError>,
    ) -> io::Result<Self> {
        let state = Arc::<Mutex<State>>::default();
        let sink = state.clone();
        let take = move |from, parts| lock(&sink).take(from, parts);
        let cancel = move |run, error: ProcessError| cancel.cancel(run, error.into());
        Ok(Self {
            agreement: Agreement::new((comm, CHANNEL), take, cancel).into(),
            packer: Worker::spawn("packer")?,
            state,
        })
    }

    pub(crate) fn agreement(&self) -> &Agreement {
        &self.agreement
    }

    /// Has what arrives for a mailbox in the next run taken.
    pub(crate) fn expect(&self, address: Address, take: Take) {
        lock(&self.state).mailboxes.insert(address, take);
    }

    /// A run begins: its mailboxes are expected. Returns its number.
    pub(crate) fn begin(&self) -> u64 {
        lock(&self.state).gradients.clear();
        self.agreement.begin()
    }

    /// This process's workers have ended.
    pub(crate) fn close_mailboxes(&self) {
        lock(&self.state).mailboxes.clear();
    }

    /// Sends to a mailbox of another process; never waits.
    pub(crate) fn send<M: Message>(
        &self,
        process: usize,
        address: Address,
        micro_batch: usize,
        message: Result<M, FailureCause>,
    ) {
        let agreement = self.agreement.clone();
        let run = agreement.run();
        self.packer.run(move || {
            let packed = message.map_err(|cause| cause.to_string()).and_then(pack);
            let (content, tensors) = match packed {
                Ok((content, tensors)) => (Ok(content), tensors),
                Err(error) => (Err(error), Vec::new()),
            };
            let envelope = Envelope::Mail {
                address,
                micro_batch,
                content,
            };
            // If it fails, so does the run: the sink is told.
            let _ = agreement.send(run, process, parts(&envelope, tensors));
        });
    }

    /// Sends a value to other processes, before their next gather returns.
    pub(crate) fn send_value<'a>(
        &self,
        processes: impl IntoIterator<Item = &'a usize>,
        value: SharedValue,
    ) -> Result<(), CommError> {
        let SharedValue {
            owner,
            is_trained,
            tensor,
        } = value;
        let (content, bytes) = take_apart(tensor);
        let envelope = ValueEnvelope {
            owner,
            is_trained,
            content,
        };
        let parts = parts(&envelope, bytes);
        let mut processes = processes.into_iter();
        processes.try_for_each(|&process| self.agreement.send_ahead(process, parts.clone()))
    }

    /// The values for the next run that have arrived.
    pub(crate) fn take_values(&self) -> Result<Vec<SharedValue>, ProcessError> {
        let read = |parts: Vec<Vec<u8>>| {
            let (envelope, parts) = read::<ValueEnvelope>(parts)?;
            Ok(SharedValue {
                owner: envelope.owner,
                is_trained: envelope.is_trained,
                tensor: envelope.content.with(parts),
            })
        };
        let values = self.agreement.take_ahead().into_iter().map(read);
        let values: Result<_, rmp_serde::decode::Error> = values.collect();
        values.map_err(|error| ProcessError::Unreadable(error.into()))
    }

    /// Sends a gradient to another process, before its next gather returns.
    pub(crate) fn send_gradient(
        &self,
        process: usize,
        gradient: SharedGradient,
    ) -> Result<(), CommError> {
        let SharedGradient {
            owner,
            layer,
            tensor,
        } = gradient;
        let (content, bytes) = take_apart(tensor);
        let envelope = Envelope::Gradient {
            owner,
            layer,
            content,
        };
        let run = self.agreement.run();
        self.agreement.send(run, process, parts(&envelope, bytes))
    }

    /// The gradients of the last run that have arrived.
    pub(crate) fn take_gradients(&self) -> Vec<SharedGradient> {
        mem::take(&mut lock(&self.state).gradients)
    }
}

impl State {
    /// Takes a message of another process in a run.
    fn take(&mut self, from: Peer, parts: Vec<Vec<u8>>) -> Result<(), String> {
        let read = read(parts).map_err(|error| format!("its message cannot be read: {error}"));
        match read? {
            (
                Envelope::Mail {
                    address,
                    micro_batch,
                    content,
                },
                parts,
            ) => {
                let packed = content.map(|content| content.with(parts));
                let packed = packed.map_err(|reason| {
                    let Peer { rank, host } = from;
                    FailureCause::OtherProcess(ProcessError::Failed { rank, host, reason })
                });
                if let Some(take) = self.mailboxes.get(&address) {
                    take(micro_batch, packed);
                }
            }
            (
                Envelope::Gradient {
                    owner,
                    layer,
                    content,
                },
                parts,
            ) => self.gradients.push(SharedGradient {
                owner,
                layer,
                tensor: content.with(parts),
            }),
        }
        Ok(())
    }
}

impl Content {
    /// With the bytes of its tensors.
    fn with(self, parts: impl Iterator<Item = Vec<u8>>) -> Packed {
        let tensors = self.tensors.into_iter().zip(parts);
        Packed {
            numbers: self.numbers.into(),
            tensors: tensors
                .map(|((shape, dtype), bytes)| TensorData::from_bytes_vec(bytes, shape, dtype))
                .collect(),
        }
    }
}

/// What a message consists of, and the bytes of its tensors.
fn pack<M: Message>(message: M) -> Result<(Content, Vec<Vec<u8>>), String> {
    let pack = || -> Result<_, PackError> {
        let mut packed = Packed::default();
        message.pack(&mut packed)?;
        Ok(take_apart(packed))
    };
    let packed = caught(pack).map_err(|panic| BoxedError::from(panic).to_string())?;
    packed.map_err(|error| error.to_string())
}

fn take_apart(packed: Packed) -> (Content, Vec<Vec<u8>>) {
    let mut content = Content {
        numbers: packed.numbers.into(),
        tensors: Vec::new(),
    };
    let mut bytes = Vec::new();
    for tensor in packed.tensors {
        content
            .tensors
            .push((tensor.shape().to_vec(), tensor.dtype()));
        let own = tensor.into_bytes().try_into_vec::<u8>();
        bytes.push(own.unwrap_or_else(|shared| shared.to_vec()));
    }
    (content, bytes)
}

/// A message: an envelope and the bytes of its tensors.
fn parts(envelope: &impl Serialize, tensors: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    // Numbers and texts in memory can always be written.
    let mut parts = vec![rmp_serde::to_vec(envelope).unwrap_or_default()];
    parts.extend(tensors);
    parts
}

fn read<T: DeserializeOwned>(
    parts: Vec<Vec<u8>>,
) -> Result<(T, impl Iterator<Item = Vec<u8>>), rmp_serde::decode::Error> {
    let mut parts = parts.into_iter();
    let envelope = rmp_serde::from_slice(&parts.next().unwrap_or_default())?;
    Ok((envelope, parts))
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
