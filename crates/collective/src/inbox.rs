//! Messages from the rank before this one in the ring.
//!
//! A rank that gets nothing for the limit tells the others that it waits, and who waits too says so.
//! So the first one in the ring's other direction that says nothing is the one that all wait for.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use stovepipe_comm::{CommError, Communicator, Message, Numbers, Peer};

use crate::{
    error::CollectiveError,
    sync::{self, Receiver, Sender, receive},
    tag::call_of,
};

/// The tag of a message that says that its sender waits. Its part is the sender's place.
const WAITS: u64 = u64::MAX;
/// How long others have to say that they wait, too.
const NOTICE: Duration = Duration::from_secs(2);

/// What ends a wait.
pub(crate) enum Event {
    Arrived(Result<Message, CommError>),
    /// A run is to end.
    Cancelled(u64),
    /// MPI has added up.
    Reduced(Numbers),
}

/// A rank's neighbours in a ring, and what arrives from them.
pub(crate) struct Inbox {
    pub(crate) comm: Arc<Communicator>,
    channel: u32,
    /// In the ring's order.
    pub(crate) ranks: Vec<usize>,
    /// This rank's place among them.
    pub(crate) place: usize,
    /// Cancelling this run ends a wait.
    pub(crate) run: Option<u64>,
    events: Receiver<Event>,
    /// What came for later calls. A rank may be a call ahead of others than the one after it.
    kept: VecDeque<Result<Message, CommError>>,
    /// Ranks that have left the job.
    gone: HashSet<usize>,
}

impl Inbox {
    pub(crate) fn new(
        comm: Arc<Communicator>,
        channel: u32,
        ranks: Vec<usize>,
        place: usize,
    ) -> (Self, Sender<Event>) {
        let (sender, events) = sync::channel();
        let inbox = Self {
            comm: comm.clone(),
            channel,
            ranks,
            place,
            run: None,
            events,
            kept: VecDeque::new(),
            gone: HashSet::new(),
        };
        let sink = sender.clone();
        let arrived = move |arrived| drop(sink.send(Event::Arrived(arrived)));
        comm.set_sink(inbox.channel_of(place), arrived);
        (inbox, sender)
    }

    /// The channel of a place: a rank with several places has one for each.
    fn channel_of(&self, place: usize) -> u32 {
        let mut places = self.ranks.iter().enumerate();
        let has_several = places.any(|(at, rank)| self.ranks[..at].contains(rank));
        self.channel + if has_several { place as u32 } else { 0 }
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
        self.send_to((self.place + 1) % self.ranks.len(), tag, bytes)
    }

    pub(crate) fn send_to(&self, place: usize, tag: u64, bytes: Vec<u8>) -> Result<(), CommError> {
        let channel = self.channel_of(place);
        self.comm.send(self.ranks[place], channel, tag, vec![bytes])
    }

