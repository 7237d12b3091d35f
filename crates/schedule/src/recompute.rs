//! What a stage keeps of a forward pass, and what it computes again.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Schedule;

/// Which micro-batches are run forward a second time in their backward pass.
///
/// Keeping a stage's input alone and recomputing the rest costs a forward pass more, and holds the
/// activations of one micro-batch instead of all of them (Chen et al., "Training Deep Nets with
/// Sublinear Memory Cost", 2016; at stage boundaries as in GPipe). A pass whose backward is the
/// very next action is never recomputed, whatever the mode: nothing would be saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Recompute {
    /// All micro-batches.
    Always,
    /// All but the last, whose backward pass is near.
    #[default]
    ExceptLast,
    /// None: all activations are kept.
    Never,
}

impl Recompute {
    /// All modes, the one that recomputes most first.
    pub const ALL: [Self; 3] = [Self::Always, Self::ExceptLast, Self::Never];

    /// Which micro-batches a stage keeps in their forward pass instead of computing them again.
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

/// The name is none of the three modes.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{0}` is no recompute mode: use always, except-last or never")]
pub struct UnknownRecompute(String);

impl FromStr for Recompute {
    type Err = UnknownRecompute;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "always" => Ok(Self::Always),
            "except-last" => Ok(Self::ExceptLast),
            "never" => Ok(Self::Never),
            _ => Err(UnknownRecompute(text.to_owned())),
        }
    }
}
