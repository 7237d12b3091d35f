//! A pipeline in several processes, without its layers.
//!
//! Ranks are a chain. In a step, values go from the first to the last and gradients back, for each micro-batch.
//! One worker of a rank has the forward passes, another the backward passes. A third thread sends, and may be
//! late. Faults happen at points of steps.

use std::{
    cell::Cell,
    collections::HashMap,
    fmt, mem,
    ops::ControlFlow,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use shuttle::rand::{Rng, thread_rng};
use stovepipe_runtime_shuttle::{
    CancelHandle, Cause, Fault as StepFault, Inbox, JobContext, JobError, Outbox, StepOptions,
    StopHandle, Worker, mailbox, step,
};

use crate::{
    Agreement, Communicator, Peer, ProcessError, RunFailure,
    checks::Gate,
    local,
    sync::{Arc, Mutex, lock, thread},
};

pub(super) const STEPS: usize = 2;
pub(super) const MICRO_BATCHES: usize = 2;

/// What a worker does: a pass of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Pass {
    Forward,
    Backward,
}

pub(super) const PASSES: [Pass; 2] = [Pass::Forward, Pass::Backward];

pub(super) type Action = (Pass, usize);

/// A point of a rank's step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Point {
    BeforeMeet,
    AfterMeet,
    /// Before an action receives, and before it sends.
    Receives(Action),
    Sends(Action),
    BeforeEnd,
    AfterEnd,
}

/// What happens there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum What {
    /// What is done there returns an error.
    Fails,
    /// A worker panics.
    Panics,
    /// A worker waits until the step has returned.
    Hangs,
    /// A stop is requested.
    Stops,
    /// The rank has other terms.
    Differs,
    /// A worker sends what no rank can read.
    SendsNonsense,
    /// The rank ends the job and goes on.
    Aborts,
    /// The rank drops all.
    Leaves,
    /// The same, while it panics.
    Unwinds,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fault {
    pub(super) step: usize,
    pub(super) rank: usize,
    pub(super) at: Point,
    pub(super) what: What,
}

/// A rank's own error, or a [`ProcessError`] as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure(pub(super) String);

impl Failure {
    pub(super) fn of(rank: usize) -> Self {
        Self(format!("error {rank}"))
    }

    /// That of a rank, as the others see it.
    pub(super) fn at(rank: usize) -> Self {
        Self(format!("rank {rank} on localhost failed: error {rank}"))
    }
}

impl From<ProcessError> for Failure {
    fn from(error: ProcessError) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a step ended in a rank.
pub(super) type Ended = Result<Vec<usize>, RunFailure<Failure>>;

/// Where messages go: those of the previous and of the next rank.
type Mailboxes = Arc<Mutex<HashMap<Pass, Outbox<Vec<u8>>>>>;

/// A job of some ranks.
#[derive(Clone, Default)]
pub(super) struct Job {
    pub(super) ranks: usize,
    pub(super) faults: Vec<Fault>,
    /// For a step without progress.
    pub(super) limit: Option<Duration>,
    /// A new pipeline takes the second step.
    pub(super) is_rebuilt: bool,
}

impl Job {
    /// One of three ranks.
    pub(super) fn with(faults: &[Fault]) -> Self {
        Self {
            ranks: 3,
            faults: faults.to_vec(),
            ..Self::default()
        }
    }

    /// Runs it. Returns how the steps of each rank ended.
    pub(super) fn ends(self) -> Vec<Vec<Ended>> {
        let ranks = local(self.ranks, None).unwrap().into_iter().map(|comm| {
            let job = self.clone();
            thread::spawn(move || job.run(comm.into()))
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    }

    fn run(&self, comm: Arc<Communicator>) -> Vec<Ended> {
        let build = |comm| Rank::new(comm, &self.faults, self.limit);
        let (mut rank, mut ends) = (build(comm), Vec::new());
        for number in 0..STEPS {
            if number > 0 && self.is_rebuilt {
                let new = build(rank.agreement.comm().clone());
                let met = new
                    .agreement
                    .meet(Ok::<_, Failure>(()), |()| (Vec::new(), ()));
                assert!(met.is_ok());
                drop(mem::replace(&mut rank, new));
            }
            match rank.step(number, &mut ends) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(What::Unwinds) => {
                    let held = AssertUnwindSafe(rank);
                    let _ = catch_unwind(move || {
                        let _held = held;
                        resume_unwind(Box::new("on purpose"));
                    });
                    return ends;
                }
                ControlFlow::Break(_) => return ends,
            }
        }
        ends
    }
}

struct Rank {
    faults: Vec<Fault>,
    limit: Option<Duration>,
    workers: Vec<Worker>,
    packer: Arc<Worker>,
    mailboxes: Mailboxes,
    /// Meetings that failed since one succeeded.
    failed: Cell<usize>,
    cancel: CancelHandle<Failure>,
    stop: StopHandle,
    /// Opened when a step has returned.
    gate: Gate,
    agreement: Arc<Agreement>,
}

impl Rank {
    fn new(comm: Arc<Communicator>, faults: &[Fault], limit: Option<Duration>) -> Self {
        let worker = || Worker::spawn("worker").unwrap();
        let (mailboxes, cancel) = (Mailboxes::default(), CancelHandle::new());
        let (own, rank) = (mailboxes.clone(), comm.rank());
        let take = move |from: Peer, mut parts: Vec<Vec<u8>>| {
            let message = parts.pop().ok_or("nonsense")?;
            let pass = if from.rank < rank {
                Pass::Forward
            } else {
                Pass::Backward
            };
            if let Some(outbox) = lock(&own).get(&pass) {
                let _ = outbox.send((message[1].into(), message));
            }
            Ok(())
        };
        let cancels = cancel.clone();
        let on_failure = move |run, error: ProcessError| cancels.cancel(run, error.into());
        let is_own = |fault: &&Fault| fault.rank == rank;
        Self {
            faults: faults.iter().filter(is_own).copied().collect(),
            limit,
            workers: PASSES.map(|_| worker()).into(),
            packer: worker().into(),
            mailboxes,
            failed: Cell::new(0),
            cancel,
            stop: StopHandle::new(),
            gate: Gate::default(),
            agreement: Agreement::new((comm, 0), take, on_failure).into(),
        }
    }

