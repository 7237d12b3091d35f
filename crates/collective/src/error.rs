use stovepipe_comm::{CommError, Peer};

/// Why ranks could not reduce together.
///
/// After an error of a call other than [`Root`](Self::Root), tensors may hold anything.
/// Outside of a [run](crate::Group::begin), the job cannot continue: all its ranks are told, as after a
/// [`CommError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank left, did not answer in time, or the job failed.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// Ranks of a group call different things, or for different tensors.
    #[error("{peer} reduces something else: {what} is {theirs} there, but {own} here")]
    Differs {
        /// The rank before this one in the group.
        peer: Peer,
        /// What differs.
        what: String,
        /// What it is at that rank.
        theirs: String,
        /// What it is at this one.
        own: String,
    },
    /// The ranks of a group are wrong.
    #[error(
        "a group must be different ranks of the job, with the one that makes it: {ranks:?} at rank \
         {own} of {size}"
    )]
    Ranks {
        /// The ranks that were named.
        ranks: Vec<usize>,
        /// The rank that made the group.
        own: usize,
        /// The number of ranks in the job.
        size: usize,
    },
    /// The run was [cancelled](crate::GroupCancel::cancel).
    #[error("the run was cancelled")]
    Cancelled,
    /// The run was cancelled during an all-reduce by MPI, which other ranks wait for: the job was aborted.
    #[error("the run was cancelled during MPI_Iallreduce, which cannot be cancelled: the job ends")]
    CancelledInMpi,
    /// [`AllReduce::Mpi`](crate::AllReduce::Mpi), but the ranks are threads.
    #[error("MPI does not connect the ranks: start them as processes of a job, or use the ring")]
    NoMpi,
    /// [`AllReduce::Mpi`](crate::AllReduce::Mpi), but a rank is in the group several times.
    #[error("rank {0} has several places, but MPI takes one of each rank: use the ring")]
    SeveralPlaces(usize),
    /// [`AllReduce::Mpi`](crate::AllReduce::Mpi), but for another type than f32 and f64.
    #[error("MPI adds up f32 and f64, but not {0}: use the ring")]
    Type(&'static str),
    /// The root of a broadcast is not in the group.
    #[error("rank {0} cannot broadcast to a group that it is not in")]
    Root(usize),
}
