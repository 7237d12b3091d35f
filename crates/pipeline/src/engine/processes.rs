//! The processes that run a pipeline together.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use serde::{Serialize, de::DeserializeOwned};
use stovepipe_comm::{Communicator, ProcessError, RunFailure, Terms, Wait, gather};
use stovepipe_runtime::CancelHandle;

use crate::{
    api::error::{BoxedError, BuildError, FailureCause, StepError},
    engine::{
        message::{Arrived, Message, Queue},
        post::{Address, Post},
        report::Reports,
        seats::Seat,
    },
};

pub(crate) struct Processes {
    /// The process of each worker.
    of_workers: Vec<usize>,
    /// `None` for a single process.
    post: Option<Arc<Post>>,
    /// The runs that a single process has begun.
    runs: AtomicU64,
}

impl Processes {
    pub(crate) fn new(
        of_workers: Vec<usize>,
        comm: Option<Arc<Communicator>>,
        cancel: &CancelHandle<BoxedError>,
    ) -> Result<Self, BuildError> {
        let size = comm.as_ref().map_or(1, |comm| comm.size());
        if let Some(worker) = of_workers.iter().position(|&process| process >= size) {
            let process = of_workers[worker];
            return Err(BuildError::NoProcess {
                worker,
                process,
                size,
            });
        }
        let mut idle = (0..size).filter(|process| !of_workers.contains(process));
        if let Some(process) = idle.next().filter(|_| !of_workers.is_empty()) {
            return Err(BuildError::IdleProcess { process });
        }
        let post = comm.map(|comm| Post::new(comm, cancel.clone())).transpose();
        Ok(Self {
            of_workers,
            post: post.map_err(BuildError::TransferThread)?.map(Arc::new),
            runs: AtomicU64::new(0),
        })
    }

    pub(crate) fn are_several(&self) -> bool {
        self.post.is_some()
    }

    pub(crate) fn is_own(&self, worker: usize) -> bool {
        self.of_workers[worker] == self.rank()
    }

    /// This process.
    pub(crate) fn rank(&self) -> usize {
        self.post
            .as_ref()
            .map_or(0, |post| post.agreement().comm().rank())
    }

    /// The messages of several processes.
    pub(crate) fn post(&self) -> Option<&Arc<Post>> {
        self.post.as_ref()
    }

    pub(crate) fn comm(&self) -> Option<&Arc<Communicator>> {
        self.post.as_ref().map(|post| post.agreement().comm())
    }

    /// The process of a worker.
    pub(crate) fn of(&self, worker: usize) -> usize {
        self.of_workers[worker]
    }

    /// This process's workers.
    pub(crate) fn own_workers(&self) -> impl Iterator<Item = usize> {
        (0..self.of_workers.len()).filter(|&worker| self.is_own(worker))
    }

    /// The first of a stage's seats that this process has.
    pub(crate) fn home(&self, seats: &[Seat]) -> Option<Seat> {
        let mut own = seats.iter().filter(|seat| self.is_own(seat.worker));
        own.next().copied()
    }

    /// The processes of a stage's seats, each once, in the order of seats.
    pub(crate) fn of_seats(&self, seats: &[Seat]) -> Vec<usize> {
        let mut all = Vec::new();
        for process in seats.iter().map(|seat| self.of(seat.worker)) {
            if !all.contains(&process) {
                all.push(process);
            }
        }
        all
    }

    /// How to reach a seat of another process.
    pub(crate) fn post_to(&self, seat: &Seat) -> Option<(Arc<Post>, usize)> {
        let post = self.post.as_ref().filter(|_| !self.is_own(seat.worker))?;
        Some((post.clone(), self.of_workers[seat.worker]))
    }

    /// Has what another process's seat sends to one of this process put into a mailbox.
    pub(crate) fn expect<M: Message>(&self, [from, to]: [&Seat; 2], queue: &Queue<M>) {
        let Some(post) = &self.post else { return };
        if self.is_own(to.worker) && !self.is_own(from.worker) {
            let queue = queue.clone();
            let take = move |micro_batch, packed: Result<_, FailureCause>| {
                let _ = queue.send((micro_batch, packed.map(Arrived::Packed)));
            };
            post.expect(Address::of::<M>(from, to), Box::new(take));
        }
    }

    /// Waits for all processes before a step, and checks that they agree. If one has failed so far, all
    /// fail: this one with its own error, if it has one.
    pub(crate) fn meet<T, E: From<ProcessError> + ToString>(
        &self,
        own: Result<T, E>,
        terms: impl FnOnce(&T) -> Terms,
    ) -> Result<T, E> {
        let (own, _) = self.meet_and_tell(own, |own| (terms(own), ()))?;
        Ok(own)
    }

    /// The same. Each process also tells all what only it knows.
    pub(crate) fn meet_and_tell<T, K, E: From<ProcessError> + ToString>(
        &self,
        own: Result<T, E>,
        terms: impl FnOnce(&T) -> (Terms, K),
    ) -> Result<(T, Vec<K>), E>
    where
        K: Serialize + DeserializeOwned,
    {
        let Some(post) = &self.post else {
            let own = own?;
            let (_, told) = terms(&own);
            return Ok((own, vec![told]));
        };
        post.agreement().meet(own, terms)
    }

    /// A run of the stages begins. Returns its number, which ascends.
    pub(crate) fn begin(&self) -> u64 {
        let of_one = || self.runs.fetch_add(1, Ordering::Relaxed);
        self.post.as_ref().map_or_else(of_one, |post| post.begin())
    }

    /// Tells the other processes how a run ended here, and returns what all stages report.
    pub(crate) fn end(&self, own: Result<Reports, StepError>) -> Result<Reports, StepError> {
        let Some(post) = &self.post else {
            return own;
        };
        post.close_mailboxes();
        let own = own.map_err(|error| match error {
            StepError::Stopped => RunFailure::Stopped,
            StepError::Cancelled(_) => RunFailure::Cancelled(error),
            error => RunFailure::Failed(error),
        });
        let all: Result<Vec<Reports>, _> = post.agreement().end(own);
        let all = all.map_err(|failure| match failure {
            RunFailure::Stopped => StepError::Stopped,
            RunFailure::Failed(error) | RunFailure::Cancelled(error) => error,
        })?;
        let mut reports = Reports::default();
        for own in all {
            reports.stages.extend(own.stages);
            reports.spans.extend(own.spans);
            reports.passes.extend(own.passes);
        }
        reports.join_replicas();
        Ok(reports)
    }

    /// The values of all processes, by rank.
    pub(crate) fn share<T: Serialize + DeserializeOwned>(
        &self,
        own: T,
    ) -> Result<Vec<T>, ProcessError> {
        match &self.post {
            None => Ok(vec![own]),
            Some(post) => gather(post.agreement().comm(), &own, Wait::ForTheSameCall),
        }
    }
}

impl fmt::Display for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.of_workers)
    }
}