    fn rank(&self) -> usize {
        self.agreement.comm().rank()
    }

    /// What happens to the rank as a whole. Breaks if it leaves.
    fn reach(&self, number: usize, at: Point) -> ControlFlow<What> {
        match fault(&self.faults, number, at) {
            Some(what @ (What::Leaves | What::Unwinds)) => return ControlFlow::Break(what),
            Some(What::Aborts) => self.agreement.comm().abort("on purpose"),
            Some(What::Stops) => self.stop.stop(),
            _ => {}
        }
        ControlFlow::Continue(())
    }

    /// Runs a step as a pipeline does.
    fn step(&self, number: usize, ends: &mut Vec<Ended>) -> ControlFlow<What> {
        while self.workers.iter().any(Worker::is_stuck) {
            thread::yield_now();
        }
        self.stop.reset();
        self.reach(number, Point::BeforeMeet)?;
        let before = fault(&self.faults, number, Point::BeforeMeet);
        let own = match before {
            Some(What::Fails) => Err(Failure::of(self.rank())),
            _ => Ok(()),
        };
        let (comm, label) = (self.agreement.comm(), number as u8);
        for other in (0..comm.size()).filter(|other| self.rank() == 0 && *other != 0) {
            let _ = self.agreement.send_ahead(other, vec![vec![label]]);
        }
        let term = if before == Some(What::Differs) {
            "another"
        } else {
            "the same"
        };
        let met = self.agreement.meet(own, |()| {
            let terms = [
                ("the step", number.to_string()),
                ("the term", term.to_owned()),
            ];
            let terms = terms.map(|(name, value)| (name.to_owned(), value));
            (terms.into(), self.rank())
        });
        match met {
            Ok(((), told)) => assert!(told.into_iter().eq(0..comm.size())),
            Err(error) => {
                self.failed.set(self.failed.get() + 1);
                ends.push(Err(RunFailure::Failed(error)));
                return ControlFlow::Continue(());
            }
        }
        // The first rank sends them again if a meeting has failed.
        let ahead = self.agreement.take_ahead();
        let expected = if self.rank() == 0 {
            0
        } else {
            1 + self.failed.take()
        };
        assert_eq!(ahead.len(), expected);
        assert!(
            ahead.last().is_none_or(|parts| parts[0] == [label]),
            "of this step"
        );

        self.reach(number, Point::AfterMeet)?;
        let jobs = self.jobs(number);
        let run = self.agreement.begin();
        let own = match fault(&self.faults, number, Point::AfterMeet) {
            Some(What::Fails) => Err(RunFailure::Failed(Failure::of(self.rank()))),
            _ => self.run(run, jobs, if number == 0 { self.limit } else { None }),
        };
        self.gate.open();
        lock(&self.mailboxes).clear();
        self.reach(number, Point::BeforeEnd)?;
        ends.push(self.agreement.end(own));
        self.reach(number, Point::AfterEnd)
    }

