//! Messages from the rank before this one in the ring.
//!
//! A rank that gets nothing for the limit tells the others that it waits, and who waits too says so.
//! So the first one in the ring's other direction that says nothing is the one that all wait for.

use std::{collections::HashSet, sync::Arc, time::Duration};

use stovepipe_comm::{CommError, Communicator, Message, Peer};

use crate::sync::{self, Receiver, receive};

/// The tag of a message that says that its sender waits.
const WAITS: u64 = u64::MAX;
/// How long others have to say that they wait, too.
const NOTICE: Duration = Duration::from_secs(2);

/// A rank's neighbours in a ring, and what arrives from them.
pub(crate) struct Inbox {
    pub(crate) comm: Arc<Communicator>,
    channel: u32,
    /// In the ring's order.
    pub(crate) ranks: Vec<usize>,
    /// This rank's place among them.
    pub(crate) place: usize,
    events: Receiver<Result<Message, CommError>>,
    /// Ranks that have left the job.
    gone: HashSet<usize>,
}

impl Inbox {
    pub(crate) fn new(
        comm: Arc<Communicator>,
        channel: u32,
        ranks: Vec<usize>,
        place: usize,
    ) -> Self {
        let (sender, events) = sync::channel();
        comm.set_sink(channel, move |event| drop(sender.send(event)));
        Self {
            comm,
            channel,
            ranks,
            place,
            events,
            gone: HashSet::new(),
        }
    }

    pub(crate) fn peer(&self, rank: usize) -> Peer {
        let host = self.comm.host(rank).unwrap_or_default();
        Peer { rank, host }
    }

    /// The rank whose messages arrive.
    pub(crate) fn sender(&self) -> Peer {
        let size = self.ranks.len();
        self.peer(self.ranks[(self.place + size - 1) % size])
    }

    /// Sends to the next rank.
    pub(crate) fn send(&self, tag: u64, bytes: Vec<u8>) -> Result<(), CommError> {
        let next = self.ranks[(self.place + 1) % self.ranks.len()];
        self.comm.send(next, self.channel, tag, vec![bytes])
    }

    /// The next message of the rank before this one.
    pub(crate) fn next(&mut self) -> Result<(u64, Vec<u8>), CommError> {
        let (sender, mut patience) = (self.sender(), self.comm.limit());
        let mut waiting = HashSet::new();
        let mut is_late = false;
        loop {
            match receive(&self.events, patience) {
                Some(Ok(message)) if message.tag == WAITS => {
                    waiting.insert(message.from);
                }
                Some(Ok(mut message)) if message.from == sender.rank => {
                    return Ok((message.tag, message.parts.pop().unwrap_or_default()));
                }
                Some(Ok(message)) => return Err(CommError::Unreadable(self.peer(message.from))),
                // If more of it is needed, the rank after it says so.
                Some(Err(CommError::Gone(peer))) if peer != sender => {
                    self.gone.insert(peer.rank);
                    continue;
                }
                Some(Err(error)) => return Err(error),
                None if is_late => return Err(self.missing(&waiting)),
                None => {}
            }
            if !is_late {
                is_late = true;
                patience = patience.map(|limit| limit.min(NOTICE));
                self.say_that_it_waits()?;
            }
        }
    }

    fn say_that_it_waits(&self) -> Result<(), CommError> {
        let is_asked = |rank: &&usize| **rank != self.comm.rank() && !self.gone.contains(rank);
        let mut others = self.ranks.iter().filter(is_asked);
        others.try_for_each(|rank| self.comm.send(*rank, self.channel, WAITS, Vec::new()))
    }

    /// The rank that all wait for: the first one back along the ring that does not wait.
    fn missing(&self, waiting: &HashSet<usize>) -> CommError {
        let size = self.ranks.len();
        let mut back = (1..size).map(|steps| self.ranks[(self.place + size - steps) % size]);
        let culprit = back.find(|rank| !waiting.contains(rank));
        CommError::Missing {
            peers: vec![culprit.map_or_else(|| self.sender(), |rank| self.peer(rank))],
            limit: self.comm.limit().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use stovepipe_comm::local;

    use super::Inbox;

    #[test]
    fn the_rank_that_all_wait_for_is_named() {
        // In the ring 1, 3, 0, 2, seen from 0.
        let cases = [
            (&[][..], 3),
            (&[1, 2], 3),
            (&[3], 1),
            (&[3, 2], 1),
            (&[1, 3], 2),
            (&[1, 2, 3], 3),
        ];
        let check = move || {
            let comm = local(4, Some(Duration::from_secs(1))).unwrap().remove(0);
            let inbox = Inbox::new(Arc::new(comm), 1, vec![1, 3, 0, 2], 2);
            for (waiting, named) in cases {
                let error = inbox.missing(&waiting.iter().copied().collect());
                let expected = format!("rank {named} on localhost did not answer within 1s");
                assert_eq!(error.to_string(), expected, "{waiting:?}");
            }
        };
        shuttle::check_random(check, 1);
    }
}
