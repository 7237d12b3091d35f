//! The smallest unit of a schedule: what one stage does for one micro-batch.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// What a stage does for a micro-batch.
///
/// A backward pass is whole ([`Backward`](Self::Backward)) or in two halves: first the gradient of the
/// input, which the previous stage waits for, then the gradients of the weights.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pass {
    /// `F`: computes activations, which go to the next stage.
    Forward,
    /// `B`: computes the gradients of the input, which go to the previous stage, and of the weights.
    Backward,
    /// `I`: the half of a backward pass that computes the gradient of the input.
    InputGradient,
    /// `W`: the half of a backward pass that computes the gradients of the weights.
    WeightGradient,
    /// `U`: changes the weights by the gradients of all micro-batches since the previous update, up to
    /// and including this one. Only in asynchronous schedules. Every replica of a stage lists it, and
    /// they wait for each other there: their gradients are added.
    Update,
}

impl Pass {
    /// All passes, in the order of a micro-batch.
    pub const ALL: [Self; 5] = [
        Self::Forward,
        Self::Backward,
        Self::InputGradient,
        Self::WeightGradient,
        Self::Update,
    ];

    /// The letter of `torch.distributed.pipelining`, plus `U`.
    ///
    /// ```
    /// use stovepipe_schedule::Pass;
    ///
    /// assert_eq!(Pass::ALL.map(Pass::letter), ['F', 'B', 'I', 'W', 'U']);
    /// ```
    #[must_use]
    pub const fn letter(self) -> char {
        match self {
            Self::Forward => 'F',
            Self::Backward => 'B',
            Self::InputGradient => 'I',
            Self::WeightGradient => 'W',
            Self::Update => 'U',
        }
    }

    /// Whether the previous stage waits for its result.
    pub const fn sends_gradient(self) -> bool {
        matches!(self, Self::Backward | Self::InputGradient)
    }

    /// Whether it computes the gradients of weights.
    pub const fn computes_weight_gradients(self) -> bool {
        matches!(self, Self::Backward | Self::WeightGradient)
    }
}

/// What one stage does for one micro-batch.
///
/// Its text is that of `torch.distributed.pipelining`: the stage, a letter, the micro-batch.
///
/// ```
/// use stovepipe_schedule::{Action, Pass};
///
/// assert_eq!(Action::forward(2, 3).to_string(), "2F3");
/// assert_eq!(Action::backward(2, 3).pass, Pass::Backward);
/// assert_eq!(Action::new(2, Pass::InputGradient, 3).to_string(), "2I3");
/// assert_eq!("1W2".parse(), Ok(Action::new(1, Pass::WeightGradient, 2)));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Action {
    /// The stage, counted from 0 at the network's input.
    pub stage: usize,
    /// What it does.
    pub pass: Pass,
    /// The micro-batch, counted from 0.
    pub micro_batch: usize,
}

impl Action {
    /// A pass of a micro-batch through a stage.
    #[must_use]
    pub const fn new(stage: usize, pass: Pass, micro_batch: usize) -> Self {
        Self {
            stage,
            pass,
            micro_batch,
        }
    }

    /// The forward pass of a micro-batch through a stage.
    #[must_use]
    pub const fn forward(stage: usize, micro_batch: usize) -> Self {
        Self::new(stage, Pass::Forward, micro_batch)
    }

    /// The whole backward pass of a micro-batch through a stage.
    #[must_use]
    pub const fn backward(stage: usize, micro_batch: usize) -> Self {
        Self::new(stage, Pass::Backward, micro_batch)
    }

    /// The same stage and micro-batch, another pass.
    pub(crate) const fn with(self, pass: Pass) -> Self {
        Self { pass, ..self }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = self.pass.letter();
        write!(formatter, "{}{letter}{}", self.stage, self.micro_batch)
    }
}

/// A text that is not an [`Action`].
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is not an action: write a stage, F, B, I, W or U, and a micro-batch, such as 2F3")]
pub struct ParseActionError(pub String);

impl FromStr for Action {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| ParseActionError(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<Action> {
    let (letter_at, letter) = text.char_indices().find(|(_, c)| !c.is_ascii_digit())?;
    let pass = Pass::ALL.into_iter().find(|pass| pass.letter() == letter)?;
    let (stage, micro_batch) = (number(&text[..letter_at])?, number(&text[letter_at + 1..])?);
    Some(Action::new(stage, pass, micro_batch))
}

/// A line for each worker.
pub(crate) fn write_lines(
    formatter: &mut fmt::Formatter<'_>,
    workers: &[Vec<impl fmt::Display>],
) -> fmt::Result {
    for (worker, words) in workers.iter().enumerate() {
        for (index, word) in words.iter().enumerate() {
            let between = match (worker, index) {
                (0, 0) => "",
                (_, 0) => "\n",
                _ => " ",
            };
            write!(formatter, "{between}{word}")?;
        }
    }
    Ok(())
}

/// The words of a line of text, which spaces or commas separate.
pub(crate) fn words(line: &str) -> impl Iterator<Item = &str> {
    let words = line.split(|c: char| c == ',' || c.is_whitespace());
    words.filter(|word| !word.is_empty())
}

/// Digits only: the standard library's parser would accept `+3`.
pub(crate) fn number(digits: &str) -> Option<usize> {
    let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]

    use super::*;

    #[test]
    fn reads_the_notation() {
        let check = |text: &str, expected| assert_eq!(text.parse().ok(), expected, "{text:?}");
        check("0F0", Some(Action::forward(0, 0)));
        check("12B345", Some(Action::backward(12, 345)));
        check("1I2", Some(Action::new(1, Pass::InputGradient, 2)));
        check("1W2", Some(Action::new(1, Pass::WeightGradient, 2)));
        check("1U2", Some(Action::new(1, Pass::Update, 2)));
        let bad =
            "|F|B|1F|F1|1X2|1f2|-1F2|1F-2|+1F2|1F+2| 1F2|1F2 |1F2B3|1é2|1F²|99999999999999999999F0";
        bad.split('|').for_each(|bad| check(bad, None));
    }

    #[test]
    fn a_parse_error_repeats_the_text() {
        let error = "bad".parse::<Action>().unwrap_err();
        assert_eq!(error.0, "bad");
        assert!(error.to_string().starts_with("`bad` is not an action"));
    }
}
