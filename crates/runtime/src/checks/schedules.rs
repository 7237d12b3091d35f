//! Steps and windows like a pipeline's: real schedules, with a chain of stages that send tokens. Replicas of a
//! stage take micro-batches in turn, and send each other tokens at updates.

use std::{collections::HashMap, time::Duration};

use shuttle::rand::{Rng, thread_rng};
use stovepipe_schedule::{Action, Pass, Rule, RuleOptions, Schedule, Scheduler};

use crate::{
    cancel::{CancelHandle, CancelToken},
    checks::{Count, Gate, panic_quietly, workers::worker},
    mailbox::{Inbox, Outbox, mailbox},
    step::{Cause, Fault, JobContext, JobError, StepOptions, step},
    stop::StopHandle,
    sync::Arc,
    worker::Worker,
};

pub(super) const SCHEDULES: [Given; 14] = [
    plain(Rule::GPipe, 1, 2, 2),
    plain(Rule::GPipe, 1, 3, 2),
    plain(Rule::OneForwardOneBackward, 1, 2, 3),
    plain(Rule::OneForwardOneBackward, 1, 3, 3),
    plain(Rule::Interleaved, 2, 2, 2),
    plain(Rule::ZeroBubbleH1, 1, 2, 2),
    plain(Rule::ZeroBubbleH2, 1, 2, 3),
    plain(Rule::ZeroBubbleV, 2, 2, 2),
    plain(Rule::VMin, 2, 2, 2),
    plain(Rule::VHalf, 2, 2, 2),
    plain(Rule::VOneForwardOneBackward, 2, 2, 2),
    in_turn(Rule::OneForwardOneBackward, &[1, 2], 3, 1),
    in_turn(Rule::PipeDream, &[1, 1], 1, 3),
    in_turn(Rule::PipeDream, &[2, 1], 2, 2),
];

#[derive(Clone, Copy, Debug)]
pub(super) struct Given {
    pub(super) rule: Rule,
    /// Stages of each worker, for rules that ask for it.
    chunks: usize,
    workers: usize,
    /// Of each stage, or none.
    replicas: &'static [usize],
    /// Of a mini-batch.
    micro_batches: usize,
    mini_batches: usize,
}

const fn plain(rule: Rule, chunks: usize, workers: usize, micro_batches: usize) -> Given {
    Given {
        rule,
        chunks,
        workers,
        replicas: &[],
        micro_batches,
        mini_batches: 1,
    }
}

const fn in_turn(
    rule: Rule,
    replicas: &'static [usize],
    micro_batches: usize,
    mini_batches: usize,
) -> Given {
    Given {
        rule,
        chunks: 1,
        workers: 0,
        replicas,
        micro_batches,
        mini_batches,
    }
}

fn schedule(given: Given) -> Schedule {
    let scheduler = given.rule.scheduler(&RuleOptions {
        chunks: given.chunks,
        replicas: given.replicas.to_vec(),
        update_every: Some(given.micro_batches),
    });
    let stages = match given.replicas.len() {
        0 => scheduler.stages(given.workers),
        stages => stages,
    };
    let micro_batches = given.mini_batches * given.micro_batches;
    (scheduler.schedule(stages, micro_batches)).expect("a small schedule")
}

