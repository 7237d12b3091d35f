//! Where to cut a model.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::value::{ValueError, as_text};

/// Where to cut, as flags and configuration files write it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum BalanceSetting {
    /// The cut with the fastest predicted step, if there are several stages.
    Auto,
    /// By the time of each layer, forward and backward.
    Time,
    /// By the memory of each layer.
    Size,
    /// By the number of layers.
    Even,
    /// The layers of each stage.
    Layers(Vec<usize>),
}

impl FromStr for BalanceSetting {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        Ok(match text.to_lowercase().as_str() {
            "auto" => Self::Auto,
            "time" => Self::Time,
            "size" => Self::Size,
            "even" => Self::Even,
            _ => {
                let layers = text.split(',').map(|part| part.trim().parse());
                let layers = layers.collect::<Result<_, _>>();
                Self::Layers(layers.map_err(|_| ValueError::Balance)?)
            }
        })
    }
}

impl fmt::Display for BalanceSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Time => f.write_str("time"),
            Self::Size => f.write_str("size"),
            Self::Even => f.write_str("even"),
            Self::Layers(layers) => {
                let layers: Vec<_> = layers.iter().map(usize::to_string).collect();
                f.write_str(&layers.join(","))
            }
        }
    }
}

as_text!(BalanceSetting);
