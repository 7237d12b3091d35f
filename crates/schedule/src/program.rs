//! Schedules with their communication: what workers send each other between their passes.
//!
//! Messages follow from the schedule and from the wiring of the model: its skips and side inputs.
//! [`Program::new`] adds them. [`Program::check`] simulates the result with sends that wait for their
//! receiver, as collective libraries without buffers do.

mod check;
mod error;
mod instruction;
mod wiring;

use std::{fmt, str::FromStr};

use crate::{
    Action, ParseActionError, Schedule, ScheduleError,
    action::{words, write_lines},
    grid::grid,
};

pub use error::ProgramError;
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
/// assert_eq!(program.workers()[0].len(), 4);
/// assert_eq!(program.schedule()?, schedule);
///
/// let wiring = Wiring { skips: vec![(0, 2)], side: vec![1] };
/// Program::new(&OneForwardOneBackward.schedule(3, 4)?, &wiring)?.check(&wiring)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    workers: Vec<Vec<Instruction>>,
}

impl Program {
    /// A program of these instructions, not yet [checked](Program::check).
    #[must_use]
    pub fn of_instructions(workers: Vec<Vec<Instruction>>) -> Self {
        Self { workers }
    }

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
        let grid = grid(schedule);
        let mut workers = vec![Vec::new(); grid.len()];
        for cycle in 0..grid.first().map_or(0, Vec::len) {
            let actions: Vec<_> = grid.iter().map(|row| row[cycle]).collect();
            for (worker, &action) in actions.iter().enumerate() {
                let Some(action) = action else { continue };
                let side = wiring.inputs(schedule, action).into_iter();
                let side = side.filter(|message| message.content == Content::Side);
                workers[worker].extend(side.map(Instruction::Receive));
                workers[worker].push(Instruction::Compute(action));
            }
            for action in actions.into_iter().flatten() {
                for message in wiring.outputs(schedule, action) {
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

    /// The instructions of each worker, in order.
    #[must_use]
    pub fn workers(&self) -> &[Vec<Instruction>] {
        &self.workers
    }

    /// The schedule without its communication.
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::new`].
    pub fn schedule(&self) -> Result<Schedule, ScheduleError> {
        let computed = |instruction: &Instruction| match instruction {
            Instruction::Compute(action) => Some(*action),
            Instruction::Send(_) | Instruction::Receive(_) => None,
        };
        let actions = |worker: &Vec<Instruction>| -> Vec<Action> {
            worker.iter().filter_map(computed).collect()
        };
        Schedule::new(self.workers.iter().map(actions).collect())
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
        let workers: Result<_, _> = text.lines().map(line).collect();
        Ok(Self::of_instructions(workers?))
    }
}
