//! Schedules with their communication: what workers send each other between their passes.
//!
//! Messages follow from the schedule and from the wiring of the model: its skips and side inputs.
//! [`Program::new`] adds them. [`Program::check`] simulates the result with sends that wait for their
//! receiver, as collective libraries without buffers do.

mod check;
mod instruction;
mod wiring;

use std::{fmt, str::FromStr};

use thiserror::Error;

use crate::{
    ParseActionError, Schedule, ScheduleError,
    action::{words, write_lines},
    count,
    error::first_few,
};

pub use instruction::{Content, Instruction, Message};
pub use wiring::Wiring;

/// For each worker, its passes with what it sends and receives between them.
///
/// As text it has a line for each worker, in the notation of `torch.distributed.pipelining`: in
/// `0SEND_F1` stage 0 sends the value of micro-batch 1 to the next stage, which receives it in
/// `1RECV_F1`. The gradient comes back in `1SEND_B1` and `0RECV_B1`. Skips also name the other stage, as
/// in `0SEND_F1>2` and `2RECV_F1<0`. A side input is `2RECV_SIDE1`.
///
/// ```
/// use stovepipe_schedule::{GPipe, OneForwardOneBackward, Program, Scheduler, Wiring};
///
/// let schedule = GPipe.schedule(2, 1)?;
/// let program = Program::new(&schedule, &Wiring::default())?;
/// let text = "0F0 0SEND_F0 0RECV_B0 0B0\n1RECV_F0 1F0 1B0 1SEND_B0";
/// assert_eq!(program.to_string(), text);
/// assert_eq!(text.parse(), Ok(program.clone()));
/// assert_eq!(program.workers[0].len(), 4);
/// assert_eq!(program.schedule()?, schedule);
///
/// let wiring = Wiring { skips: vec![(0, 2)], side: vec![1] };
/// Program::new(&OneForwardOneBackward.schedule(3, 4)?, &wiring)?.check(&wiring)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The instructions of each worker, in order. [`Program::check`] checks them.
    pub workers: Vec<Vec<Instruction>>,
}

impl Program {
    /// Adds communication to a schedule.
    ///
    /// A message is sent and received right after the pass that made it, if all passes take one clock
    /// cycle. All workers have the messages of a cycle in the same order, so there is no deadlock even
    /// if sends wait for their receiver.
    ///
    /// # Errors
    ///
    /// If a skip does not lead to a later stage, or a stage does not exist.
    pub fn new(schedule: &Schedule, wiring: &Wiring) -> Result<Self, ProgramError> {
        wiring.check(schedule.stages())?;
        let (cycles, length) = schedule.cycles();
        let mut actions_of = vec![Vec::new(); length];
        for (worker, actions) in schedule.workers().iter().enumerate() {
            for (&action, &cycle) in actions.iter().zip(&cycles[worker]) {
                actions_of[cycle].push((worker, action));
            }
        }
        let mut workers = vec![Vec::new(); cycles.len()];
        for actions in actions_of {
            for &(worker, action) in &actions {
                let mut inputs = wiring.messages(schedule, action, false);
                inputs.retain(|message| message.content == Content::Side);
                workers[worker].extend(inputs.into_iter().map(Instruction::Receive));
                workers[worker].push(Instruction::Compute(action));
            }
            for (_, action) in actions {
                for message in wiring.messages(schedule, action, true) {
                    let (sender, receiver) = message.workers(schedule);
                    if sender != receiver {
                        workers[sender].push(Instruction::Send(message));
                        workers[receiver].push(Instruction::Receive(message));
                    }
                }
            }
        }
        Ok(Self { workers })
    }

    /// The schedule without its communication.
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::new`].
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        let computed = |instruction: &Instruction| match *instruction {
            Instruction::Compute(action) => Some(action),
            Instruction::Send(_) | Instruction::Receive(_) => None,
        };
        let workers = self.workers.iter();
        let actions = workers.map(|worker| worker.iter().filter_map(computed).collect());
        Schedule::new(actions.collect())
    }
}

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_lines(formatter, &self.workers)
    }
}

impl FromStr for Program {
    type Err = ParseActionError;

    fn from_str(text: &str) -> Result<Self, ParseActionError> {
        let line = |line| words(line).map(str::parse).collect();
        let workers = text.lines().map(line).collect::<Result<_, _>>()?;
        Ok(Self { workers })
    }
}

/// Why a program cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum ProgramError {
    /// Without its communication it is not a schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A skip leads backward, or beyond the last stage.
    #[error("a skip from stage {from} to {to} does not lead to a later one of {}", count(*stages, "stage"))]
    Skip {
        from: usize,
        to: usize,
        stages: usize,
    },
    /// A side input of a stage that does not exist.
    #[error("there is a side input for stage {stage} of {}", count(*stages, "stage"))]
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
