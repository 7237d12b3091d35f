use std::{
    mem,
    sync::atomic::{AtomicU64, Ordering},
    thread::panicking,
    time::Duration,
};

use crate::{
    error::CommError,
    sync::{Mutex, lock},
    transport::{GroupId, Message, Numbers, Packet, Port, Transport},
};

/// One rank's connection to all ranks of a job, as `MPI_COMM_WORLD` or a process group of
/// `torch.distributed`.
///
/// All threads of a rank may use it at the same time. Each of its users has a *channel*, a number that is
/// the same at all ranks: messages of a channel arrive at that channel's sink. Dropping the communicator
/// leaves the job: what was sent still arrives, and other ranks get [`CommError::Gone`] if they need this
/// one again. If a panic drops it, the job is aborted.
///
/// ```
/// use std::sync::mpsc::channel;
///
/// let [zero, one]: [_; 2] = stovepipe_comm::local(2, None)?.try_into().ok().unwrap();
/// let (sender, messages) = channel();
/// one.set_sink(0, move |message| drop(sender.send(message)));
/// zero.send(1, 0, 7, vec![b"a message".into(), b"of two parts".into()])?;
/// let message = messages.recv()??;
/// assert_eq!((message.from, message.tag, message.parts.len()), (0, 7, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Communicator {
    port: Port,
    /// Held during a gather, so that gathers of several threads have an order.
    gathering: Mutex<()>,
    bytes_sent: AtomicU64,
    /// How many runs all agreements on this communicator have begun, so that no two have the same number.
    runs: AtomicU64,
    /// How many groups were made.
    groups: AtomicU64,
    transport: Box<dyn Transport>,
}

impl Communicator {
    /// A communicator over a transport that delivers to `port`. See [`local`](crate::local()) and
    /// `stovepipe-comm-mpi`.
    #[must_use]
    pub fn new(port: Port, transport: Box<dyn Transport>) -> Self {
        Self {
            port,
            gathering: Mutex::default(),
            bytes_sent: AtomicU64::new(0),
            runs: AtomicU64::new(0),
            groups: AtomicU64::new(0),
            transport,
        }
    }

