//! Learning rates of some parameters.

use std::{fmt, str::FromStr};

use glob::Pattern;
use serde::{Deserialize, Serialize};

use super::value::{ValueError, as_text};

/// The learning rate of some parameters as a share of that of their layer, as flags and configuration files write it:
/// `head.*=10`, or `*.bias=0`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct RateSetting {
    /// The names of the parameters, with `*` for any part.
    pub names: Pattern,
    /// Their share: 2 for twice the rate, 0 to leave them as they are.
    pub share: f64,
}

impl FromStr for RateSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let wrong = || ValueError::Rate(text.to_owned());
        let (names, share) = text.rsplit_once('=').ok_or_else(wrong)?;
        let names = Pattern::new(names).map_err(|_| wrong())?;
        let share = share.parse().map_err(|_| wrong())?;
        Ok(Self { names, share })
    }
}

impl fmt::Display for RateSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.names, self.share)
    }
}

as_text!(RateSetting);
