//! Steps as words.

use std::{fmt, str::FromStr};

use crate::{Content, Message, ParseActionError, Program, Step, action::number};

impl fmt::Display for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, message) = match self {
            Self::Compute(action) => return action.fmt(formatter),
            Self::Send(message) => ("SEND", message),
            Self::Receive(message) => ("RECV", message),
        };
        let Message {
            content,
            from,
            to,
            micro_batch,
        } = message;
        let letter = match content {
            Content::Value | Content::Skip => "F",
            Content::Gradient | Content::SkipGradient => "B",
            Content::Side => "SIDE",
        };
        let (own, arrow, other) = match self {
            Self::Send(_) => (from, '>', to),
            _ => (to, '<', from),
        };
        write!(formatter, "{own}{verb}_{letter}{micro_batch}")?;
        match content {
            Content::Skip | Content::SkipGradient => write!(formatter, "{arrow}{other}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Step {
    type Err = ParseActionError;

    fn from_str(word: &str) -> Result<Self, ParseActionError> {
        match word.contains('_') {
            false => word.parse().map(Self::Compute),
            true => parse(word).ok_or_else(|| ParseActionError {
                text: word.to_owned(),
            }),
        }
    }
}

/// Reads a send or a receipt.
fn parse(word: &str) -> Option<Step> {
    let verb_at = word.find(|c: char| !c.is_ascii_digit())?;
    let own = number(&word[..verb_at])?;
    let (verb, rest) = word[verb_at..].split_once('_')?;
    let is_send = match verb {
        "SEND" => true,
        "RECV" => false,
        _ => return None,
    };
    let number_at = rest.find(|c: char| c.is_ascii_digit())?;
    let (letters, rest) = rest.split_at(number_at);
    let arrow = if is_send { '>' } else { '<' };
    let (micro_batch, other) = match rest.split_once(arrow) {
        Some((micro_batch, other)) => (number(micro_batch)?, Some(number(other)?)),
        None => (number(rest)?, None),
    };
    // Values go up and gradients down, seen from the sender.
    let goes_up = letters == "F";
    let neighbour = match goes_up == is_send {
        true => own.checked_add(1),
        false => own.checked_sub(1),
    };
    let (content, other) = match (letters, other) {
        ("F", None) => (Content::Value, neighbour?),
        ("B", None) => (Content::Gradient, neighbour?),
        ("F", Some(other)) => (Content::Skip, other),
        ("B", Some(other)) => (Content::SkipGradient, other),
        ("SIDE", None) if !is_send => (Content::Side, own),
        _ => return None,
    };
    let (from, to) = if is_send { (own, other) } else { (other, own) };
    let message = Message {
        content,
        from,
        to,
        micro_batch,
    };
    Some(match is_send {
        true => Step::Send(message),
        false => Step::Receive(message),
    })
}

impl FromStr for Program {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, ParseActionError> {
        let line = |line: &str| {
            let words = line.split(|c: char| c == ',' || c.is_whitespace());
            words
                .filter(|word| !word.is_empty())
                .map(str::parse)
                .collect()
        };
        Ok(Self::of_steps(
            text.lines().map(line).collect::<Result<_, _>>()?,
        ))
    }
}
