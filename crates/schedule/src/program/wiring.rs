//! Which messages passes need and send.

use super::{Content, Message, ProgramError};
use crate::{Action, Pass, Schedule};

/// What a model's stages exchange, other than the values between neighbours.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wiring {
    /// Pairs of stages: the first sends a value directly to the second, a later one.
    pub skips: Vec<(usize, usize)>,
    /// Stages that read a side input with each micro-batch.
    pub side: Vec<usize>,
}

impl Wiring {
    /// Checks that skips lead forward between stages that exist.
    pub(super) fn check(&self, stages: usize) -> Result<(), ProgramError> {
        for &(from, to) in &self.skips {
            if from >= to || to >= stages {
                return Err(ProgramError::Skip { from, to, stages });
            }
        }
        match self.side.iter().find(|&&stage| stage >= stages) {
            Some(&stage) => Err(ProgramError::Side { stage, stages }),
            None => Ok(()),
        }
    }

    /// What an action sends to other stages, or needs from them and from the side: the message of its
    /// neighbour, then skips.
    pub(super) fn messages(&self, schedule: &Schedule, action: Action, sent: bool) -> Vec<Message> {
        let Action {
            stage,
            pass,
            micro_batch,
        } = action;
        let (value, skip) = match pass {
            Pass::Forward => (Content::Value, Content::Skip),
            Pass::Backward | Pass::InputGradient => (Content::Gradient, Content::SkipGradient),
            Pass::WeightGradient | Pass::Update => return Vec::new(),
        };
        let is_forward = pass == Pass::Forward;
        let neighbour = if sent {
            schedule.output(action)
        } else {
            schedule.input(action)
        };
        let mut others: Vec<_> = neighbour.map(|it| (value, it.stage)).into_iter().collect();
        for &(from, to) in &self.skips {
            // Values go to later stages, their gradients come back.
            let (own, other) = if sent == is_forward {
                (from, to)
            } else {
                (to, from)
            };
            if own == stage {
                others.push((skip, other));
            }
        }
        if is_forward && !sent && self.side.contains(&stage) {
            others.push((Content::Side, stage));
        }
        let message = |(content, other)| {
            let (from, to) = if sent { (stage, other) } else { (other, stage) };
            Message {
                content,
                from,
                to,
                micro_batch,
            }
        };
        others.into_iter().map(message).collect()
    }
}
