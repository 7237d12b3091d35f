//! Simulates a program with sends that wait for their receiver.

use std::collections::HashSet;

use super::{Content, Instruction, Message, Program, ProgramError, Wiring};
use crate::{Pass, Schedule};

impl Program {
    /// Checks that the program can run: it has a valid schedule, all inputs of a pass arrive before it,
    /// and there is no deadlock, even if a send waits until its receiver is at the matching instruction.
    /// Replicas wait for each other at updates.
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
        let mut dry_run = DryRun {
            program: self,
            schedule,
            wiring,
            next: vec![0; self.workers.len()],
            present: HashSet::new(),
            to_send: HashSet::new(),
        };
        while dry_run.advance()? {}
        let waiting = |worker| Some((worker, dry_run.at(worker)?));
        let waiting: Vec<_> = (0..dry_run.next.len()).filter_map(waiting).collect();
        if waiting.is_empty() {
            Ok(())
        } else {
            Err(ProgramError::Deadlock { waiting })
        }
    }
}

/// The state of a simulated program.
struct DryRun<'a> {
    program: &'a Program,
    schedule: Schedule,
    wiring: &'a Wiring,
    next: Vec<usize>,
    /// Messages on the worker that needs them.
    present: HashSet<Message>,
    /// Messages on the worker that computed them.
    to_send: HashSet<Message>,
}

impl DryRun<'_> {
    /// Runs all instructions that can run now. Returns whether there were any.
    fn advance(&mut self) -> Result<bool, ProgramError> {
        let mut advanced = false;
        for worker in 0..self.next.len() {
            while self.step(worker)? {
                advanced = true;
            }
        }
        Ok(advanced)
    }

    fn at(&self, worker: usize) -> Option<Instruction> {
        let instructions = &self.program.workers[worker];
        instructions.get(self.next[worker]).copied()
    }

    /// Runs a worker's next instruction, if it can run.
    fn step(&mut self, worker: usize) -> Result<bool, ProgramError> {
        let Some(instruction) = self.at(worker) else {
            return Ok(false);
        };
        match instruction {
            Instruction::Compute(action) if action.pass == Pass::Update => {
                // Replicas update their weights together.
                let replicas = self.schedule.replicas(action.stage);
                let is_there = |&replica: &usize| self.at(replica) == Some(instruction);
                if !replicas.iter().all(is_there) {
                    return Ok(false);
                }
                for &replica in replicas.iter().filter(|&&replica| replica != worker) {
                    self.next[replica] += 1;
                }
            }
            Instruction::Compute(action) => {
                for needs in self.wiring.messages(&self.schedule, action, false) {
                    if !self.present.remove(&needs) {
                        return Err(ProgramError::Absent {
                            worker,
                            instruction,
                            needs,
                        });
                    }
                }
                for output in self.wiring.messages(&self.schedule, action, true) {
                    let (sender, receiver) = output.workers(&self.schedule);
                    if sender == receiver {
                        self.present.insert(output);
                    } else {
                        self.to_send.insert(output);
                    }
                }
            }
            Instruction::Receive(message) if message.content == Content::Side => {
                self.present.insert(message);
            }
            Instruction::Receive(_) => return Ok(false), // the sender runs both
            Instruction::Send(message) => {
                if !self.to_send.contains(&message) {
                    return Err(ProgramError::NothingToSend {
                        worker,
                        instruction,
                    });
                }
                let (_, receiver) = message.workers(&self.schedule);
                if self.at(receiver) != Some(Instruction::Receive(message)) {
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
}
