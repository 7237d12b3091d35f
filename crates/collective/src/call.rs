use stovepipe_comm::{CommError, Peer};

use crate::{
    error::CollectiveError, header::Header, inbox::Inbox, number::Number, ring::Route,
    tag::header_tag,
};

/// How many of its pieces a rank has under way.
const WINDOW: usize = if cfg!(test) { 2 } else { 4 };

/// A call of a group at one rank.
pub(crate) struct Call<'a, 'b, T> {
    /// It ascends from call to call.
    pub(crate) number: u64,
    pub(crate) route: Route,
    pub(crate) inbox: &'a mut Inbox,
    pub(crate) buffers: &'a mut Vec<Vec<u8>>,
    pub(crate) tensors: &'a mut [&'b mut [T]],
    /// How many of this rank's own pieces have left it.
    pub(crate) begun: usize,
}

impl<T: Number> Call<'_, '_, T> {
    pub(crate) fn run(mut self, header: &Header) -> Result<(), CollectiveError> {
        self.inbox.send(self.header_tag(), header.encode())?;
        for _ in 0..WINDOW {
            self.begin()?;
        }
        // It comes before all pieces, so none of another call is taken.
        let (from, tag, theirs) = self.next()?;
        header.check(from.clone(), &theirs)?;
        if tag != self.header_tag() || from != self.inbox.sender() {
            return Err(CommError::Unreadable(from).into());
        }
        for _ in 0..self.route.steps().len() * self.route.pieces {
            let (from, tag, mut buffer) = self.next()?;
            let fits = |at: &(usize, usize)| {
                buffer.len() == self.route.arriving::<T>(*at) && from == self.inbox.sender()
            };
            let at = self.at(tag).filter(fits);
            let at = at.ok_or(CommError::Unreadable(from))?;
            if self.route.take(at, &mut buffer, self.tensors) {
                let (step, piece) = at;
                self.inbox.send(self.tag((step + 1, piece)), buffer)?;
            } else {
                self.buffers.push(buffer);
                self.begin()?;
            }
        }
        Ok(())
    }

    /// What the rank before this one sends. Ranks that do something else may send, too.
    fn next(&mut self) -> Result<(Peer, u64, Vec<u8>), CollectiveError> {
        let (first, sender) = (self.header_tag(), self.inbox.sender().rank);
        self.inbox.next(first, |rank| rank == sender)
    }

    /// Sends the next of this rank's own pieces, if there is one.
    fn begin(&mut self) -> Result<(), CommError> {
        let is_left = |_: &usize| self.begun < self.route.pieces;
        let Some(step) = self.route.first().filter(is_left) else {
            return Ok(());
        };
        let at = (step, self.begun);
        self.begun += 1;
        let buffer = self.buffers.pop().unwrap_or_default();
        let buffer = self.route.begin(at, buffer, self.tensors);
        self.inbox.send(self.tag(at), buffer)
    }

    fn header_tag(&self) -> u64 {
        header_tag(self.number)
    }

    /// The tag of a step and a piece.
    fn tag(&self, (step, piece): (usize, usize)) -> u64 {
        self.header_tag() + 1 + (step * self.route.pieces + piece) as u64
    }

    /// The step and the piece of a tag that arrived.
    fn at(&self, tag: u64) -> Option<(usize, usize)> {
        let index = tag.checked_sub(self.header_tag() + 1)? as usize;
        let (step, piece) = (index / self.route.pieces, index % self.route.pieces);
        self.route.steps().contains(&step).then_some((step, piece))
    }
}
