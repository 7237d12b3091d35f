//! The smallest unit of a schedule: one pass of one micro-batch through one stage.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The direction in which a micro-batch crosses a stage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pass {
    /// Activations go to the next stage.
    Forward,
    /// Gradients go to the previous stage.
    Backward,
}

/// One pass of one micro-batch through one stage.
///
/// It is written as in `torch.distributed.pipelining`: the stage, `F` or `B`, the micro-batch.
///
/// ```
/// use stovepipe_schedule::Action;
///
/// assert_eq!(Action::forward(2, 3).to_string(), "2F3");
/// assert_eq!("0B1".parse(), Ok(Action::backward(0, 1)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Action {
    /// The stage, counted from 0 at the network's input.
    pub stage: usize,
    /// Forward or backward.
    pub pass: Pass,
    /// The micro-batch, counted from 0.
    pub micro_batch: usize,
}

impl Action {
    /// The forward pass of a micro-batch through a stage.
    ///
    /// ```
    /// # use stovepipe_schedule::{Action, Pass};
    /// assert_eq!(Action::forward(2, 3).pass, Pass::Forward);
    /// ```
    #[must_use]
    pub const fn forward(stage: usize, micro_batch: usize) -> Self {
        Self {
            stage,
            pass: Pass::Forward,
            micro_batch,
        }
    }

    /// The backward pass of a micro-batch through a stage.
    ///
    /// ```
    /// # use stovepipe_schedule::{Action, Pass};
    /// assert_eq!(Action::backward(2, 3).pass, Pass::Backward);
    /// ```
    #[must_use]
    pub const fn backward(stage: usize, micro_batch: usize) -> Self {
        Self {
            stage,
            pass: Pass::Backward,
            micro_batch,
        }
    }

    /// The action of the neighbouring stage whose result this one receives, if there is one.
    ///
    /// The first stage's forward reads the data set, and the last stage's backward starts at the
    /// loss: neither receives anything. `stages` is the number of stages of the pipeline.
    ///
    /// ```
    /// # use stovepipe_schedule::Action;
    /// assert_eq!(Action::forward(1, 5).input(3), Some(Action::forward(0, 5)));
    /// assert_eq!(Action::backward(1, 5).input(3), Some(Action::backward(2, 5)));
    /// assert_eq!(Action::backward(2, 5).input(3), None);
    /// ```
    #[must_use]
    pub fn input(self, stages: usize) -> Option<Self> {
        match self.pass {
            Pass::Forward => self.below(),
            Pass::Backward => self.above(stages),
        }
    }

    /// The action of the neighbouring stage that receives this one's result, if there is one.
    ///
    /// The inverse of [`Action::input`].
    ///
    /// ```
    /// # use stovepipe_schedule::Action;
    /// assert_eq!(Action::forward(1, 5).output(3), Some(Action::forward(2, 5)));
    /// assert_eq!(Action::backward(0, 5).output(3), None);
    /// ```
    #[must_use]
    pub fn output(self, stages: usize) -> Option<Self> {
        match self.pass {
            Pass::Forward => self.above(stages),
            Pass::Backward => self.below(),
        }
    }

    fn below(self) -> Option<Self> {
        let stage = self.stage.checked_sub(1)?;
        Some(Self { stage, ..self })
    }

    fn above(self, stages: usize) -> Option<Self> {
        let stage = self.stage.checked_add(1).filter(|&next| next < stages)?;
        Some(Self { stage, ..self })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.pass {
            Pass::Forward => 'F',
            Pass::Backward => 'B',
        };
        write!(formatter, "{}{letter}{}", self.stage, self.micro_batch)
    }
}

/// A text that is no [`Action`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{text}` is no action: write a stage, F or B, and a micro-batch, such as 2F3")]
pub struct ParseActionError {
    /// The text as it was found.
    pub text: String,
}

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseActionError {
            text: text.to_owned(),
        })
    }
}

fn parse(text: &str) -> Option<Action> {
    let (letter_at, letter) = text.char_indices().find(|(_, c)| !c.is_ascii_digit())?;
    let pass = match letter {
        'F' => Pass::Forward,
        'B' => Pass::Backward,
        _ => return None,
    };
    Some(Action {
        stage: number(&text[..letter_at])?,
        pass,
        micro_batch: number(&text[letter_at + 1..])?,
    })
}

/// Digits only: the standard library's parser would let `+3` pass.
fn number(digits: &str) -> Option<usize> {
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    fn check(text: &str, expected: Option<Action>) {
        assert_eq!(text.parse().ok(), expected, "{text:?}");
    }

    #[test]
    fn reads_the_notation() {
        check("0F0", Some(Action::forward(0, 0)));
        check("12B345", Some(Action::backward(12, 345)));
        for bad in [
            "",
            "F",
            "B",
            "1F",
            "F1",
            "1X2",
            "1f2",
            "-1F2",
            "1F-2",
            "+1F2",
            "1F+2",
            " 1F2",
            "1F2 ",
            "1F2B3",
            "1é2",
            "1F²",
            "99999999999999999999F0",
        ] {
            check(bad, None);
        }
    }

    #[test]
    fn a_parse_error_repeats_the_text() {
        let error = "bad".parse::<Action>().unwrap_err();
        assert_eq!(error.text, "bad");
        assert!(error.to_string().starts_with("`bad` is no action"));
    }

    #[test]
    fn output_is_the_inverse_of_input() {
        let stages = 4;
        for action in (0..stages).flat_map(|s| [Action::forward(s, 7), Action::backward(s, 7)]) {
            let back = action.input(stages).map(|input| input.output(stages));
            assert!(back.is_none_or(|found| found == Some(action)), "{action}");
        }
    }
}
