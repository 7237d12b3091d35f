//! What arrives for runs, and which runs another rank's failure ends.
//!
//! One lock guards all. It is held while a message is taken and while a run is cancelled, so the messages of a
//! rank keep their order when a run begins. A rank is told only once that another one has left. So that is
//! remembered: it ends the current run and each later one, since they need all ranks.

use std::mem;

use crate::{
    communicator::Communicator,
    error::{CommError, Peer},
    process_error::ProcessError,
    sync::{Mutex, lock},
    transport::Message,
};

type Take = Box<dyn Fn(Peer, Vec<Vec<u8>>) -> Result<(), String> + Send + Sync>;
type Cancel = Box<dyn Fn(u64, ProcessError) + Send + Sync>;

pub(super) struct Runs {
    peers: Vec<Peer>,
    take: Take,
    cancel: Cancel,
    state: Mutex<State>,
}

struct State {
    /// The run that has begun and has not ended.
    current: Option<u64>,
    /// After the last run that began.
    next: u64,
    /// All ranks learn from another one that the current run has failed.
    is_failed_elsewhere: bool,
    /// Messages for later runs.
    early: Vec<Message>,
    /// Messages that were sent before their run.
    ahead: Vec<Message>,
    /// Why no run can succeed any more.
    lost: Option<CommError>,
}

/// What a message is. Its tag has the run, too.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Message,
    Ahead,
    /// The sender's part has failed; the reason is its only part.
    Failed,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Message, Self::Ahead, Self::Failed];

    pub(super) fn tag(self, run: u64) -> u64 {
        run * Self::ALL.len() as u64 + self as u64
    }

    fn of(tag: u64) -> (u64, Self) {
        let kinds = Self::ALL.len() as u64;
        (tag / kinds, Self::ALL[(tag % kinds) as usize])
    }
}

impl Runs {
    pub(super) fn new(comm: &Communicator, take: Take, cancel: Cancel) -> Self {
        let peer = |rank| Peer {
            rank,
            host: comm.host(rank).unwrap_or_default(),
        };
        let state = State {
            current: None,
            next: 0,
            is_failed_elsewhere: false,
            early: Vec::new(),
            ahead: Vec::new(),
            lost: None,
        };
        Self {
            peers: (0..comm.size()).map(peer).collect(),
            take,
            cancel,
            state: Mutex::new(state),
        }
    }

    pub(super) fn begin(&self, run: u64) {
        let mut state = lock(&self.state);
        state.current = Some(run);
        state.next = run + 1;
        state.is_failed_elsewhere = false;
        if let Some(lost) = state.lost.clone() {
            self.fail(&mut state, lost.into());
        }
        for message in mem::take(&mut state.early) {
            self.sort(&mut state, message);
        }
    }

    pub(super) fn end(&self) {
        lock(&self.state).current = None;
    }

    pub(super) fn last(&self) -> u64 {
        lock(&self.state).next.saturating_sub(1)
    }

    pub(super) fn is_failed_elsewhere(&self) -> bool {
        lock(&self.state).is_failed_elsewhere
    }

    pub(super) fn take_ahead(&self) -> Vec<Vec<Vec<u8>>> {
        let ahead = mem::take(&mut lock(&self.state).ahead);
        ahead.into_iter().map(|message| message.parts).collect()
    }

    /// Takes what arrives at the rank.
    pub(super) fn take(&self, arrived: Result<Message, CommError>) {
        let mut state = lock(&self.state);
        match arrived {
            Ok(message) => self.sort(&mut state, message),
            Err(error) => {
                self.fail(&mut state, error.clone().into());
                state.lost.get_or_insert(error);
            }
        }
    }

    fn sort(&self, state: &mut State, message: Message) {
        let (run, kind) = Kind::of(message.tag);
        match kind {
            Kind::Ahead => state.ahead.push(message),
            _ if run >= state.next => state.early.push(message),
            _ if state.current != Some(run) => {} // that run has ended
            Kind::Message => {
                let peer = self.peers[message.from].clone();
                if let Err(reason) = (self.take)(peer.clone(), message.parts) {
                    // The other ranks do not know of this.
                    (self.cancel)(run, failed(peer, reason));
                }
            }
            Kind::Failed => {
                let reason = message.parts.concat();
                let reason = String::from_utf8_lossy(&reason).into_owned();
                self.fail(state, failed(self.peers[message.from].clone(), reason));
            }
        }
    }

    /// Cancels the current run, if there is one.
    fn fail(&self, state: &mut State, error: ProcessError) {
        if let Some(run) = state.current {
            state.is_failed_elsewhere = true;
            (self.cancel)(run, error);
        }
    }
}

fn failed(Peer { rank, host }: Peer, reason: String) -> ProcessError {
    ProcessError::Failed { rank, host, reason }
}
