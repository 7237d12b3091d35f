//! Rules by name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{
    GPipe, Interleaved, OneForwardOneBackward, PipeDream, Scheduler, ZeroBubbleH1, ZeroBubbleH2,
    ZeroBubbleV,
};

/// A [`Scheduler`] of this crate by the name that flags and files call it.
///
/// ```
/// use stovepipe_schedule::Rule;
///
/// assert_eq!("zb-h1".parse(), Ok(Rule::ZeroBubbleH1));
/// assert_eq!(Rule::Interleaved.scheduler(3).stages(2), 6);
/// assert!("zb-h3".parse::<Rule>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rule {
    /// [`GPipe`], `gpipe`.
    GPipe,
    /// [`OneForwardOneBackward`], `1f1b`.
    OneForwardOneBackward,
    /// [`Interleaved`], `interleaved`.
    Interleaved,
    /// [`ZeroBubbleH1`], `zb-h1`.
    ZeroBubbleH1,
    /// [`ZeroBubbleH2`], `zb-h2`.
    ZeroBubbleH2,
    /// [`ZeroBubbleV`], `zb-v`.
    ZeroBubbleV,
    /// [`PipeDream`], `pipedream`.
    PipeDream,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::GPipe,
        Self::OneForwardOneBackward,
        Self::Interleaved,
        Self::ZeroBubbleH1,
        Self::ZeroBubbleH2,
        Self::ZeroBubbleV,
        Self::PipeDream,
    ];

    /// The name.
    ///
    /// ```
    /// # use stovepipe_schedule::Rule;
    /// assert_eq!(Rule::OneForwardOneBackward.name(), "1f1b");
    /// ```
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::Interleaved => "interleaved",
            Self::ZeroBubbleH1 => "zb-h1",
            Self::ZeroBubbleH2 => "zb-h2",
            Self::ZeroBubbleV => "zb-v",
            Self::PipeDream => "pipedream",
        }
    }

    /// The scheduler. `chunks` are the stages of each worker, which matters to [`Interleaved`] alone.
    ///
    /// ```
    /// # use stovepipe_schedule::Rule;
    /// assert_eq!(Rule::ZeroBubbleV.scheduler(2).name(), "ZB-V");
    /// ```
    #[must_use]
    pub fn scheduler(self, chunks: usize) -> Box<dyn Scheduler> {
        match self {
            Self::GPipe => Box::new(GPipe),
            Self::OneForwardOneBackward => Box::new(OneForwardOneBackward),
            Self::Interleaved => Box::new(Interleaved { chunks }),
            Self::ZeroBubbleH1 => Box::new(ZeroBubbleH1),
            Self::ZeroBubbleH2 => Box::new(ZeroBubbleH2),
            Self::ZeroBubbleV => Box::new(ZeroBubbleV),
            Self::PipeDream => Box::new(PipeDream::default()),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl From<Rule> for String {
    fn from(rule: Rule) -> Self {
        rule.name().to_owned()
    }
}

/// The name is none of a [`Rule`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is no schedule: use {names}", names = Rule::ALL.map(Rule::name).join(", "))]
pub struct UnknownRule(String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, UnknownRule> {
        let found = Self::ALL.into_iter().find(|rule| rule.name() == text);
        found.ok_or_else(|| UnknownRule(text.to_owned()))
    }
}

impl TryFrom<String> for Rule {
    type Error = UnknownRule;

    fn try_from(text: String) -> Result<Self, UnknownRule> {
        text.parse()
    }
}
