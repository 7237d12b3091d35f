//! Parameters whose values visit their device one after the other.

use std::collections::VecDeque;

use burn::module::ParamId;

use super::{error::OffloadError, mover::Coming};

/// What comes of one parameter after the other, of which the next one is on its way.
pub(super) struct Visits<T> {
    /// The parameters that were not asked for yet, with their ranks.
    rest: std::vec::IntoIter<(ParamId, usize)>,
    asked: VecDeque<(ParamId, Coming<T>)>,
}

impl<T> Visits<T> {
    pub(super) fn none() -> Self {
        Self {
            rest: Vec::new().into_iter(),
            asked: VecDeque::new(),
        }
    }

    /// Begins with the first of these parameters.
    pub(super) fn begin(
        parameters: Vec<(ParamId, usize)>,
        ask: impl FnOnce(ParamId, usize) -> Coming<T>,
    ) -> Self {
        let mut visits = Self {
            rest: parameters.into_iter(),
            ..Self::none()
        };
        visits.ask_for_next(ask);
        visits
    }

    /// What is there of the next parameter, which is this one. What is asked for of its successor is then on its way.
    pub(super) fn take(
        &mut self,
        parameter: ParamId,
        ask: impl FnOnce(ParamId, usize) -> Coming<T>,
    ) -> Result<T, OffloadError> {
        self.ask_for_next(ask);
        match self.asked.pop_front() {
            Some((next, coming)) if next == parameter => coming.wait(),
            _ => Err(OffloadError::Order),
        }
    }

    fn ask_for_next(&mut self, ask: impl FnOnce(ParamId, usize) -> Coming<T>) {
        if let Some((parameter, rank)) = self.rest.next() {
            self.asked.push_back((parameter, ask(parameter, rank)));
        }
    }
}
