//! Packets as MPI messages: a head, then the buffers that do not fit into it, cut into pieces.
//!
//! The head is words of eight bytes: the kind of packet, the channel, the tag, the number of buffers and
//! the length of each. Small buffers follow in the head, so that small packets are one MPI message. MPI keeps the
//! order of messages from one sender, so a piece needs no name.

use std::{iter, mem, ops::RangeInclusive};

use stovepipe_comm::transport::Packet;

/// Up to this many bytes, buffers travel in the head: more would be sent in two steps by MPI anyway.
const IN_HEAD: usize = 4 << 10;
/// The largest MPI message. MPI counts in `i32`; and a peer that receives is seen to after each.
const PIECE: usize = 64 << 20;

const MESSAGE: u64 = 0;
const VALUE: u64 = 1;
const LEAVE: u64 = 2;
const ABORT: u64 = 3;
/// No packet: the sender is alive.
const ALIVE: u64 = 4;
/// No packet: the sender is about to make a group of ranks.
const READY: u64 = 5;

/// The MPI messages of a packet, in order. The buffers are moved, unless they are small.
pub(crate) fn encode(packet: Packet) -> Vec<Vec<u8>> {
    let (kind, channel, tag, mut parts) = match packet {
        Packet::Message {
            channel,
            tag,
            parts,
        } => (MESSAGE, channel, tag, parts),
        Packet::Value(value) => (VALUE, 0, 0, vec![value]),
        Packet::Leave => (LEAVE, 0, 0, Vec::new()),
        Packet::Abort(reason) => (ABORT, 0, 0, vec![reason.into_bytes()]),
    };
    let lengths = parts.iter().map(|part| part.len() as u64);
    let words = [kind, u64::from(channel), tag, parts.len() as u64];
    let words = words.into_iter().chain(lengths);
    let mut head: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    if is_in_head(&parts) {
        head.extend(parts.drain(..).flatten());
    }
    parts.insert(0, head);
    parts
}

/// The MPI message that says that its sender is alive.
pub(crate) fn sign() -> [u8; 8] {
    ALIVE.to_le_bytes()
}

/// The MPI message that says that its sender is about to make a group of these ranks.
pub(crate) fn ready(ranks: &[usize]) -> Vec<u8> {
    let words = ranks.iter().map(|rank| *rank as u64);
    let words = iter::once(READY).chain(words);
    words.flat_map(u64::to_le_bytes).collect()
}

/// The ranks of such a message; `None` if it is another one.
pub(crate) fn ready_ranks(head: &[u8]) -> Option<Vec<usize>> {
    let words = head.chunks_exact(8).map_while(|word| word.try_into().ok());
    let mut words = words.map(u64::from_le_bytes);
    let is_ready = words.next() == Some(READY);
    is_ready.then(|| words.map(|rank| rank as usize).collect())
}

/// A buffer as what one MPI message can carry.
pub(crate) fn pieces(buffer: &[u8]) -> impl Iterator<Item = &[u8]> {
    buffer.chunks(PIECE)
}

/// Buffers that were sent, for the next that arrive: then no memory has to be cleared.
#[derive(Default)]
pub(crate) struct Spare(Vec<Vec<u8>>);

impl Spare {
    /// Smaller ones cost little, and larger ones would hold too much.
    const LENGTHS: RangeInclusive<usize> = 64 << 10..=4 << 20;
    const COUNT: usize = 16;

    pub(crate) fn keep(&mut self, buffers: impl IntoIterator<Item = Vec<u8>>) {
        let fits = |buffer: &Vec<u8>| Self::LENGTHS.contains(&buffer.len());
        let left = Self::COUNT - self.0.len();
        self.0.extend(buffers.into_iter().filter(fits).take(left));
    }

    /// A buffer of this length. What is in it is to be overwritten.
    fn take(&mut self, length: usize) -> Vec<u8> {
        let is_enough = |spare: &Vec<u8>| length > IN_HEAD && spare.len() >= length;
        match self.0.iter().position(is_enough) {
            Some(index) => {
                let mut buffer = self.0.swap_remove(index);
                buffer.truncate(length);
                buffer
            }
            None => vec![0; length],
        }
    }
}

/// A packet of which pieces are to come.
pub(crate) struct Partial {
    kind: u64,
    channel: u32,
    tag: u64,
    parts: Vec<Vec<u8>>,
    /// Where the next piece begins: a part, and a place in it.
    next: (usize, usize),
}

