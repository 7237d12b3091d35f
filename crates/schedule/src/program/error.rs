//! Why a program cannot run.

use thiserror::Error;

use super::{Instruction, Message};
use crate::{ScheduleError, error::first_few};

/// Why a program cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ProgramError {
    /// Without its communication it is not a schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A skip leads backward, or beyond the last stage.
    #[error("a skip from stage {from} to {to} does not lead to a later one of {stages} stages")]
    Skip {
        from: usize,
        to: usize,
        stages: usize,
    },
    /// A side input of a stage that does not exist.
    #[error("there is a side input for stage {stage}, but there are {stages} stages")]
    Side { stage: usize, stages: usize },
    /// A pass comes before its input: a value, a skip, a side input or a gradient.
    #[error("worker {worker} has {instruction} before {}", Instruction::Receive(*needs))]
    Absent {
        worker: usize,
        instruction: Instruction,
        needs: Message,
    },
    /// A worker sends what it did not compute, already sent, or needs for its own stage.
    #[error("worker {worker} has {instruction}, but does not have this message to send")]
    NothingToSend {
        worker: usize,
        instruction: Instruction,
    },
    /// Workers wait for each other forever, if sends wait for their receiver.
    #[error("deadlock: {}", first_few(waiting.iter().map(|(worker, at)| stuck(*worker, *at))))]
    Deadlock { waiting: Vec<(usize, Instruction)> },
}

fn stuck(worker: usize, at: Instruction) -> String {
    let needs = match at {
        Instruction::Send(message) => Instruction::Receive(message),
        Instruction::Receive(message) => Instruction::Send(message),
        Instruction::Compute(_) => return format!("worker {worker} is stuck at {at}"),
    };
    format!("worker {worker} waits for {needs}")
}
