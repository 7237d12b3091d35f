//! Running a program in thought, with sends that wait for their receiver.

use std::{collections::HashSet, fmt};

use thiserror::Error;

use crate::{Content, Message, Program, Schedule, ScheduleError, Step, Wiring};

/// Why a program cannot run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Without its communication it is no schedule.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
    /// A skip that leads backward, or beyond the last stage.
    #[error("a skip from stage {from} to {to} does not lead to a later one of {stages} stages")]
    Skip {
        /// The stage that sends it.
        from: usize,
        /// The stage that receives it.
        to: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A side input of a stage that does not exist.
    #[error("there is a side input for stage {stage}, but there are {stages} stages")]
    Side {
        /// The stage.
        stage: usize,
        /// The number of stages.
        stages: usize,
    },
    /// A pass comes before something that it needs is there.
    #[error("worker {worker} has {step} before {}", Step::Receive(*needs))]
    Absent {
        /// The worker.
        worker: usize,
        /// The pass.
        step: Step,
        /// What is not there: a value, a skip, a side input or a gradient.
        needs: Message,
    },
    /// A worker sends what it has not made, or already sent, or a stage of its own needs.
    #[error("worker {worker} has {step}, but has nothing of the kind to send")]
    NothingToSend {
        /// The worker.
        worker: usize,
        /// The step.
        step: Step,
    },
    /// Workers wait for one another for ever, if sends wait for their receiver.
    #[error("deadlock: {}", join(waiting))]
    Deadlock {
        /// Each stuck worker with the step that it is stuck at.
        waiting: Vec<(usize, Step)>,
    },
}

fn join(waiting: &[(usize, Step)]) -> String {
    const SHOWN: usize = 8;
    let shown = waiting.iter().take(SHOWN);
    let mut parts: Vec<_> = shown.map(|(worker, step)| stuck(*worker, *step)).collect();
    if waiting.len() > SHOWN {
        parts.push(format!("and {} more", waiting.len() - SHOWN));
    }
    parts.join("; ")
}

fn stuck(worker: usize, step: Step) -> String {
    match step {
        Step::Send(message) => format!("worker {worker} waits for {}", Step::Receive(message)),
        Step::Receive(message) => format!("worker {worker} waits for {}", Step::Send(message)),
        Step::Compute(_) => format!("worker {worker} is stuck at {step}"),
    }
}

impl Program {
    /// Makes sure that the program can run: that it holds a schedule, that whatever a pass needs is
    /// there when it comes, skips and side inputs too, and that nobody waits for ever even if a send
    /// waits until its receiver is at the matching step.
    ///
    /// ```
    /// use stovepipe_schedule::{Program, Wiring};
    ///
    /// // Both send first, and neither receives.
    /// let program: Program = "0F0 0SEND_F0 0F1 0SEND_F1 0RECV_B0 0B0 0RECV_B1 0B1\n\
    ///                         1RECV_F0 1F0 1B0 1SEND_B0 1RECV_F1 1F1 1B1 1SEND_B1".parse()?;
    /// assert_eq!(
    ///     program.check(&Wiring::default()).unwrap_err().to_string(),
    ///     "deadlock: worker 0 waits for 1RECV_F1; worker 1 waits for 0RECV_B0"
    /// );
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The first thing that is wrong.
    pub fn check(&self, wiring: &Wiring) -> Result<(), ProgramError> {
        let schedule = self.schedule()?;
        wiring.check(schedule.stages())?;
        let mut run = Run {
            program: self,
            schedule,
            wiring,
            next: vec![0; self.workers().len()],
            present: HashSet::new(),
            to_send: HashSet::new(),
        };
        while run.advance()? {}
        run.finish()
    }
}

/// A program under way.
struct Run<'a> {
    program: &'a Program,
    schedule: Schedule,
    wiring: &'a Wiring,
    next: Vec<usize>,
    /// What is with the worker that needs it.
    present: HashSet<Message>,
    /// What is with the worker that made it.
    to_send: HashSet<Message>,
}

impl Run<'_> {
    /// Takes all steps that can be taken now. Whether there were any.
    fn advance(&mut self) -> Result<bool, ProgramError> {
        let mut advanced = false;
        for worker in 0..self.next.len() {
            while self.step(worker)? {
                advanced = true;
            }
        }
        Ok(advanced)
    }

    fn at(&self, worker: usize) -> Option<Step> {
        self.program.workers()[worker]
            .get(self.next[worker])
            .copied()
    }

    /// Takes a worker's next step if it can be taken.
    fn step(&mut self, worker: usize) -> Result<bool, ProgramError> {
        let Some(step) = self.at(worker) else {
            return Ok(false);
        };
        match step {
            Step::Compute(action) => {
                for needs in self.wiring.inputs(&self.schedule, action) {
                    if !self.present.remove(&needs) {
                        return Err(ProgramError::Absent {
                            worker,
                            step,
                            needs,
                        });
                    }
                }
                for output in self.wiring.outputs(&self.schedule, action) {
                    let (sender, receiver) = output.workers(&self.schedule);
                    match sender == receiver {
                        true => self.present.insert(output),
                        false => self.to_send.insert(output),
                    };
                }
            }
            Step::Receive(message) if message.content == Content::Side => {
                self.present.insert(message);
            }
            Step::Receive(_) => return Ok(false), // the sender takes both steps
            Step::Send(message) => {
                if !self.to_send.contains(&message) {
                    return Err(ProgramError::NothingToSend { worker, step });
                }
                let (_, receiver) = message.workers(&self.schedule);
                if self.at(receiver) != Some(Step::Receive(message)) {
                    return Ok(false);
                }
                self.to_send.remove(&message);
                self.present.insert(message);
                self.next[receiver] += 1;
            }
        }
        self.next[worker] += 1;
        Ok(true)
    }

    fn finish(self) -> Result<(), ProgramError> {
        let waiting = |worker| Some((worker, self.at(worker)?));
        let waiting: Vec<_> = (0..self.next.len()).filter_map(waiting).collect();
        match waiting.is_empty() {
            true => Ok(()),
            false => Err(ProgramError::Deadlock { waiting }),
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (worker, steps) in self.workers().iter().enumerate() {
            for (index, step) in steps.iter().enumerate() {
                let between = match (worker, index) {
                    (0, 0) => "",
                    (_, 0) => "\n",
                    _ => " ",
                };
                write!(formatter, "{between}{step}")?;
            }
        }
        Ok(())
    }
}
