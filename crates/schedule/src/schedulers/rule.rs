//! Rules by name.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Definition, RuleOptions, Scheduler};
use crate::{Schedule, ScheduleError};

/// Makes [`Rule`] from one list: the enum, `ALL` and the lookup cannot differ.
macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident => $definition:expr,)+) => {
        /// A [`Scheduler`] of this crate by the name that flags and files use.
        ///
        /// ```
        /// use stovepipe_schedule::{Rule, RuleOptions, Scheduler};
        ///
        /// assert_eq!("zb-h1".parse(), Ok(Rule::ZeroBubbleH1));
        /// assert_eq!("Interleaved1F1B".parse(), Ok(Rule::Interleaved));
        /// assert_eq!("pipedream-flush".parse(), Ok(Rule::OneForwardOneBackward));
        /// assert!("zb-h3".parse::<Rule>().is_err());
        /// assert_eq!(Rule::OneForwardOneBackward.name(), "1f1b");
        /// assert!(Rule::ZeroBubbleH1.needs_halves() && !Rule::ZeroBubbleV.needs_halves());
        /// assert!(Rule::ALL.contains(&Rule::PipeDream) && !Rule::PipeDream.is_synchronous());
        ///
        /// let scheduler = Rule::Interleaved.scheduler(&RuleOptions::with_chunks(3));
        /// assert_eq!(scheduler.name(), "interleaved 1F1B");
        /// assert_eq!((scheduler.stages(2), Rule::Interleaved.stages(2)), (6, 4));
        /// ```
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum Rule {
            $($(#[$doc])* $rule,)+
        }

        impl Rule {
            /// All rules.
            pub const ALL: [Self; [$(Self::$rule),+].len()] = [$(Self::$rule),+];

            const fn definition(self) -> Definition {
                match self {
                    $(Self::$rule => $definition,)+
                }
            }
        }
    };
}

rules! {
    /// [`GPipe`](crate::GPipe), `gpipe`.
    GPipe => super::gpipe::RULE,
    /// [`OneForwardOneBackward`](crate::OneForwardOneBackward), `1f1b` or `pipedream-flush`; with
    /// replicas [`RoundRobin`](crate::RoundRobin).
    OneForwardOneBackward => super::one_forward_one_backward::RULE,
    /// [`Interleaved`](crate::Interleaved), `interleaved`.
    Interleaved => super::interleaved::RULE,
    /// [`ZeroBubbleH1`](crate::ZeroBubbleH1), `zb-h1`.
    ZeroBubbleH1 => super::zero_bubble::H1,
    /// [`ZeroBubbleH2`](crate::ZeroBubbleH2), `zb-h2`.
    ZeroBubbleH2 => super::zero_bubble::H2,
    /// [`ZeroBubbleV`](crate::ZeroBubbleV), `zb-v`.
    ZeroBubbleV => super::zero_bubble_v::RULE,
    /// [`VMin`](crate::VMin), `v-min`.
    VMin => super::controllable_memory::V_MIN,
    /// [`VHalf`](crate::VHalf), `v-half`.
    VHalf => super::controllable_memory::V_HALF,
    /// [`VOneForwardOneBackward`](crate::VOneForwardOneBackward), `v-1f1b`.
    VOneForwardOneBackward => super::controllable_memory::V_1F1B,
    /// [`PipeDream`](crate::PipeDream), `pipedream`.
    PipeDream => super::pipedream::RULE,
}

impl Rule {
    /// The rules that give the result of one device.
    pub fn synchronous() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|rule| rule.is_synchronous())
    }

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// Whether weights change only between steps, so that the result is that of one device.
    #[must_use]
    pub const fn is_synchronous(self) -> bool {
        self.definition().synchronous
    }

    /// Whether the rule reads [`RuleOptions::chunks`].
    #[must_use]
    pub const fn takes_chunks(self) -> bool {
        self.definition().takes_chunks
    }

    /// Whether the rule reads [`RuleOptions::replicas`].
    #[must_use]
    pub const fn takes_replicas(self) -> bool {
        self.definition().takes_replicas
    }

    /// Whether the rule is 1F1B but for backward passes in halves: first the gradients of inputs, later those
    /// of weights. Where a model cannot separate them, it gains nothing. (Rules with two stages a worker have
    /// halves, too, and gain by their places.)
    #[must_use]
    pub const fn needs_halves(self) -> bool {
        self.definition().needs_halves
    }

    /// The scheduler. It ignores options that the rule does not take.
    #[must_use]
    pub fn scheduler(self, options: &RuleOptions) -> Box<dyn Scheduler> {
        (self.definition().scheduler)(options)
    }
}

/// With the default options, by the name that flags and files use.
impl Scheduler for Rule {
    fn name(&self) -> &str {
        self.definition().name
    }

    fn stages(&self, workers: usize) -> usize {
        self.scheduler(&RuleOptions::default()).stages(workers)
    }

    fn schedule(&self, stages: usize, micro_batches: usize) -> Result<Schedule, ScheduleError> {
        let scheduler = self.scheduler(&RuleOptions::default());
        scheduler.schedule(stages, micro_batches)
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

/// Whether a text is a name, in any case and with or without spaces and hyphens.
///
/// ```
/// use stovepipe_schedule::is_name;
///
/// assert!(is_name("ZBH1", "zb-h1") && is_name("except_last", "except-last"));
/// assert!(!is_name("zb-h2", "zb-h1"));
/// ```
#[must_use]
pub fn is_name(text: &str, name: &str) -> bool {
    let letters = |text: &str| text.to_lowercase().replace([' ', '-', '_'], "");
    letters(text) == letters(name)
}

/// No [`Rule`] has this name.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not a schedule: use {names}", names = Rule::ALL.map(Rule::name).join(", "))]
pub struct UnknownRule(String);

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(text: &str) -> Result<Self, UnknownRule> {
        let is_named = |rule: &Self| {
            let scheduler = rule.scheduler(&RuleOptions::default());
            let aliases = rule.definition().aliases.iter();
            let mut names = aliases.copied().chain([rule.name(), scheduler.name()]);
            names.any(|name| is_name(text, name))
        };
        let found = Self::ALL.into_iter().find(is_named);
        found.ok_or_else(|| UnknownRule(text.to_owned()))
    }
}

impl TryFrom<String> for Rule {
    type Error = UnknownRule;

    fn try_from(text: String) -> Result<Self, UnknownRule> {
        text.parse()
    }
}
