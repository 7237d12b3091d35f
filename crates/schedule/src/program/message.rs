//! What passes need of each other.

use crate::{Action, Pass, ProgramError, Schedule, Wiring};

/// What a message carries.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Content {
    /// The output of a stage, for the next.
    Value,
    /// The gradient of a stage's input, for the one before.
    Gradient,
    /// A value that goes to a later stage.
    Skip,
    /// Its gradient.
    SkipGradient,
    /// A side input, from the caller.
    Side,
}

/// Something that a stage gives to another for a micro-batch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// What it carries.
    pub content: Content,
    /// The stage that it comes from; of a side input, the stage itself.
    pub from: usize,
    /// The stage that it goes to.
    pub to: usize,
    /// The micro-batch.
    pub micro_batch: usize,
}

impl Message {
    /// The workers that it goes between.
    pub(super) fn workers(self, schedule: &Schedule) -> (usize, usize) {
        let worker = |stage| schedule.worker_of(stage, self.micro_batch);
        (worker(self.from), worker(self.to))
    }
}

impl Wiring {
    /// Makes sure that skips lead forward between stages that exist.
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

    /// What an action needs of other stages, and from the side.
    pub(super) fn inputs(&self, schedule: &Schedule, action: Action) -> Vec<Message> {
        let of = |content, from| Message {
            content,
            from,
            to: action.stage,
            micro_batch: action.micro_batch,
        };
        let input = schedule.input(action).map(|input| input.stage);
        match action.pass {
            Pass::Forward => {
                let skips = self.skips.iter().filter(|skip| skip.1 == action.stage);
                let side = self.side.contains(&action.stage);
                (input.map(|stage| of(Content::Value, stage)).into_iter())
                    .chain(skips.map(|skip| of(Content::Skip, skip.0)))
                    .chain(side.then_some(of(Content::Side, action.stage)))
                    .collect()
            }
            Pass::Backward | Pass::InputGradient => {
                let skips = self.skips.iter().filter(|skip| skip.0 == action.stage);
                (input.map(|stage| of(Content::Gradient, stage)).into_iter())
                    .chain(skips.map(|skip| of(Content::SkipGradient, skip.1)))
                    .collect()
            }
            Pass::WeightGradient | Pass::Update => Vec::new(),
        }
    }

    /// What an action gives to other stages.
    pub(super) fn outputs(&self, schedule: &Schedule, action: Action) -> Vec<Message> {
        let of = |content, to| Message {
            content,
            from: action.stage,
            to,
            micro_batch: action.micro_batch,
        };
        let output = schedule.output(action).map(|output| output.stage);
        match action.pass {
            Pass::Forward => {
                let skips = self.skips.iter().filter(|skip| skip.0 == action.stage);
                (output.map(|stage| of(Content::Value, stage)).into_iter())
                    .chain(skips.map(|skip| of(Content::Skip, skip.1)))
                    .collect()
            }
            Pass::Backward | Pass::InputGradient => {
                let skips = self.skips.iter().filter(|skip| skip.1 == action.stage);
                (output.map(|stage| of(Content::Gradient, stage)).into_iter())
                    .chain(skips.map(|skip| of(Content::SkipGradient, skip.0)))
                    .collect()
            }
            Pass::WeightGradient | Pass::Update => Vec::new(),
        }
    }
}
