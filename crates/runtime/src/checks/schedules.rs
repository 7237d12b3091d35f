//! Steps like a pipeline's: real schedules, with a chain of stages that send tokens.

use std::{collections::HashMap, time::Duration};

use stovepipe_schedule::{Action, Pass, Rule, RuleOptions, Schedule, Scheduler};

use crate::{
    cancel::{CancelHandle, CancelToken},
    checks::{Count, Gate, panic_quietly},
    mailbox::{Inbox, Outbox, mailbox},
    step::{Cause, Fault, JobContext, JobError, StepOptions, step},
    stop::StopHandle,
    sync::Arc,
    worker::Worker,
};

/// Rule, stages per worker (for rules that ask for it), workers and micro-batches.
pub(super) const SCHEDULES: [Given; 8] = [
    (Rule::GPipe, 1, 2, 2),
    (Rule::GPipe, 1, 3, 2),
    (Rule::OneForwardOneBackward, 1, 2, 3),
    (Rule::OneForwardOneBackward, 1, 3, 3),
    (Rule::Interleaved, 2, 2, 2),
    (Rule::ZeroBubbleH1, 1, 2, 2),
    (Rule::ZeroBubbleH2, 1, 2, 3),
    (Rule::ZeroBubbleV, 2, 2, 2),
];

pub(super) type Given = (Rule, usize, usize, usize);

fn schedule((rule, chunks, workers, micro_batches): Given) -> Schedule {
    let scheduler = rule.scheduler(&RuleOptions::with_chunks(chunks));
    (scheduler.schedule(scheduler.stages(workers), micro_batches)).expect("a small schedule")
}

pub(super) fn every_action(given: Given) -> Vec<Action> {
    schedule(given)
        .workers()
        .iter()
        .flatten()
        .copied()
        .collect()
}

/// Every two actions of different workers.
pub(super) fn every_pair(given: Given) -> Vec<(Action, Action)> {
    let schedule = schedule(given);
    let mut pairs = Vec::new();
    for (one, actions) in schedule.workers().iter().enumerate() {
        for (other, other_actions) in schedule.workers().iter().enumerate() {
            if one != other {
                let with_all = |&one| other_actions.iter().map(move |&other| (one, other));
                pairs.extend(actions.iter().flat_map(with_all));
            }
        }
    }
    pairs
}

/// What happens to a worker in an action.
#[derive(Clone)]
pub(super) enum InjectedFault {
    Fail,
    Panic,
    /// Counts that it is reached, then waits.
    Hang(Count, Gate),
    /// No fault: the worker calls a function, and goes on.
    Call(Arc<dyn Fn() + Send + Sync>),
}

/// Where in an action.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Moment {
    First,
    /// After it has received, before it sends.
    Between,
    Last,
}

pub(super) const MOMENTS: [Moment; 3] = [Moment::First, Moment::Between, Moment::Last];

/// A fault, and where it happens.
pub(super) type FaultAt = (Action, Moment, InjectedFault);

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Failure {
    Error(usize, Action),
    Panicked(usize, Action),
    OnAction,
    Stalled,
    Stopped,
    /// The reason.
    Cancelled(u64),
    Lost,
}

/// The workers for a schedule.
pub(super) struct Crew {
    schedule: Schedule,
    pub(super) workers: Vec<Worker>,
    /// Cancels its steps, which are numbered from 0.
    pub(super) cancel: CancelHandle<u64>,
    steps: Count,
    /// How many of their threads have ended.
    pub(super) ended: Count,
}

impl Crew {
    pub(super) fn new(given: Given) -> Self {
        let schedule = schedule(given);
        let ended = Count::default();
        let worker = |_| {
            let counts = ended.clone();
            Worker::spawn("worker", move || Ok(counts.on_drop())).expect("the model has threads")
        };
        Self {
            workers: schedule.workers().iter().map(worker).collect(),
            schedule,
            cancel: CancelHandle::new(),
            steps: Count::default(),
            ended,
        }
    }

    /// The worker of an action.
    pub(super) fn worker_of(&self, action: Action) -> usize {
        let mut workers = self.schedule.workers().iter();
        let worker = workers.position(|actions| actions.contains(&action));
        worker.expect("an action of the schedule")
    }

    /// The number of the next step.
    pub(super) fn next(&self) -> u64 {
        self.steps.get() as u64
    }

    pub(super) fn is_stuck(&self) -> bool {
        self.workers.iter().any(Worker::is_stuck)
    }

