use std::sync::Arc;

use stovepipe_comm::{Communicator, GroupId};

use crate::{
    call::Call,
    error::CollectiveError,
    header::{Header, Operation},
    inbox::{Event, Inbox},
    mpi::MpiCall,
    number::{Number, Reduction},
    ring::Route,
    sync::Sender,
};

/// The lower bits of a call's number are its place in a run.
const CALL_BITS: u32 = 16;

/// The largest piece, in bytes: a few of them fit into the cache of a core. The model has small ones.
const PIECE: usize = if cfg!(test) { 8 } else { 1 << 20 };

/// Ranks that reduce together, in a ring.
///
/// Each rank of the group makes the same calls, in the same order and with tensors of the same
/// lengths. A call waits for the other ranks, without data no longer than the communicator's limit.
///
/// ```
/// use std::{sync::Arc, thread::spawn};
/// use stovepipe_collective::{Group, Reduction};
///
/// let ranks = stovepipe_comm::local(3, None)?.into_iter().map(|comm| {
///     spawn(move || {
///         let mut group = Group::new(Arc::new(comm), 1, &[0, 1, 2])?;
///         let (mut weights, mut bias) = (vec![1.0_f32; 5], vec![group.rank() as f32; 2]);
///         group.all_reduce(0, &mut [&mut weights, &mut bias], Reduction::Sum)?;
///         Ok::<_, stovepipe_collective::CollectiveError>((weights, bias))
///     })
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap()?, (vec![3.0; 5], vec![3.0; 2]));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Group {
    inbox: Inbox,
    events: Sender<Event>,
    /// The number of the next call.
    calls: u64,
    /// Buffers for the next pieces.
    buffers: Vec<Vec<u8>>,
    /// If MPI adds up.
    by_mpi: Option<GroupId>,
}

/// What adds up in [`Group::all_reduce`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AllReduce {
    /// The ring: one order of addition, and bits that depend on nothing else.
    #[default]
    Ring,
    /// `MPI_Iallreduce`: an order that the MPI library chooses; f32 and f64 only.
    Mpi,
}

/// Cancels the runs of a [`Group`], from any thread.
#[derive(Clone)]
pub struct GroupCancel(Sender<Event>);

impl GroupCancel {
    /// Ends the call of a run that waits at this rank now or next. Does nothing if the run has ended.
    pub fn cancel(&self, run: u64) {
        drop(self.0.send(Event::Cancelled(run)));
    }
}

impl Group {
    /// A group of some of the communicator's ranks, in the order of the ring. The ranks give the same
    /// list, and a channel that nothing else uses.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Ranks`] if a rank is named twice or does not exist, or this one is not named.
    pub fn new(
        comm: Arc<Communicator>,
        channel: u32,
        ranks: &[usize],
    ) -> Result<Self, CollectiveError> {
        let own = comm.rank();
        let place = ranks.iter().position(|rank| *rank == own);
        let is_first = |(place, rank): (usize, &usize)| !ranks[..place].contains(rank);
        match place.filter(|_| ranks.iter().enumerate().all(is_first)) {
            Some(place) => Self::with_place(comm, channel, ranks, place),
            None => Err(wrong(&comm, ranks)),
        }
    }

