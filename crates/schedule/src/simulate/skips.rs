//! Which actions send skips, and which wait for them.

use crate::{Action, Pass, SkipCosts};

pub(super) enum Way {
    Value,
    Gradient,
}

impl SkipCosts {
    /// What an action sends of this, and to which stage.
    pub(super) fn way_from(&self, action: Action) -> Option<(usize, Way)> {
        match action.pass {
            Pass::Forward if action.stage == self.from => Some((self.to, Way::Value)),
            pass if pass.sends_gradient() && action.stage == self.to => {
                Some((self.from, Way::Gradient))
            }
            _ => None,
        }
    }

    /// What an action takes of this, and from which stage.
    pub(super) fn way_to(&self, action: Action) -> Option<(usize, Way)> {
        match action.pass {
            Pass::Forward if action.stage == self.to => Some((self.from, Way::Value)),
            pass if pass.sends_gradient() && action.stage == self.from => {
                Some((self.to, Way::Gradient))
            }
            _ => None,
        }
    }
}
