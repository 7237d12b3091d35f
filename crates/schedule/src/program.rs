//! Schedules with their communication: what workers send each other between their actions.
//!
//! A schedule says nothing of messages: they follow from it. [`Program::new`] is the pass that puts
//! them in, and knows the wiring of the model, its skips and side inputs; [`Program::check`] runs the
//! result in thought as if sends waited for their receiver, which is what collective libraries without
//! buffers do.

mod check;
mod message;
mod text;

use crate::{Action, Schedule, grid::grid};

pub use check::ProgramError;
pub use message::{Content, Message};

/// What a model's stages hand each other beside the values that go from each to the next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Wiring {
    /// Stages that send a value to a later one, straight.
    pub skips: Vec<(usize, usize)>,
    /// Stages that read an input from the side with each micro-batch.
    pub side: Vec<usize>,
}

/// A step of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// A pass.
    Compute(Action),
    /// Sends a message to another worker.
    Send(Message),
    /// Receives a message from another worker, or from the side.
    Receive(Message),
}

/// For each worker, its passes with what it sends and receives between them.
///
/// As text it has a line for each worker, in the notation of `torch.distributed.pipelining`: `0SEND_F1`
/// is stage 0 sending the value of micro-batch 1 to the next stage, `1RECV_F1` its receipt, and
/// `1SEND_B1` and `0RECV_B1` the gradient on its way back. Values and gradients of skips name the other
/// stage, too, as `0SEND_F1>2` and `2RECV_F1<0`; a side input is `2RECV_SIDE1`.
///
/// ```
/// use stovepipe_schedule::{GPipe, Program, Scheduler, Wiring};
///
/// let schedule = GPipe.schedule(2, 1)?;
/// let program = Program::new(&schedule, &Wiring::default())?;
/// assert_eq!(
///     program.to_string(),
///     "0F0 0SEND_F0 0RECV_B0 0B0\n\
///      1RECV_F0 1F0 1B0 1SEND_B0"
/// );
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    workers: Vec<Vec<Step>>,
}

impl Program {
    /// Takes steps as they are. Nothing is checked yet; see [`Program::check`].
    ///
    /// ```
    /// use stovepipe_schedule::{Action, Program, Step, Wiring};
    ///
    /// let program = Program::of_steps(vec![vec![Step::Compute(Action::forward(0, 0))]]);
    /// assert!(program.check(&Wiring::default()).is_ok());
    /// ```
    #[must_use]
    pub fn of_steps(workers: Vec<Vec<Step>>) -> Self {
        Self { workers }
    }

    /// Puts communication into a schedule.
    ///
    /// A message is sent and received right after the pass that made it, as if all passes took one clock
    /// cycle. All workers have the messages of a cycle in the same order, so that none waits for ever
    /// even if sends wait for their receiver.
    ///
    /// ```
    /// use stovepipe_schedule::{OneForwardOneBackward, Program, Scheduler, Wiring};
    ///
    /// let schedule = OneForwardOneBackward.schedule(3, 4)?;
    /// let wiring = Wiring { skips: vec![(0, 2)], side: vec![1] };
    /// let program = Program::new(&schedule, &wiring)?;
    /// program.check(&wiring)?;
    /// assert_eq!(program.schedule()?, schedule);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If a skip does not lead to a later stage, or names a stage that does not exist.
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
                workers[worker].extend(side.map(Step::Receive));
                workers[worker].push(Step::Compute(action));
            }
            for action in actions.into_iter().flatten() {
                for message in wiring.outputs(schedule, action) {
                    let (sender, receiver) = message.workers(schedule);
                    if sender != receiver {
                        workers[sender].push(Step::Send(message));
                        workers[receiver].push(Step::Receive(message));
                    }
                }
            }
        }
        Ok(Self { workers })
    }

    /// The steps of each worker, in order.
    ///
    /// ```
    /// # use stovepipe_schedule::{GPipe, Program, Scheduler, Wiring};
    /// let program = Program::new(&GPipe.schedule(2, 1)?, &Wiring::default())?;
    /// assert_eq!(program.workers()[0].len(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn workers(&self) -> &[Vec<Step>] {
        &self.workers
    }

    /// The schedule without its communication.
    ///
    /// ```
    /// # use stovepipe_schedule::Program;
    /// let program: Program = "0F0 0SEND_F0\n1RECV_F0 1F0".parse()?;
    /// assert_eq!(program.schedule()?.to_string(), "0F0\n1F0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Schedule::new`].
    pub fn schedule(&self) -> Result<Schedule, crate::ScheduleError> {
        let actions = |steps: &Vec<Step>| {
            let computed = steps.iter().filter_map(|step| match step {
                Step::Compute(action) => Some(*action),
                Step::Send(_) | Step::Receive(_) => None,
            });
            computed.collect()
        };
        Schedule::new(self.workers.iter().map(actions).collect())
    }
}
