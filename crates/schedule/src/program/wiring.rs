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

    /// What an action needs from other stages and from the side.
    pub(super) fn inputs(&self, schedule: &Schedule, action: Action) -> Vec<Message> {
        let neighbour = schedule.input(action).map(|input| input.stage);
        let mut from = self.others(action, neighbour, action.pass.sends_gradient());
        if action.pass == Pass::Forward && self.side.contains(&action.stage) {
            from.push((Content::Side, action.stage));
        }
        let message = |(content, from)| Message {
            content,
            from,
            to: action.stage,
            micro_batch: action.micro_batch,
        };
        from.into_iter().map(message).collect()
    }

    /// What an action sends to other stages.
    pub(super) fn outputs(&self, schedule: &Schedule, action: Action) -> Vec<Message> {
        let neighbour = schedule.output(action).map(|output| output.stage);
        let to = self.others(action, neighbour, action.pass == Pass::Forward);
        let message = |(content, to)| Message {
            content,
            from: action.stage,
            to,
            micro_batch: action.micro_batch,
        };
        to.into_iter().map(message).collect()
    }

    /// The stages at the other ends of an action's messages: its neighbour, then those of skips to
    /// later stages, or else of skips from earlier ones.
    fn others(
        &self,
        action: Action,
        neighbour: Option<usize>,
        later: bool,
    ) -> Vec<(Content, usize)> {
        let (value, skip) = match action.pass {
            Pass::Forward => (Content::Value, Content::Skip),
            Pass::Backward | Pass::InputGradient => (Content::Gradient, Content::SkipGradient),
            Pass::WeightGradient | Pass::Update => return Vec::new(),
        };
        let ends =
            (self.skips.iter()).map(|&(from, to)| if later { (from, to) } else { (to, from) });
        let skips = ends.filter(|(own, _)| *own == action.stage);
        let neighbour = neighbour.map(|stage| (value, stage)).into_iter();
        neighbour
            .chain(skips.map(|(_, other)| (skip, other)))
            .collect()
    }
}
