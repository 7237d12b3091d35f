use stovepipe_comm::CommError;

use crate::{error::CollectiveError, header::Header, inbox::Inbox, number::Number, ring::Route};

/// How many of its pieces a rank has under way.
const WINDOW: usize = if cfg!(test) { 2 } else { 4 };
/// The lower bits of a tag say which message of a call it is: the header is 0, pieces follow.
const MESSAGE_BITS: u32 = 24;

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
        let first = self.header_tag();
        let (tag, theirs) = self.inbox.next(first)?;
        if tag != self.header_tag() {
            return Err(self.unreadable());
        }
        header.check(self.inbox.sender(), &theirs)?;
        for _ in 0..self.route.steps().len() * self.route.pieces {
            let (tag, mut buffer) = self.inbox.next(first)?;
            let at = self
                .at(tag)
                .filter(|at| buffer.len() == self.route.arriving::<T>(*at));
            let at = at.ok_or_else(|| self.unreadable())?;
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
        self.number << MESSAGE_BITS
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

    fn unreadable(&self) -> CollectiveError {
        CommError::Unreadable(self.inbox.sender()).into()
    }
}
