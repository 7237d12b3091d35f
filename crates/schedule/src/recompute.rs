//! What a stage keeps of a forward pass, and what it recomputes.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Schedule, is_name};

/// Which micro-batches are recomputed: their forward pass runs again before their backward pass.
///
/// A stage then keeps the inputs of all micro-batches, but the activations of only one, for the time
/// of another forward pass (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; at
/// stage boundaries as in GPipe). In no mode is a micro-batch recomputed whose backward pass follows
/// its forward pass directly: that would save nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// All micro-batches.
    Always,
    /// All but the last, whose backward pass is soon.
    #[default]
    ExceptLast,
    /// None: keep all activations.
    Never,
}

impl Recompute {
    /// All modes, the one that recomputes most first.
    pub const ALL: [Self; 3] = [Self::Always, Self::ExceptLast, Self::Never];

    /// For each micro-batch, whether a stage keeps its activations.
    ///
    /// ```
    /// use stovepipe_schedule::{OneForwardOneBackward, Recompute, Scheduler};
    ///
    /// let schedule = OneForwardOneBackward.schedule(2, 3)?;
    /// assert_eq!(Recompute::ExceptLast.kept(&schedule, 0), [false, false, true]);
    /// assert_eq!(Recompute::Always.kept(&schedule, 1), [true; 3]); // backward follows at once
    /// # Ok::<(), stovepipe_schedule::ScheduleError>(())
    /// ```
    ///
    /// # Panics
    ///
    /// If there is no such stage.
    #[must_use]
    pub fn kept(self, schedule: &Schedule, stage: usize) -> Vec<bool> {
        let last = schedule.micro_batches() - 1;
        let mut kept = schedule.follows_directly(stage);
        match self {
            Self::Always => {}
            Self::ExceptLast => kept[last] = true,
            Self::Never => kept.fill(true),
        }
        kept
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Always => "always",
            Self::ExceptLast => "except-last",
            Self::Never => "never",
        })
    }
}

/// No [`Recompute`] has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is not a recompute mode: use always, except-last or never")]
pub struct UnknownRecompute(String);

impl FromStr for Recompute {
    type Err = UnknownRecompute;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL
            .into_iter()
            .find(|mode| is_name(text, &mode.to_string()));
        found.ok_or_else(|| UnknownRecompute(text.to_owned()))
    }
}