    /// This rank's part of a run.
    fn run<J>(
        &self,
        number: u64,
        jobs: Vec<J>,
        stall_timeout: Option<Duration>,
    ) -> Result<usize, RunFailure<Failure>>
    where
        J: FnOnce(&mut JobContext<'_, Action>) -> Result<(), JobError<Failure>> + Send + 'static,
    {
        let options = StepOptions {
            stop: &self.stop,
            cancel: &self.cancel,
            number,
            stall_timeout,
            late_reports: thread_rng().gen_bool(0.5),
        };
        let own = || RunFailure::Failed(Failure::of(self.rank()));
        let to_failure = |fault| match fault {
            StepFault::Failed { cause, .. } => match cause {
                Cause::Error(error) => RunFailure::Failed(error),
                Cause::Panicked(panic) if panic.is::<&str>() => own(),
                Cause::Panicked(panic) => resume_unwind(panic), // an assertion failed
            },
            StepFault::Stalled => own(),
            StepFault::Stopped => RunFailure::Stopped,
            StepFault::Cancelled(reason) => RunFailure::Cancelled(reason),
            StepFault::Lost => panic!("a worker is lost"),
        };
        let done = step(&self.workers, jobs, options, |_, _| Ok(()), to_failure);
        done.map(|_| self.rank())
    }

    /// The jobs of the workers. What arrives for them is expected from now on.
    fn jobs(
        &self,
        number: usize,
    ) -> Vec<
        impl FnOnce(&mut JobContext<'_, Action>) -> Result<(), JobError<Failure>> + Send + 'static,
    > {
        let (rank, last) = (self.rank(), self.agreement.comm().size() - 1);
        let (turn, turned) = mailbox();
        let mut turn = (rank == last).then_some(turn);
        let mut turned = (rank == last).then_some(turned);
        let job = |pass| {
            let (inbox, to) = match pass {
                Pass::Forward => ((rank > 0).then(|| self.expect(pass)), rank + 1),
                Pass::Backward if rank == last => (turned.take(), rank.wrapping_sub(1)),
                Pass::Backward => (Some(self.expect(pass)), rank.wrapping_sub(1)),
            };
            let stage = Stage {
                rank,
                pass,
                inbox,
                turn: turn.take().filter(|_| pass == Pass::Forward),
                to: (to <= last).then_some(to),
                packer: self.packer.clone(),
                agreement: self.agreement.clone(),
            };
            self.job(number, stage)
        };
        PASSES.map(job).into()
    }

    fn expect(&self, pass: Pass) -> Inbox<Vec<u8>> {
        let (outbox, inbox) = mailbox();
        lock(&self.mailboxes).insert(pass, outbox);
        inbox
    }

    fn job(
        &self,
        number: usize,
        mut stage: Stage,
    ) -> impl FnOnce(&mut JobContext<'_, Action>) -> Result<(), JobError<Failure>> + Send + 'static
    {
        let faults = self.faults.clone();
        let (stop, gate) = (self.stop.clone(), self.gate.clone());
        move |context| {
            let happen = |at, stage: &Stage| {
                match fault(&faults, number, at) {
                    Some(What::Fails) => return Err(JobError::Failed(Failure::of(stage.rank))),
                    Some(What::Panics) => resume_unwind(Box::new("on purpose")),
                    Some(What::Hangs) => gate.pass(),
                    Some(What::Stops) => stop.stop(),
                    Some(What::Aborts) => stage.agreement.comm().abort("on purpose"),
                    Some(What::SendsNonsense) => stage.send(Vec::new()),
                    _ => {}
                }
                Ok(())
            };
            for micro_batch in 0..MICRO_BATCHES {
                let action = (stage.pass, micro_batch);
                context.act(action, |cancel| {
                    happen(Point::Receives(action), &stage)?;
                    let expected = vec![number as u8, micro_batch as u8];
                    if let Some(inbox) = &mut stage.inbox {
                        let received = inbox.receive(micro_batch, cancel);
                        let received = received.map_err(|_| JobError::Cancelled)?;
                        assert_eq!(received, expected, "of this step and micro-batch");
                    }
                    happen(Point::Sends(action), &stage)?;
                    if let Some(turn) = &stage.turn {
                        let _ = turn.send((micro_batch, expected.clone()));
                    }
                    stage.send(vec![expected]);
                    Ok(())
                })?;
            }
            Ok(())
        }
    }
}

/// What happens at a point of a step.
fn fault(faults: &[Fault], step: usize, at: Point) -> Option<What> {
    let mut faults = faults.iter();
    let fault = faults.find(|fault| (fault.step, fault.at) == (step, at));
    fault.map(|fault| fault.what)
}

/// A worker's part of a step.
struct Stage {
    rank: usize,
    pass: Pass,
    inbox: Option<Inbox<Vec<u8>>>,
    /// On the last rank: from its forward to its backward passes.
    turn: Option<Outbox<Vec<u8>>>,
    to: Option<usize>,
    packer: Arc<Worker>,
    agreement: Arc<Agreement>,
}

impl Stage {
    fn send(&self, parts: Vec<Vec<u8>>) {
        let Some(to) = self.to else { return };
        let (agreement, run) = (self.agreement.clone(), self.agreement.run());
        self.packer
            .run(move || drop(agreement.send(run, to, parts)));
    }
}