    /// The next message of the call with this first tag, and its sender. Smaller tags are of calls that were
    /// cancelled. Fails if a rank has left that it waits for.
    pub(crate) fn next(
        &mut self,
        first: u64,
        waits_for: impl Fn(usize) -> bool,
    ) -> Result<(Peer, u64, Vec<u8>), CollectiveError> {
        // A run ends when it is cancelled: others may have much to do before they take part.
        let mut patience = self.comm.limit().filter(|_| self.run.is_none());
        let mut waiting = HashSet::new();
        let mut is_late = false;
        let is_ahead = |message: &Message| {
            let is_later = call_of(message.tag) > call_of(first) && message.tag != WAITS;
            is_later && !waits_for(message.from)
        };
        loop {
            let mut kept = self.kept.iter();
            let place = kept.position(|kept| !kept.as_ref().is_ok_and(is_ahead));
            let kept = place.and_then(|place| self.kept.remove(place));
            let kept = kept.map(Event::Arrived);
            let arrived = match kept.or_else(|| receive(&self.events, patience)) {
                Some(Event::Cancelled(run)) if Some(run) == self.run => {
                    return Err(CollectiveError::Cancelled);
                }
                Some(Event::Cancelled(_) | Event::Reduced(_)) => continue,
                Some(Event::Arrived(arrived)) => Some(arrived),
                None => None,
            };
            match arrived {
                Some(Ok(mut message)) if message.tag == WAITS => {
                    let place = message.parts.pop().and_then(|part| part.try_into().ok());
                    waiting.extend(place.map(|place| u64::from_le_bytes(place) as usize));
                }
                Some(Ok(message)) if message.tag < first => continue,
                Some(Ok(message)) if is_ahead(&message) => {
                    self.kept.push_back(Ok(message));
                    continue;
                }
                Some(Ok(mut message)) => {
                    let bytes = message.parts.pop().unwrap_or_default();
                    return Ok((self.peer(message.from), message.tag, bytes));
                }
                // If more of it is needed, the rank after it says so.
                Some(Err(CommError::Gone(peer))) if !waits_for(peer.rank) => {
                    self.gone.insert(peer.rank);
                    continue;
                }
                Some(Err(error)) => return Err(error.into()),
                None if is_late => return Err(self.missing(&waiting).into()),
                None => {}
            }
            if !is_late {
                is_late = true;
                patience = patience.map(|limit| limit.min(NOTICE));
                self.say_that_it_waits()?;
            }
        }
    }

    /// Waits for what MPI has added up, which all ranks have agreed to. One that has left has its sums.
    pub(crate) fn reduced(&mut self) -> Result<Numbers, CollectiveError> {
        loop {
            match receive(&self.events, None) {
                Some(Event::Reduced(sums)) => return Ok(sums),
                Some(Event::Cancelled(run)) if Some(run) != self.run => {}
                Some(Event::Cancelled(_)) | None => return Err(CollectiveError::CancelledInMpi),
                Some(Event::Arrived(Ok(message))) if message.tag == WAITS => {}
                Some(Event::Arrived(arrived @ (Ok(_) | Err(CommError::Gone(_))))) => {
                    self.kept.push_back(arrived);
                }
                Some(Event::Arrived(Err(error))) => return Err(error.into()),
            }
        }
    }

    fn say_that_it_waits(&self) -> Result<(), CommError> {
        let own = (self.place as u64).to_le_bytes();
        let is_asked =
            |place: &usize| *place != self.place && !self.gone.contains(&self.ranks[*place]);
        let mut others = (0..self.ranks.len()).filter(is_asked);
        others.try_for_each(|place| self.send_to(place, WAITS, own.to_vec()))
    }

    /// The rank that all wait for: the first one back along the ring that does not wait. `waiting` are places.
    fn missing(&self, waiting: &HashSet<usize>) -> CommError {
        let size = self.ranks.len();
        let mut back = (1..size).map(|steps| (self.place + size - steps) % size);
        let culprit = back.find(|place| !waiting.contains(place));
        CommError::Missing {
            peers: vec![
                culprit.map_or_else(|| self.sender(), |place| self.peer(self.ranks[place])),
            ],
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
        // In the ring 1, 3, 0, 2, seen from 0: places, and the rank that is named.
        let cases = [
            (&[][..], 3),
            (&[0, 3], 3),
            (&[1], 1),
            (&[1, 3], 1),
            (&[0, 1], 2),
            (&[0, 3, 1], 3),
        ];
        let check = move || {
            let comm = local(4, Some(Duration::from_secs(1))).unwrap().remove(0);
            let (inbox, _) = Inbox::new(Arc::new(comm), 1, vec![1, 3, 0, 2], 2);
            for (waiting, named) in cases {
                let error = inbox.missing(&waiting.iter().copied().collect());
                let expected = format!("rank {named} on localhost did not answer within 1s");
                assert_eq!(error.to_string(), expected, "{waiting:?}");
            }
        };
        shuttle::check_random(check, 1);
    }
}