    /// Runs a step with faults. If none occurs, checks that every message was received.
    pub(super) fn run(
        &self,
        faults: &[FaultAt],
        (stop, stall_timeout): (&StopHandle, Option<Duration>),
        mut on_action: impl FnMut(usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let schedule = &self.schedule;
        let tokens = Count::default();
        let mut done = 0;
        let mut failed = None;
        let on_action = |_, _| {
            done += 1;
            on_action(done)
        };
        let to_failure = |fault| match fault {
            Fault::Failed {
                worker,
                action,
                cause,
            } => {
                assert_eq!(failed, None, "only the first failure is reported");
                let action = action.expect("jobs fail in actions");
                let failure = match cause {
                    Cause::Error(at) => {
                        assert_eq!(at, action);
                        Failure::Error(worker, action)
                    }
                    Cause::Panicked(_) => Failure::Panicked(worker, action),
                };
                failed = Some(failure);
                failure
            }
            Fault::Stalled => Failure::Stalled,
            Fault::Stopped => Failure::Stopped,
            Fault::Cancelled(reason) => Failure::Cancelled(reason),
            Fault::Lost => Failure::Lost,
        };
        let jobs = jobs(schedule, faults, &tokens);
        let options = StepOptions {
            stop,
            cancel: &self.cancel,
            number: self.next(),
            stall_timeout,
        };
        self.steps.add();
        let result = step(&self.workers, jobs, options, on_action, to_failure);
        if let Some(failure) = failed {
            let result = result.as_ref().map(|_| ());
            assert_eq!(result, Err(&failure), "whatever follows it");
        }
        let received: usize = result?.into_iter().sum();
        let sent = 2 * (schedule.stages() - 1) * schedule.micro_batches();
        assert_eq!(received, sent);
        assert_eq!(tokens.get(), sent, "nothing is kept or received twice");
        assert_eq!(done, schedule.workers().iter().map(Vec::len).sum::<usize>());
        Ok(())
    }

    /// Runs a step with faults and without a stop or a time limit.
    pub(super) fn run_unlimited(&self, faults: &[FaultAt]) -> Result<(), Failure> {
        self.run(faults, (&StopHandle::new(), None), |_| Ok(()))
    }

    pub(super) fn run_well(&self) {
        assert_eq!(self.run_unlimited(&[]), Ok(()));
    }

    /// Drops the workers, which joins their threads.
    pub(super) fn end(self) {
        let threads = self.workers.len();
        drop(self.workers);
        assert_eq!(self.ended.get(), threads);
    }
}

/// A message that names its sender and micro-batch, and counts when it is dropped.
struct Token {
    from: usize,
    micro_batch: usize,
    _counts: super::CountsDrop,
}

#[derive(Default)]
struct TokenStage {
    index: usize,
    values_in: Option<Inbox<Token>>,
    values_out: Option<Outbox<Token>>,
    gradients_in: Option<Inbox<Token>>,
    gradients_out: Option<Outbox<Token>>,
}

fn jobs(
    schedule: &Schedule,
    faults: &[FaultAt],
    tokens: &Count,
) -> Vec<impl FnOnce(&mut JobContext<'_, Action>) -> Result<usize, JobError<Action>> + Send + 'static>
{
    let stage = |index| TokenStage {
        index,
        ..TokenStage::default()
    };
    let mut chain: Vec<_> = (0..schedule.stages()).map(stage).collect();
    for boundary in 1..chain.len() {
        let (values_out, values_in) = mailbox();
        let (gradients_out, gradients_in) = mailbox();
        chain[boundary - 1].values_out = Some(values_out);
        chain[boundary].values_in = Some(values_in);
        chain[boundary].gradients_out = Some(gradients_out);
        chain[boundary - 1].gradients_in = Some(gradients_in);
    }
    let mut chain: HashMap<_, _> = chain.into_iter().enumerate().collect();
    let mut jobs = Vec::new();
    for actions in schedule.workers() {
        let mut stages = HashMap::new();
        for action in actions {
            let stage = chain.remove(&action.stage);
            stages.extend(stage.map(|stage| (action.stage, stage)));
        }
        let (actions, faults, tokens) = (actions.clone(), faults.to_vec(), tokens.clone());
        jobs.push(move |context: &mut JobContext<'_, Action>| {
            let mut received = 0;
            for action in actions {
                let stage = stages.get_mut(&action.stage).expect("a stage of its own");
                received +=
                    context.act(action, |cancel| stage.run(action, cancel, &faults, &tokens))?;
            }
            Ok(received)
        });
    }
    jobs
}

impl TokenStage {
    /// Runs an action. Returns the number of messages received.
    fn run(
        &mut self,
        action: Action,
        cancel: &CancelToken,
        faults: &[FaultAt],
        tokens: &Count,
    ) -> Result<usize, JobError<Action>> {
        let happens = |now| {
            for (at, moment, fault) in faults {
                if (*at, *moment) == (action, now) {
                    fault.happen(action)?;
                }
            }
            Ok(())
        };
        happens(Moment::First)?;
        let (inbox, outbox) = match action.pass {
            Pass::Forward => (&mut self.values_in, &self.values_out),
            Pass::Backward | Pass::InputGradient => (&mut self.gradients_in, &self.gradients_out),
            Pass::WeightGradient | Pass::Update => (&mut None, &None),
        };
        let micro_batch = action.micro_batch;
        let token = match inbox {
            Some(inbox) => {
                let received = inbox.receive(micro_batch, cancel);
                Some(received.map_err(|_| JobError::Cancelled)?)
            }
            None => None,
        };
        happens(Moment::Between)?;
        if let Some(token) = &token {
            let is_right = token.micro_batch == micro_batch && token.from.abs_diff(self.index) == 1;
            if !is_right {
                return Err(JobError::Failed(action));
            }
        }
        let received = usize::from(token.is_some());
        drop(token);
        if let Some(outbox) = outbox {
            let token = Token {
                from: self.index,
                micro_batch,
                _counts: tokens.on_drop(),
            };
            let _ = outbox.send((micro_batch, token));
        }
        happens(Moment::Last)?;
        Ok(received)
    }
}

impl InjectedFault {
    fn happen(&self, action: Action) -> Result<(), JobError<Action>> {
        match self {
            Self::Fail => Err(JobError::Failed(action)),
            Self::Panic => panic_quietly(),
            Self::Hang(reached, gate) => {
                reached.add();
                gate.pass();
                Ok(())
            }
            Self::Call(function) => {
                function();
                Ok(())
            }
        }
    }
}
