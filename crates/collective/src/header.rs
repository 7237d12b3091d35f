//! What a rank is about to do, so that ranks that do different things find out.

use std::fmt;

use stovepipe_comm::{CommError, Peer};

use crate::{
    error::CollectiveError,
    number::{Number, Reduction},
};

/// What a group's ranks do together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    AllReduce(Reduction),
    ReduceScatter(Reduction),
    AllGather,
    /// From a place in the group.
    Broadcast(usize),
}

/// A call of a group at one rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    operation: Operation,
    by_mpi: bool,
    bucket: u64,
    /// The type's name, as bytes.
    numbers: u64,
    ranks: Vec<u64>,
    lengths: Vec<u64>,
}

impl Header {
    pub(crate) fn new<T: Number>(
        operation: Operation,
        bucket: u64,
        ranks: &[usize],
        tensors: &[&mut [T]],
    ) -> Self {
        let mut name = [0; 8];
        name[..T::NAME.len()].copy_from_slice(T::NAME.as_bytes());
        Self {
            operation,
            by_mpi: false,
            bucket,
            numbers: u64::from_le_bytes(name),
            ranks: ranks.iter().map(|rank| *rank as u64).collect(),
            lengths: tensors.iter().map(|tensor| tensor.len() as u64).collect(),
        }
    }

    /// Of an all-reduce by MPI.
    pub(crate) fn by_mpi(self) -> Self {
        Self {
            by_mpi: true,
            ..self
        }
    }

    /// As words of eight bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let counts = [self.ranks.len() as u64, self.lengths.len() as u64];
        let [operation, root] = self.operation.encode();
        let words = [
            operation,
            root | u64::from(self.by_mpi) << 32,
            self.bucket,
            self.numbers,
        ];
        let words = words.iter().chain(&counts);
        let words = words.chain(&self.ranks).chain(&self.lengths);
        words.flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.chunks_exact(8).map_while(|word| word.try_into().ok());
        let mut word = || words.next().map(u64::from_le_bytes);
        let (operation, root) = (word()?, word()?);
        let by_mpi = root >> 32 == 1;
        let operation = Operation::decode([operation, root & u64::from(u32::MAX)])?;
        let (bucket, numbers) = (word()?, word()?);
        let counts = [word()?, word()?];
        let mut list = |count| (0..count).map(|_| word()).collect::<Option<_>>();
        let [ranks, lengths] = counts.map(&mut list);
        Some(Self {
            operation,
            by_mpi,
            bucket,
            numbers,
            ranks: ranks?,
            lengths: lengths?,
        })
    }

    /// An error if the header of another rank differs.
    pub(crate) fn check(&self, peer: Peer, bytes: &[u8]) -> Result<(), CollectiveError> {
        let Some(other) = Self::decode(bytes) else {
            return Err(CommError::Unreadable(peer).into());
        };
        let mut pairs = other.described().zip(self.described());
        let Some(((what, theirs), (_, own))) = pairs.find(|(theirs, own)| theirs != own) else {
            return Ok(());
        };
        Err(CollectiveError::Differs {
            peer,
            what,
            theirs,
            own,
        })
    }

    /// What it says, by name. Of two headers, the parts before the first that differs have the same names.
    fn described(&self) -> impl Iterator<Item = (String, String)> {
        let type_name = self.numbers.to_le_bytes();
        let type_name = String::from_utf8_lossy(&type_name);
        let by = if self.by_mpi { " by MPI" } else { "" };
        let parts = [
            ("the group's list of ranks", format!("{:?}", self.ranks)),
            ("the call", format!("{}{by}", self.operation)),
            ("the bucket", self.bucket.to_string()),
            ("the type", type_name.trim_end_matches('\0').to_owned()),
            ("the number of tensors", self.lengths.len().to_string()),
        ];
        let parts = parts.map(|(name, value)| (name.to_owned(), value));
        let lengths = self.lengths.iter().enumerate();
        let lengths = lengths
            .map(|(tensor, length)| (format!("the length of tensor {tensor}"), length.to_string()));
        parts.into_iter().chain(lengths)
    }
}

impl Operation {
    fn encode(self) -> [u64; 2] {
        match self {
            Self::AllReduce(Reduction::Sum) => [0, 0],
            Self::AllReduce(Reduction::Mean) => [1, 0],
            Self::ReduceScatter(Reduction::Sum) => [2, 0],
            Self::ReduceScatter(Reduction::Mean) => [3, 0],
            Self::AllGather => [4, 0],
            Self::Broadcast(root) => [5, root as u64],
        }
    }

    fn decode([code, root]: [u64; 2]) -> Option<Self> {
        Some(match code {
            0 => Self::AllReduce(Reduction::Sum),
            1 => Self::AllReduce(Reduction::Mean),
            2 => Self::ReduceScatter(Reduction::Sum),
            3 => Self::ReduceScatter(Reduction::Mean),
            4 => Self::AllGather,
            5 => Self::Broadcast(usize::try_from(root).ok()?),
            _ => return None,
        })
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce(reduction) => write!(f, "all_reduce ({reduction:?})"),
            Self::ReduceScatter(reduction) => write!(f, "reduce_scatter ({reduction:?})"),
            Self::AllGather => f.write_str("all_gather"),
            Self::Broadcast(root) => write!(f, "broadcast from the group's rank {root}"),
        }
    }
}
