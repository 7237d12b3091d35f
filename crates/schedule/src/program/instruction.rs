//! What a worker of a program does, and the messages that it sends and receives.

use std::{fmt, str::FromStr};

use crate::{Action, ParseActionError, Schedule, action::number};

/// What is in a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// The output of a stage, for the next stage.
    Value,
    /// The gradient of a stage's input, for the previous stage.
    Gradient,
    /// A value for a later stage.
    Skip,
    /// The gradient of a skip.
    SkipGradient,
    /// A side input, from the caller.
    Side,
}

/// A message between stages for a micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// What is in it.
    pub content: Content,
    /// The stage that sends it. For a side input, the stage itself.
    pub from: usize,
    /// The stage that receives it.
    pub to: usize,
    /// The micro-batch.
    pub micro_batch: usize,
}

impl Message {
    /// The workers that send and receive it.
    pub(super) fn workers(self, schedule: &Schedule) -> (usize, usize) {
        let worker = |stage| schedule.worker_of(stage, self.micro_batch);
        (worker(self.from), worker(self.to))
    }
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Instruction {
    /// Runs a pass.
    Compute(Action),
    /// Sends a message to another worker.
    Send(Message),
    /// Receives a message from another worker, or a side input.
    Receive(Message),
}

impl fmt::Display for Instruction {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (verb, message) = match self {
            Self::Compute(action) => return action.fmt(formatter),
            Self::Send(message) => ("SEND", message),
            Self::Receive(message) => ("RECV", message),
        };
        let letter = match message.content {
            Content::Value | Content::Skip => "F",
            Content::Gradient | Content::SkipGradient => "B",
            Content::Side => "SIDE",
        };
        let (own, arrow, other) = match self {
            Self::Send(_) => (message.from, '>', message.to),
            _ => (message.to, '<', message.from),
        };
        write!(formatter, "{own}{verb}_{letter}{}", message.micro_batch)?;
        match message.content {
            Content::Skip | Content::SkipGradient => write!(formatter, "{arrow}{other}"),
            _ => Ok(()),
        }
    }
}

impl FromStr for Instruction {
    type Err = ParseActionError;

    fn from_str(word: &str) -> Result<Self, ParseActionError> {
        if !word.contains('_') {
            return word.parse().map(Self::Compute);
        }
        parse(word).ok_or_else(|| ParseActionError(word.to_owned()))
    }
}

/// Reads a send or a receipt.
fn parse(word: &str) -> Option<Instruction> {
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
    let neighbour = if goes_up == is_send {
        own.checked_add(1)
    } else {
        own.checked_sub(1)
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
    Some(if is_send {
        Instruction::Send(message)
    } else {
        Instruction::Receive(message)
    })
}