/// The first worker that runs an action. Those of other replicas run their own updates.
fn worker_of(schedule: &Schedule, action: Action) -> usize {
    let mut workers = schedule.workers().iter();
    let worker = workers.position(|actions| actions.contains(&action));
    worker.expect("an action of the schedule")
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
        let worker = |_| worker(&ended);
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
        worker_of(&self.schedule, action)
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
        let (jobs, mut feed) = jobs(schedule, faults, &tokens);
        let on_action = |_, action: Action| {
            done += 1;
            feed.after(action);
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
        let options = StepOptions {
            stop,
            cancel: &self.cancel,
            number: self.next(),
            stall_timeout,
            // A window is fed when its passes end.
            late_reports: schedule.updates() == 0 && thread_rng().gen_bool(0.5),
        };
        self.steps.add();
        let result = step(&self.workers, jobs, options, on_action, to_failure);
        if let Some(failure) = failed {
            let result = result.as_ref().map(|_| ());
            assert_eq!(result, Err(&failure), "whatever follows it");
        }
        let received: usize = result?.into_iter().sum();
        let between_replicas = |stage| {
            let replicas = schedule.replicas(stage).len();
            schedule.updates() * replicas * (replicas - 1)
        };
        let sent = 2 * (schedule.stages() - 1) * schedule.micro_batches()
            + (0..schedule.stages()).map(between_replicas).sum::<usize>();
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

/// A stage on one of its workers.
struct TokenStage {
    index: usize,
    /// Micro-batches of an update.
    every: usize,
    /// Says that a mini-batch is there.
    fed: Option<Inbox<()>>,
    values_in: Option<Inbox<Token>>,
    gradients_in: Option<Inbox<Token>>,
    /// From each other replica.
    replicas_in: Vec<Inbox<Token>>,
    /// By micro-batch, to the neighbour's replica that has it.
    values_out: Vec<Outbox<Token>>,
    gradients_out: Vec<Outbox<Token>>,
    replicas_out: Vec<Outbox<Token>>,
}

/// Gives mini-batches to all stages, the next one when the last one has run forward somewhere.
struct Feed {
    every: usize,
    mini_batches: usize,
    given: usize,
    stages: Vec<Outbox<()>>,
}

impl Feed {
    fn after(&mut self, action: Action) {
        if action.pass == Pass::Forward {
            self.go_on(action.micro_batch / self.every);
        }
    }

    fn go_on(&mut self, front: usize) {
        while self.given < self.mini_batches.min(front + 2) {
            for stage in &self.stages {
                let _ = stage.send((self.given, ()));
            }
            self.given += 1;
        }
    }
}

type Job = Box<
    dyn FnOnce(&mut JobContext<'_, Action>) -> Result<usize, JobError<Action>> + Send + 'static,
>;

fn jobs(schedule: &Schedule, faults: &[FaultAt], tokens: &Count) -> (Vec<Job>, Feed) {
    let every = (schedule.update_every()).unwrap_or_else(|| schedule.micro_batches());
    let mut seats: HashMap<(usize, usize), TokenStage> = HashMap::new();
    let mut feed = Feed {
        every,
        mini_batches: schedule.micro_batches() / every,
        given: 0,
        stages: Vec::new(),
    };
    let (mut values, mut gradients) = (HashMap::new(), HashMap::new());
    for index in 0..schedule.stages() {
        for &worker in schedule.replicas(index) {
            let (outbox, fed) = mailbox();
            feed.stages.push(outbox);
            let [(values_out, values_in), (gradients_out, gradients_in)] = [mailbox(), mailbox()];
            values.insert((index, worker), values_out);
            gradients.insert((index, worker), gradients_out);
            let is_last = index + 1 == schedule.stages();
            let stage = TokenStage {
                index,
                every,
                fed: Some(fed),
                values_in: (index > 0).then_some(values_in),
                gradients_in: (!is_last).then_some(gradients_in),
                replicas_in: Vec::new(),
                values_out: Vec::new(),
                gradients_out: Vec::new(),
                replicas_out: Vec::new(),
            };
            seats.insert((index, worker), stage);
        }
    }
    let ways = |stage: usize, outboxes: &HashMap<_, Outbox<Token>>| {
        let to = |micro_batch| outboxes[&(stage, schedule.worker_of(stage, micro_batch))].clone();
        (0..schedule.micro_batches()).map(to).collect()
    };
    for (&(index, _), stage) in &mut seats {
        if index + 1 < schedule.stages() {
            stage.values_out = ways(index + 1, &values);
        }
        if index > 0 {
            stage.gradients_out = ways(index - 1, &gradients);
        }
    }
    for index in 0..schedule.stages() {
        for &from in schedule.replicas(index) {
            for &to in schedule.replicas(index).iter().filter(|&&to| to != from) {
                let (outbox, inbox) = mailbox();
                let seat = |worker| (index, worker);
                if let Some(stage) = seats.get_mut(&seat(from)) {
                    stage.replicas_out.push(outbox);
                }
                if let Some(stage) = seats.get_mut(&seat(to)) {
                    stage.replicas_in.push(inbox);
                }
            }
        }
    }
    feed.go_on(0);
    let mut jobs: Vec<Job> = Vec::new();
    for (worker, actions) in schedule.workers().iter().enumerate() {
        let own = (0..schedule.stages())
            .filter_map(|index| Some((index, seats.remove(&(index, worker))?)));
        let mut stages: HashMap<_, _> = own.collect();
        let is_here = |fault: &&FaultAt| worker_of(schedule, fault.0) == worker;
        let faults: Vec<_> = faults.iter().filter(is_here).cloned().collect();
        let (actions, tokens) = (actions.clone(), tokens.clone());
        jobs.push(Box::new(move |context| {
            let mut received = 0;
            for action in actions {
                let stage = stages.get_mut(&action.stage).expect("a stage of its own");
                received +=
                    context.act(action, |cancel| stage.run(action, cancel, &faults, &tokens))?;
            }
            Ok(received)
        }));
    }
    (jobs, feed)
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
        let micro_batch = action.micro_batch;
        if action.pass == Pass::Forward
            && let Some(fed) = &mut self.fed
            && micro_batch.is_multiple_of(self.every)
        {
            let given = fed.receive(micro_batch / self.every, cancel);
            given.map_err(|_| JobError::Cancelled)?;
        }
        let token = |micro_batch| Token {
            from: self.index,
            micro_batch,
            _counts: tokens.on_drop(),
        };
        if action.pass == Pass::Update {
            for outbox in &self.replicas_out {
                let _ = outbox.send((micro_batch, token(micro_batch)));
            }
        }
        let (inboxes, outboxes) = match action.pass {
            Pass::Forward => (self.values_in.as_mut_slice(), &self.values_out),
            Pass::Backward | Pass::InputGradient => {
                (self.gradients_in.as_mut_slice(), &self.gradients_out)
            }
            Pass::Update => (&mut self.replicas_in[..], &Vec::new()),
            Pass::WeightGradient => (&mut [][..], &Vec::new()),
        };
        let distance = usize::from(action.pass != Pass::Update);
        let mut received = 0;
        for inbox in inboxes {
            let token = inbox.receive(micro_batch, cancel);
            let token = token.map_err(|_| JobError::Cancelled)?;
            received += 1;
            let is_near = token.from.abs_diff(self.index) == distance;
            if token.micro_batch != micro_batch || !is_near {
                return Err(JobError::Failed(action));
            }
        }
        happens(Moment::Between)?;
        if let Some(outbox) = outboxes.get(micro_batch) {
            let _ = outbox.send((micro_batch, token(micro_batch)));
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
