//! What a stage keeps of a forward pass, and what it recomputes.

use std::{fmt, ops::Range, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{Schedule, Segments, SegmentsError, is_name};

/// What is recomputed: it runs again before its backward pass.
///
/// A stage then keeps the inputs of all micro-batches, but the activations of only one, for the time
/// of another forward pass (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016; at
/// stage boundaries as in GPipe). In no mode is a micro-batch recomputed whose backward pass follows
/// its forward pass directly: that would save nothing.
///
/// ```
/// use stovepipe_schedule::{Recompute, Segments};
///
/// let by_layer: Recompute = "0-3,7-9".parse()?;
/// assert_eq!(by_layer, Recompute::Segments(Segments::new([0..4, 7..10])?));
/// assert_eq!(by_layer.to_string(), "0-3,7-9");
/// assert_eq!("always".parse(), Ok(Recompute::Always));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Recompute {
    /// All micro-batches, each stage as a whole.
    Always,
    /// All but the last, whose backward pass is soon.
    #[default]
    ExceptLast,
    /// None: keep all activations.
    Never,
    /// Some layers, of all micro-batches. The other layers keep their activations.
    Segments(Segments),
}

impl Recompute {
    /// The modes that are the same for all layers, the one that recomputes most first.
    pub const MODES: [Self; 3] = [Self::Always, Self::ExceptLast, Self::Never];

    /// For each micro-batch, whether a stage keeps all its activations.
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
    pub fn kept(&self, schedule: &Schedule, stage: usize) -> Vec<bool> {
        let last = schedule.micro_batches() - 1;
        let mut kept = schedule.follows_directly(stage);
        match self {
            Self::Always | Self::Segments(_) => {}
            Self::ExceptLast => kept[last] = true,
            Self::Never => kept.fill(true),
        }
        kept
    }

    /// The runs of layers that a stage of `layers` recomputes, of micro-batches that it does not
    /// [keep](Self::kept). Segments are cut where a stage ends.
    ///
    /// ```
    /// use stovepipe_schedule::Recompute;
    ///
    /// let by_layer: Recompute = "0-3,7-9".parse()?;
    /// assert_eq!(by_layer.segments(2..8), [2..4, 7..8]);
    /// assert_eq!(Recompute::Always.segments(2..8), [2..8]);
    /// assert_eq!(Recompute::Never.segments(2..8), []);
    /// # Ok::<(), stovepipe_schedule::UnknownRecompute>(())
    /// ```
    #[must_use]
    pub fn segments(&self, layers: Range<usize>) -> Vec<Range<usize>> {
        match self {
            Self::Always | Self::ExceptLast => vec![layers],
            Self::Never => Vec::new(),
            Self::Segments(segments) => segments.within(&layers),
        }
    }
}

impl fmt::Display for Recompute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Always => f.write_str("always"),
            Self::ExceptLast => f.write_str("except-last"),
            Self::Never => f.write_str("never"),
            Self::Segments(segments) => segments.fmt(f),
        }
    }
}

/// No [`Recompute`] has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum UnknownRecompute {
    /// It is no list of layers either.
    #[error(
        "`{0}` is not a recompute mode: use always, except-last, never or layers, as in 0-3,7-9"
    )]
    Name(String),
    /// It is a list of layers with a fault.
    #[error(transparent)]
    Segments(#[from] SegmentsError),
}

impl FromStr for Recompute {
    type Err = UnknownRecompute;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(Self::Segments(text.parse()?));
        }
        let found = Self::MODES
            .into_iter()
            .find(|mode| is_name(text, &mode.to_string()));
        found.ok_or_else(|| UnknownRecompute::Name(text.to_owned()))
    }
}

impl TryFrom<String> for Recompute {
    type Error = UnknownRecompute;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Recompute> for String {
    fn from(recompute: Recompute) -> Self {
        recompute.to_string()
    }
}
