//! What carries packets from rank to rank. Only implementations need this.
//!
//! A transport has one thread per rank. The thread calls [`Port::deliver`] for each packet that
//! arrives, in the order in which its sender sent it. Packets to oneself arrive the same way.

pub use crate::port::Port;

/// A message of another rank, or of this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The rank that sent it.
    pub from: usize,
    /// What it is part of. Each channel has a sink of its own.
    pub channel: u32,
    /// What the sender gave as its meaning.
    pub tag: u64,
    /// Buffers of bytes, each as the sender gave it.
    pub parts: Vec<Vec<u8>>,
}

/// What travels between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    /// A message for the owner of the communicator.
    Message {
        /// Whose sink takes it.
        channel: u32,
        /// What the message means.
        tag: u64,
        /// Its buffers.
        parts: Vec<Vec<u8>>,
    },
    /// The sender's value in its next gather.
    Value(Vec<u8>),
    /// The sender sends nothing after this.
    Leave,
    /// The sender ends the job, and why.
    Abort(String),
}

impl Packet {
    /// The bytes in its buffers.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Message { parts, .. } => parts.iter().map(Vec::len).sum(),
            Self::Value(value) => value.len(),
            Self::Leave | Self::Abort(_) => 0,
        }
    }
}

/// Numbers that a transport adds up.
#[derive(Clone, Debug, PartialEq)]
pub enum Numbers {
    /// Of 32 bits.
    F32(Vec<f32>),
    /// Of 64 bits.
    F64(Vec<f64>),
}

/// A group of ranks, at one of them. [`make_group`](crate::Communicator::make_group) returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupId(pub(crate) u64);

/// Takes the sums of an all-reduce. The transport's thread calls it, so it may not wait.
pub type TakeSums = Box<dyn FnOnce(Numbers) + Send>;

/// Carries packets to other ranks. It is dropped with its communicator; it then carries what was queued
/// and ends its thread.
pub trait Transport: Send + Sync {
    /// Queues a packet; never waits. A packet to a rank that is gone is dropped.
    fn send(&self, to: usize, packet: Packet);

    /// Whether the transport itself can add up numbers of several ranks.
    fn can_all_reduce(&self) -> bool {
        false
    }

    /// Queues the making of a group of ranks that add up; never waits. Called only if the transport can.
    fn make_group(&self, _group: GroupId, _ranks: &[usize]) {}

    /// Queues an all-reduce of a group; never waits. Its ranks call this in one order, each with as many
    /// numbers of the same type.
    fn all_reduce(&self, _group: GroupId, _numbers: Numbers, _take: TakeSums) {}
}