    /// A group in which a rank may have several places, each with a `Group` of its own that another thread
    /// uses. It uses as many channels as it has places, from `channel` on, if a rank has several.
    ///
    /// # Errors
    ///
    /// [`CollectiveError::Ranks`] if a rank does not exist, or the place is not one of this rank.
    ///
    /// ```
    /// use std::{sync::Arc, thread::spawn};
    /// use stovepipe_collective::{Group, Reduction};
    ///
    /// let comm = Arc::new(stovepipe_comm::local(1, None)?.remove(0));
    /// let places = [0, 1].map(|place| {
    ///     let comm = comm.clone();
    ///     spawn(move || {
    ///         let mut group = Group::with_place(comm, 1, &[0, 0], place)?;
    ///         let mut tensor = [1.0, place as f32];
    ///         group.all_reduce(0, &mut [&mut tensor], Reduction::Sum)?;
    ///         Ok::<_, stovepipe_collective::CollectiveError>(tensor)
    ///     })
    /// });
    /// for place in places {
    ///     assert_eq!(place.join().unwrap()?, [2.0, 1.0]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with_place(
        comm: Arc<Communicator>,
        channel: u32,
        ranks: &[usize],
        place: usize,
    ) -> Result<Self, CollectiveError> {
        let is_own = ranks.get(place) == Some(&comm.rank());
        if !is_own || ranks.iter().any(|rank| *rank >= comm.size()) {
            return Err(wrong(&comm, ranks));
        }
        let (inbox, events) = Inbox::new(comm, channel, ranks.to_vec(), place);
        Ok(Self {
            inbox,
            events,
            calls: 0,
            buffers: Vec::new(),
            by_mpi: None,
        })
    }

    /// Sets what adds up in [`all_reduce`](Self::all_reduce), the ring by default. All ranks of the group set
    /// the same. With [`AllReduce::Mpi`], ranks of several groups do this in the same order, and until all
    /// ranks of the group have done it, no message leaves this one.
    ///
    /// MPI adds up in an order of its own: a sum of N numbers is that of the ring to about N roundings. A call
    /// that is cancelled after all ranks have begun it aborts the job, also in a [run](Self::begin).
    ///
    /// # Errors
    ///
    /// If MPI does not connect the ranks, or a rank has several places.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use stovepipe_collective::{AllReduce, CollectiveError, Group};
    ///
    /// let comm = stovepipe_comm::local(1, None)?.remove(0);
    /// let mut group = Group::new(Arc::new(comm), 1, &[0])?;
    /// assert_eq!(group.set_all_reduce(AllReduce::Ring), Ok(()));
    /// // Threads have no MPI.
    /// assert_eq!(group.set_all_reduce(AllReduce::Mpi), Err(CollectiveError::NoMpi));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn set_all_reduce(&mut self, by: AllReduce) -> Result<(), CollectiveError> {
        let Inbox { comm, ranks, .. } = &self.inbox;
        self.by_mpi = match by {
            AllReduce::Ring => None,
            AllReduce::Mpi => {
                let mut all = ranks.iter().enumerate();
                if let Some((_, rank)) = all.find(|(place, rank)| ranks[..*place].contains(rank)) {
                    return Err(CollectiveError::SeveralPlaces(*rank));
                }
                Some(comm.make_group(ranks).ok_or(CollectiveError::NoMpi)?)
            }
        };
        Ok(())
    }

    /// A handle that ends this rank's calls of a [run](Self::begin).
    #[must_use]
    pub fn cancel_handle(&self) -> GroupCancel {
        GroupCancel(self.events.clone())
    }

    /// Begins a run: calls that fail or are cancelled together. All ranks begin the same runs, whose numbers
    /// ascend, and make up to 65,536 calls in each. A rank begins a run when no rank makes a call of an
    /// earlier one any more. What is left of earlier runs is dropped. Within a run, this does nothing.
    ///
    /// An error in a run does not abort the job: the caller has to
    /// [cancel](GroupCancel::cancel) the run at the other ranks, and calls in it have no limit of their own.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use stovepipe_collective::{CollectiveError, Group, Reduction};
    ///
    /// let mut ranks = stovepipe_comm::local(2, None)?;
    /// let mut group = Group::new(Arc::new(ranks.remove(0)), 1, &[0, 1])?;
    /// group.begin(7);
    /// group.cancel_handle().cancel(7); // or another thread, while this one waits
    /// let cancelled = group.all_reduce(0, &mut [&mut [1.0]], Reduction::Sum);
    /// assert_eq!(cancelled, Err(CollectiveError::Cancelled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn begin(&mut self, run: u64) {
        if self.inbox.run != Some(run) {
            self.inbox.run = Some(run);
            self.calls = run << CALL_BITS;
        }
    }

    /// This rank's place in the group, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.inbox.place
    }

    /// The number of ranks in the group.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inbox.ranks.len()
    }

    /// Replaces each number by its reduction over all ranks, with the same bits at each of them. `bucket` is a
    /// number that says which tensors these are; it must be the same at all ranks. The ring does this, or
    /// [MPI](Self::set_all_reduce).
    ///
    /// # Errors
    ///
    /// If a rank does something else ([`CollectiveError::Differs`]), does not answer in time, has left,
    /// or the job has failed. Then tensors may hold anything.
    pub fn all_reduce<T: Number>(
        &mut self,
        bucket: u64,
        tensors: &mut [&mut [T]],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        let Some(group) = self.by_mpi.filter(|_| self.size() > 1) else {
            return self.call(Operation::AllReduce(reduction), bucket, tensors);
        };
        let operation = Operation::AllReduce(reduction);
        let header = Header::new(operation, bucket, &self.inbox.ranks, tensors).by_mpi();
        let call = MpiCall {
            number: self.next_number(),
            group,
            inbox: &mut self.inbox,
            events: &self.events,
            reduction,
        };
        let done = call.run(&header, tensors);
        self.end(done)
    }

    /// The first half of [`all_reduce`](Self::all_reduce): this rank gets the reduction of its
    /// [`slice`](crate::slice()) of each tensor. The other numbers stay as they are.
    ///
    /// # Errors
    ///
    /// As `all_reduce`.
    ///
    /// ```
    /// use std::{sync::Arc, thread::spawn};
    /// use stovepipe_collective::{Group, Reduction, slice};
    ///
    /// let ranks = stovepipe_comm::local(2, None)?.into_iter().map(|comm| {
    ///     spawn(move || {
    ///         let mut group = Group::new(Arc::new(comm), 1, &[0, 1])?;
    ///         let mut tensor = [1.0, 2.0, 3.0, 4.0];
    ///         group.reduce_scatter(0, &mut [&mut tensor], Reduction::Mean)?;
    ///         // An optimizer could update this slice here.
    ///         let own = slice(4, group.rank(), 2);
    ///         tensor[own].iter_mut().for_each(|number| *number *= 10.0);
    ///         group.all_gather(0, &mut [&mut tensor])?;
    ///         Ok::<_, stovepipe_collective::CollectiveError>(tensor)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [10.0, 20.0, 30.0, 40.0]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reduce_scatter<T: Number>(
        &mut self,
        bucket: u64,
        tensors: &mut [&mut [T]],
        reduction: Reduction,
    ) -> Result<(), CollectiveError> {
        self.call(Operation::ReduceScatter(reduction), bucket, tensors)
    }

    /// The second half of [`all_reduce`](Self::all_reduce): replaces each [`slice`](crate::slice()) of
    /// each tensor by that of the rank that it belongs to. [`reduce_scatter`](Self::reduce_scatter) has
    /// an example.
    ///
    /// # Errors
    ///
    /// As `all_reduce`.
    pub fn all_gather<T: Number>(
        &mut self,
        bucket: u64,
        tensors: &mut [&mut [T]],
    ) -> Result<(), CollectiveError> {
        self.call(Operation::AllGather, bucket, tensors)
    }

    /// Replaces the tensors by those of `root`, a place in the group. The root waits until all have them.
    ///
    /// # Errors
    ///
    /// As `all_reduce`; [`CollectiveError::Root`] if there is no such place.
    ///
    /// ```
    /// use std::{sync::Arc, thread::spawn};
    /// use stovepipe_collective::Group;
    ///
    /// let ranks = stovepipe_comm::local(4, None)?.into_iter().map(|comm| {
    ///     spawn(move || {
    ///         let mut group = Group::new(Arc::new(comm), 1, &[0, 1, 2, 3])?;
    ///         let mut tensor = [group.rank() as f64; 3];
    ///         group.broadcast(0, &mut [&mut tensor], 2)?;
    ///         Ok::<_, stovepipe_collective::CollectiveError>(tensor)
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap()?, [2.0; 3]);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn broadcast<T: Number>(
        &mut self,
        bucket: u64,
        tensors: &mut [&mut [T]],
        root: usize,
    ) -> Result<(), CollectiveError> {
        if root >= self.size() {
            return Err(CollectiveError::Root(root));
        }
        self.call(Operation::Broadcast(root), bucket, tensors)
    }

    fn call<T: Number>(
        &mut self,
        operation: Operation,
        bucket: u64,
        tensors: &mut [&mut [T]],
    ) -> Result<(), CollectiveError> {
        if self.size() == 1 {
            return Ok(());
        }
        let header = Header::new(operation, bucket, &self.inbox.ranks, tensors);
        let lengths: Vec<_> = tensors.iter().map(|tensor| tensor.len()).collect();
        let seat = (self.rank(), self.size());
        let call = Call {
            number: self.next_number(),
            route: Route::new(operation, seat, &lengths, PIECE / size_of::<T>()),
            inbox: &mut self.inbox,
            buffers: &mut self.buffers,
            tensors,
            begun: 0,
        };
        let done = call.run(&header);
        self.end(done)
    }

    fn next_number(&mut self) -> u64 {
        self.calls += 1;
        self.calls - 1
    }

    /// Ends the job if the others may wait for this rank, and nobody tells them.
    fn end(&self, done: Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        done.inspect_err(|error| match (error, self.inbox.run) {
            (CollectiveError::CancelledInMpi, _) | (_, None) => {
                self.inbox.comm.abort(&error.to_string());
            }
            _ => {}
        })
    }
}

fn wrong(comm: &Communicator, ranks: &[usize]) -> CollectiveError {
    CollectiveError::Ranks {
        ranks: ranks.to_vec(),
        own: comm.rank(),
        size: comm.size(),
    }
}