    /// The rank of this process, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.port.rank()
    }

    /// The number of ranks.
    #[must_use]
    pub fn size(&self) -> usize {
        self.port.size()
    }

    /// The name of a rank's host; `None` if there is no such rank.
    #[must_use]
    pub fn host(&self, rank: usize) -> Option<String> {
        (rank < self.size()).then(|| self.port.peer(rank).host)
    }

    /// How long a call waits for others.
    #[must_use]
    pub fn limit(&self) -> Option<Duration> {
        self.port.limit()
    }

    /// The bytes in parts and values that were sent to other ranks so far, without those of
    /// [`all_reduce`](Self::all_reduce).
    #[must_use]
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent.load(Ordering::Relaxed)
    }

    /// Sends a message to a rank, which may be this one; never waits. The message arrives at the sink that
    /// the rank has for the channel, once, and after those that this rank sent there before.
    ///
    /// # Errors
    ///
    /// If the rank has left or the job has failed. That a message was sent does not mean that it
    /// arrives: a later failure is told to the sinks.
    pub fn send(
        &self,
        to: usize,
        channel: u32,
        tag: u64,
        parts: Vec<Vec<u8>>,
    ) -> Result<(), CommError> {
        self.port.check(to).map_err(|error| match error {
            CommError::Gone(_) => self.fail(error, None),
            error => error,
        })?;
        self.count(to, parts.iter().map(Vec::len).sum());
        let message = Packet::Message {
            channel,
            tag,
            parts,
        };
        self.transport.send(to, message);
        Ok(())
    }

    /// Sets what takes the messages of a channel; it replaces the channel's earlier sink. Messages that
    /// came before there was one are not lost.
    ///
    /// Sinks are called by one thread at a time, usually the communicator's own. Until a sink returns,
    /// nothing else arrives. So it must neither wait nor panic, and may not set a sink, call
    /// [`all_gather`](Self::all_gather) or drop the communicator. An error says that a rank left, or
    /// that the job failed: each channel's sink is told, also one that is set later. Nothing follows a
    /// failure.
    pub fn set_sink(
        &self,
        channel: u32,
        sink: impl Fn(Result<Message, CommError>) + Send + Sync + 'static,
    ) {
        self.port.set_sink(channel, Box::new(sink));
    }

    /// Gives every rank the values of all ranks, in rank order. Each rank calls this as often; its
    /// first call belongs to the first calls of the others, and so on. Waits no longer than the
    /// communicator's limit.
    ///
    /// # Errors
    ///
    /// If a rank did not call in time ([`CommError::Missing`]), has left, or the job has failed.
    ///
    /// ```
    /// use std::thread::spawn;
    ///
    /// let ranks = stovepipe_comm::local(3, None)?;
    /// let ranks = ranks.into_iter().map(|comm| spawn(move || comm.all_gather(vec![comm.rank() as u8])));
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [[0], [1], [2]]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_gather(&self, value: Vec<u8>) -> Result<Vec<Vec<u8>>, CommError> {
        self.all_gather_within(value, self.port.limit())
    }

    /// [`all_gather`](Self::all_gather) with a limit of its own. `None` waits as long as all ranks live: over
    /// MPI, a process that is silent for 30 seconds, or for the communicator's limit, counts as dead.
    ///
    /// # Errors
    ///
    /// As `all_gather`.
    pub fn all_gather_within(
        &self,
        value: Vec<u8>,
        limit: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, CommError> {
        self.collect(vec![value; self.size()], limit)
    }

    /// Gives each rank a value of its own, as `MPI_Alltoall`: `values` has one for each rank. Returns
    /// what the ranks have for this one, in rank order. Counts as a gather: each rank calls it as
    /// often, and in the same place. Waits as long as all ranks live.
    ///
    /// # Errors
    ///
    /// As [`all_gather`](Self::all_gather).
    ///
    /// # Panics
    ///
    /// If there is not one value for each rank.
    ///
    /// ```
    /// use std::thread::spawn;
    ///
    /// let ranks = stovepipe_comm::local(2, None)?.into_iter().map(|comm| {
    ///     let values = [0, 1].map(|to| vec![comm.rank() as u8, to]);
    ///     spawn(move || comm.all_to_all(values.to_vec()))
    /// });
    /// for (own, rank) in ranks.collect::<Vec<_>>().into_iter().enumerate() {
    ///     assert_eq!(rank.join().unwrap()?, [[0, own as u8], [1, own as u8]]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all_to_all(&self, values: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, CommError> {
        assert_eq!(values.len(), self.size(), "one value for each rank");
        self.collect(values, None)
    }

    fn collect(
        &self,
        mut values: Vec<Vec<u8>>,
        limit: Option<Duration>,
    ) -> Result<Vec<Vec<u8>>, CommError> {
        let _gathering = lock(&self.gathering);
        let own = mem::take(&mut values[self.rank()]);
        for other in self.port.others() {
            let value = mem::take(&mut values[other]);
            self.count(other, value.len());
            self.transport.send(other, Packet::Value(value));
        }
        let collected = self.port.collect(own, limit);
        collected.map_err(|error| self.fail(error, None))
    }

    /// Whether what carries the messages can add up itself, as MPI can.
    #[must_use]
    pub fn can_all_reduce(&self) -> bool {
        self.transport.can_all_reduce()
    }

    /// Makes a group of these ranks for [`all_reduce`](Self::all_reduce), which lives as long as the
    /// communicator; never waits. `None` if the transport cannot add up, or this rank is not one of them.
    ///
    /// All ranks of the group make it, with the same list. Ranks of several groups make these in the same
    /// order. Until all ranks of the group do, nothing that this one sends after this call leaves it.
    pub fn make_group(&self, ranks: &[usize]) -> Option<GroupId> {
        let is_made = self.can_all_reduce() && ranks.contains(&self.rank());
        is_made.then(|| {
            let group = GroupId(self.groups.fetch_add(1, Ordering::Relaxed));
            self.transport.make_group(group, ranks);
            group
        })
    }

    /// Lets the transport add up the numbers of a group's ranks, in an order of its own; never waits. `take`
    /// gets the sums, on the communicator's thread. It is not called if the job fails: the sinks are told.
    ///
    /// The ranks of the group make the same calls, in the same order, each with as many numbers of the
    /// same type. The transport does not check this. A call cannot be cancelled:
    /// [`abort`](Self::abort) the job if a rank will not make it.
    ///
    /// # Errors
    ///
    /// If the job has failed.
    pub fn all_reduce(
        &self,
        group: GroupId,
        numbers: Numbers,
        take: impl FnOnce(Numbers) + Send + 'static,
    ) -> Result<(), CommError> {
        match self.port.failure() {
            Some(failure) => Err(failure),
            None => {
                self.transport.all_reduce(group, numbers, Box::new(take));
                Ok(())
            }
        }
    }

    /// Whether all other ranks have left the job.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.port.present().is_empty()
    }

    /// Ends the job: all calls of all ranks fail from now on, and with MPI, all processes end with an
    /// exit status other than 0. Returns at once, so that the caller can print an error and drop what
    /// it has.
    ///
    /// ```
    /// use stovepipe_comm::CommError;
    ///
    /// let ranks = stovepipe_comm::local(2, None)?;
    /// ranks[1].abort("the disk is full");
    /// let error = ranks[0].all_gather(Vec::new()).unwrap_err();
    /// assert_eq!(error.to_string(), "rank 1 on localhost aborted the job: the disk is full");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn abort(&self, reason: &str) {
        let aborted = CommError::Aborted {
            peer: self.port.peer(self.rank()),
            reason: reason.to_owned(),
        };
        self.fail(aborted, Some(reason));
    }

    /// Notes a failure and tells all ranks, this one's sinks included. Returns the first failure.
    fn fail(&self, error: CommError, reason: Option<&str>) -> CommError {
        match self.port.fail(error) {
            Ok(error) => {
                let reason = reason.map_or_else(|| error.to_string(), str::to_owned);
                for rank in 0..self.size() {
                    self.transport.send(rank, Packet::Abort(reason.clone()));
                }
                error
            }
            Err(first) => first,
        }
    }

    /// The number of one more run.
    pub(crate) fn next_run(&self) -> u64 {
        self.runs.fetch_add(1, Ordering::Relaxed)
    }

    fn count(&self, to: usize, bytes: usize) {
        if to != self.rank() {
            self.bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if panicking() {
            self.abort("a thread panicked");
        } else if self.port.failure().is_none() {
            for other in self.port.others() {
                self.transport.send(other, Packet::Leave);
            }
        }
    }
}
