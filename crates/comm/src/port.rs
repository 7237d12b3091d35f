//! What has arrived at a rank, and whether the job still runs.
//!
//! Two locks. `state` is for calls that wait: values of gathers, ranks that left, the first failure; each
//! change notifies them. `inboxes` holds the sink of each channel, and is locked while a sink runs. Only
//! the transport's thread and `set_sink` lock it, so a sink may call anything else.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use crate::{
    error::{CommError, Peer},
    sync::{Arc, Condvar, Deadline, Mutex, lock, wait},
    transport::{Message, Packet},
};

pub(crate) type Sink = Box<dyn Fn(Result<Message, CommError>) + Send + Sync>;

/// Where a transport delivers to. Clones are the same port.
#[derive(Clone)]
pub struct Port(Arc<Shared>);

struct Shared {
    rank: usize,
    hosts: Vec<String>,
    limit: Option<Duration>,
    state: Mutex<State>,
    changed: Condvar,
    inboxes: Mutex<Inboxes>,
}

struct State {
    /// By rank: the values of gathers that this rank has not called yet.
    values: Vec<VecDeque<Vec<u8>>>,
    left: Vec<bool>,
    failure: Option<CommError>,
}

#[derive(Default)]
struct Inboxes {
    of_channel: HashMap<u32, Inbox>,
    /// What all channels were told, for those that are not there yet.
    errors: Vec<CommError>,
    /// The failure was told: nothing follows.
    ended: bool,
}

/// Where the messages of a channel go.
enum Inbox {
    Sink(Sink),
    /// There is no sink yet.
    Kept(Vec<Result<Message, CommError>>),
}

impl Port {
    /// A port for `rank`. There are as many ranks as hosts. `limit` is how long a call waits for
    /// others.
    #[must_use]
    pub fn new(rank: usize, hosts: Vec<String>, limit: Option<Duration>) -> Self {
        let state = State {
            values: vec![VecDeque::new(); hosts.len()],
            left: vec![false; hosts.len()],
            failure: None,
        };
        Self(Arc::new(Shared {
            rank,
            hosts,
            limit,
            state: Mutex::new(state),
            changed: Condvar::new(),
            inboxes: Mutex::default(),
        }))
    }

    /// The rank of this port.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.hosts.len()
    }

    /// All ranks but this one.
    pub fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let rank = self.rank();
        (0..self.size()).filter(move |other| *other != rank)
    }

    /// A rank of the job, with its host.
    #[must_use]
    pub fn peer(&self, rank: usize) -> Peer {
        let host = self.0.hosts[rank].clone();
        Peer { rank, host }
    }

    /// How long a call waits for others.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.0.limit
    }

    /// Takes a packet that arrived. Only the transport's thread may call this.
    pub fn deliver(&self, from: usize, packet: Packet) {
        let peer = || self.peer(from);
        match packet {
            Packet::Message {
                channel,
                tag,
                parts,
            } => self.take(Message {
                from,
                channel,
                tag,
                parts,
            }),
            Packet::Value(value) => self.change(|state| state.values[from].push_back(value)),
            Packet::Leave => {
                self.change(|state| state.left[from] = true);
                self.tell(&CommError::Gone(peer()), false);
            }
            Packet::Abort(reason) => {
                let aborted = CommError::Aborted {
                    peer: peer(),
                    reason,
                };
                // The sinks are told of the first failure, too.
                let failure = self.fail(aborted).unwrap_or_else(|first| first);
                self.tell(&failure, true);
            }
        }
    }

    /// Notes that the job has failed; no sink is told yet.
    ///
    /// # Errors
    ///
    /// The failure that came first, if there is one.
    pub fn fail(&self, error: CommError) -> Result<CommError, CommError> {
        self.change(|state| match &state.failure {
            Some(first) => Err(first.clone()),
            None => Ok(state.failure.insert(error).clone()),
        })
    }

    /// Why the job has failed, if it has.
    #[must_use]
    pub fn failure(&self) -> Option<CommError> {
        lock(&self.0.state).failure.clone()
    }

    /// The ranks that have not left, without this one.
    #[must_use]
    pub fn present(&self) -> Vec<Peer> {
        let state = lock(&self.0.state);
        let present = self.others().filter(|other| !state.left[*other]);
        present.map(|other| self.peer(other)).collect()
    }

    pub(crate) fn set_sink(&self, channel: u32, sink: Sink) {
        let mut inboxes = lock(&self.0.inboxes);
        if let Inbox::Kept(kept) = inboxes.of(channel) {
            kept.drain(..).for_each(&sink);
        }
        *inboxes.of(channel) = Inbox::Sink(sink);
    }

    /// An error, if nothing can be sent to a rank.
    pub(crate) fn check(&self, rank: usize) -> Result<(), CommError> {
        let state = lock(&self.0.state);
        match (&state.failure, state.left.get(rank)) {
            (Some(failure), _) => Err(failure.clone()),
            (None, Some(false)) => Ok(()),
            (None, Some(true)) => Err(CommError::Gone(self.peer(rank))),
            (None, None) => Err(CommError::NoSuchRank {
                rank,
                size: self.size(),
            }),
        }
    }

    /// Waits for the next value of each other rank.
    pub(crate) fn collect(
        &self,
        own: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, CommError> {
        let deadline = limit.and_then(Deadline::after);
        let mut state = lock(&self.0.state);
        loop {
            if let Some(failure) = &state.failure {
                return Err(failure.clone());
            }
            let is_missing = |rank: &usize| state.values[*rank].is_empty();
            let missing: Vec<_> = self.others().filter(is_missing).collect();
            if missing.is_empty() {
                break;
            }
            if let Some(gone) = missing.iter().find(|rank| state.left[**rank]) {
                return Err(CommError::Gone(self.peer(*gone)));
            }
            if let Some(limit) = limit.filter(|_| deadline.is_some_and(Deadline::has_passed)) {
                let peers = missing.iter().map(|rank| self.peer(*rank)).collect();
                return Err(CommError::Missing { peers, limit });
            }
            state = wait((&self.0.state, &self.0.changed), state, deadline);
        }
        state.values[self.rank()].push_back(own);
        let values = state.values.iter_mut().filter_map(VecDeque::pop_front);
        Ok(values.collect())
    }

    fn change<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let changed = change(&mut lock(&self.0.state));
        self.0.changed.notify_all();
        changed
    }

    fn take(&self, message: Message) {
        let mut inboxes = lock(&self.0.inboxes);
        if !inboxes.ended {
            inboxes.of(message.channel).take(Ok(message));
        }
    }

    /// Tells all channels.
    fn tell(&self, error: &CommError, is_last: bool) {
        let mut inboxes = lock(&self.0.inboxes);
        if inboxes.ended {
            return;
        }
        inboxes.ended = is_last;
        inboxes.errors.push(error.clone());
        for inbox in inboxes.of_channel.values_mut() {
            inbox.take(Err(error.clone()));
        }
    }
}

impl Inboxes {
    fn of(&mut self, channel: u32) -> &mut Inbox {
        let errors = &self.errors;
        let new = || Inbox::Kept(errors.iter().cloned().map(Err).collect());
        self.of_channel.entry(channel).or_insert_with(new)
    }
}

impl Inbox {
    fn take(&mut self, event: Result<Message, CommError>) {
        match self {
            Self::Sink(sink) => sink(event),
            Self::Kept(kept) => kept.push(event),
        }
    }
}
