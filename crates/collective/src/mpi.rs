//! An all-reduce by MPI.
//!
//! MPI neither checks what ranks add up nor lets anyone cancel it. So all ranks first tell each other their
//! headers. A rank that has those of all knows that all are in the same call, and lets MPI add up. If its run
//! is cancelled from then on, it cannot know whether the others do the same: the job ends.

use std::collections::HashSet;

use bytemuck::cast_slice;
use stovepipe_comm::{CommError, GroupId, Numbers};

use crate::{
    error::CollectiveError,
    header::Header,
    inbox::{Event, Inbox},
    number::{Number, Reduction},
    sync::Sender,
    tag::header_tag,
};

/// A call of a group at one rank.
pub(crate) struct MpiCall<'a> {
    pub(crate) number: u64,
    pub(crate) group: GroupId,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) events: &'a Sender<Event>,
    pub(crate) reduction: Reduction,
}

impl MpiCall<'_> {
    pub(crate) fn run<T: Number>(
        mut self,
        header: &Header,
        tensors: &mut [&mut [T]],
    ) -> Result<(), CollectiveError> {
        let for_mpi = T::FOR_MPI.ok_or(CollectiveError::Type(T::NAME))?;
        let mut own = Vec::with_capacity(tensors.iter().map(|tensor| tensor.len()).sum());
        tensors
            .iter()
            .for_each(|tensor| own.extend_from_slice(tensor));
        self.agree(header)?;
        let events = self.events.clone();
        let take = move |sums| drop(events.send(Event::Reduced(sums)));
        self.inbox.comm.all_reduce(self.group, for_mpi(own), take)?;
        let sums = self.inbox.reduced()?;
        // They have the type that they were given in.
        let mut sums: &[T] = match &sums {
            Numbers::F32(sums) => cast_slice(sums),
            Numbers::F64(sums) => cast_slice(sums),
        };
        let count = T::count(self.inbox.ranks.len());
        for tensor in tensors {
            let (own, rest) = sums.split_at(tensor.len());
            tensor.copy_from_slice(own);
            sums = rest;
            if self.reduction == Reduction::Mean {
                let mean = |number: &mut T| *number = T::narrow(number.widen() / count);
                tensor.iter_mut().for_each(mean);
            }
        }
        Ok(())
    }

    /// Waits until all ranks are in this call.
    fn agree(&mut self, header: &Header) -> Result<(), CollectiveError> {
        let tag = header_tag(self.number);
        let others = (0..self.inbox.ranks.len()).filter(|place| *place != self.inbox.place);
        let others: Vec<_> = others.collect();
        for place in &others {
            self.inbox.send_to(*place, tag, header.encode())?;
        }
        let ranks = others.iter().map(|place| self.inbox.ranks[*place]);
        let mut missing: HashSet<_> = ranks.collect();
        while !missing.is_empty() {
            let (from, found, theirs) = self.inbox.next(tag, |rank| missing.contains(&rank))?;
            header.check(from.clone(), &theirs)?;
            if found != tag || !missing.remove(&from.rank) {
                return Err(CommError::Unreadable(from).into());
            }
        }
        Ok(())
    }
}