impl Partial {
    /// Reads a head; `None` if it is none.
    pub(crate) fn decode(head: &[u8], spare: &mut Spare) -> Option<Self> {
        let mut words = head.chunks_exact(8).map_while(|word| word.try_into().ok());
        let mut word = || words.next().map(u64::from_le_bytes);
        let (kind, channel) = (word()?, u32::try_from(word()?).ok()?);
        let (tag, count) = (word()?, usize::try_from(word()?).ok()?);
        let length = || usize::try_from(word()?).ok();
        let lengths: Option<Vec<_>> = iter::repeat_with(length).take(count).collect();
        let lengths = lengths?.into_iter();
        let mut parts: Vec<_> = lengths.map(|length| spare.take(length)).collect();
        let mut next = (0, 0);
        if is_in_head(&parts) {
            let mut rest = head.get(8 * (4 + count)..)?;
            for part in &mut parts {
                let (own, others) = rest.split_at_checked(part.len())?;
                part.copy_from_slice(own);
                rest = others;
            }
            next = (count, 0);
        }
        let partial = Self {
            kind,
            channel,
            tag,
            parts,
            next,
        };
        (kind <= ABORT).then_some(partial)
    }

    /// Where the next piece belongs; `None` if the packet is complete.
    pub(crate) fn next_piece(&mut self) -> Option<&mut [u8]> {
        while self.parts.get(self.next.0)?.len() == self.next.1 {
            self.next = (self.next.0 + 1, 0);
        }
        let part = &mut self.parts[self.next.0];
        let end = part.len().min(self.next.1 + PIECE);
        let start = mem::replace(&mut self.next.1, end);
        Some(&mut part[start..end])
    }

    /// Whether no piece is to come.
    pub(crate) fn is_complete(&self) -> bool {
        let (part, place) = self.next;
        let rest = self.parts.get(part..).unwrap_or_default();
        rest.iter().map(Vec::len).sum::<usize>() == place
    }

    pub(crate) fn into_packet(self) -> Packet {
        let (channel, tag, mut parts) = (self.channel, self.tag, self.parts);
        let mut only = || parts.pop().unwrap_or_default();
        match self.kind {
            VALUE => Packet::Value(only()),
            LEAVE => Packet::Leave,
            ABORT => Packet::Abort(String::from_utf8_lossy(&only()).into_owned()),
            _ => Packet::Message {
                channel,
                tag,
                parts,
            },
        }
    }
}

fn is_in_head(parts: &[Vec<u8>]) -> bool {
    parts.iter().map(Vec::len).sum::<usize>() <= IN_HEAD
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{ABORT, IN_HEAD, Packet, Partial, Spare, encode, ready, ready_ranks, sign};

    #[test]
    fn packets_arrive_as_they_were() {
        let message = |lengths: &[usize]| Packet::Message {
            channel: u32::MAX,
            tag: u64::MAX,
            parts: lengths.iter().map(|length| vec![7; *length]).collect(),
        };
        let cases = [
            (message(&[]), 1),
            (message(&[0, 0]), 1),
            (message(&[IN_HEAD - 1, 0, 1]), 1),
            (message(&[0, IN_HEAD, 0, 1, 0]), 3),
            (Packet::Value(Vec::new()), 1),
            (Packet::Value(vec![1; 2 * IN_HEAD]), 2),
            (Packet::Leave, 1),
            (Packet::Abort("why".to_owned()), 1),
        ];
        for (packet, messages) in cases {
            let buffers = encode(packet.clone());
            let mut sent = buffers.iter().filter(|buffer| !buffer.is_empty());
            assert_eq!(sent.clone().count(), messages, "{packet:?}");
            let mut partial = Partial::decode(sent.next().unwrap(), &mut Spare::default()).unwrap();
            for buffer in sent {
                assert!(!partial.is_complete());
                partial.next_piece().unwrap().copy_from_slice(buffer);
            }
            assert!(partial.is_complete() && partial.next_piece().is_none());
            assert_eq!(partial.into_packet(), packet);
        }
    }

    #[test]
    fn groups_are_read() {
        for ranks in [&[][..], &[7], &[2, 0, 1]] {
            assert_eq!(ready_ranks(&ready(ranks)).as_deref(), Some(ranks));
        }
        for other in [vec![], sign().to_vec(), encode(Packet::Leave).remove(0)] {
            assert_eq!(ready_ranks(&other), None);
        }
    }

    #[test]
    fn buffers_are_used_again() {
        let mut spare = Spare::default();
        let lengths = [100, 100_000, 5 << 20, 300_000];
        spare.keep(lengths.map(|length| vec![1; length]));
        assert_eq!(spare.take(200_000), [1; 200_000]);
        assert_eq!(spare.take(200_000), [0; 200_000]);
        assert_eq!(spare.take(100), [0; 100]);
        assert_eq!(spare.take(100_000), [1; 100_000]);
        spare.keep((0..100).map(|_| vec![1; 100_000]));
        assert_eq!(spare.0.len(), Spare::COUNT);
    }

    #[test]
    fn what_is_no_head_is_not_read() {
        let [head] = &encode(Packet::Abort("why".to_owned()))[..] else {
            panic!("it fits into the head");
        };
        for length in 0..head.len() {
            assert!(Partial::decode(&head[..length], &mut Spare::default()).is_none());
        }
        let mut unknown = head.clone();
        unknown[0] = ABORT as u8 + 1;
        assert!(Partial::decode(&unknown, &mut Spare::default()).is_none());
    }
}
