//! The passes of a stage for a micro-batch.

use crate::Pass;

/// A set of passes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Passes(u8);

impl Passes {
    const fn bit(pass: Pass) -> u8 {
        1 << pass as u8
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn contains(self, pass: Pass) -> bool {
        self.0 & Self::bit(pass) != 0
    }

    pub fn contains_any(self, passes: &[Pass]) -> bool {
        passes.iter().any(|&pass| self.contains(pass))
    }

    /// Adds a pass. Returns whether it is new.
    pub fn insert(&mut self, pass: Pass) -> bool {
        let is_new = !self.contains(pass);
        self.0 |= Self::bit(pass);
        is_new
    }
}
