//! One step: a job for each worker, and a caller who waits until all have ended.
//!
//! Workers tell how they fare in one queue of reports. The first failure calls the step off for
//! all; the caller still waits for every worker, so that nothing of a step outlives it. Only a
//! worker that reports nothing for longer than the caller's stall_timeout is given up, and with it the
//! step.
//!
//! Who wakes whom: a worker waits for another's message, and is woken by it, by the end of the
//! other (which drops its outboxes), or by the cancel_source. The caller waits for reports, and each
//! worker's last is that it has ended, whatever happened to it. A request to stop wakes nobody:
//! some worker always has something to do, sees it before its next action, and ends.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    cancel::{CancelSource, CancelToken},
    queue::{ReceiveError, Receiver, Sender, queue},
    stop::StopHandle,
    sync::Deadline,
    worker::Worker,
};

/// How long the other workers may take to end once a worker is given up.
const GRACE: Duration = Duration::from_secs(1);

/// What can end a step early.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions<'a> {
    /// Asks for its end.
    pub stop: &'a StopHandle,
    /// How long the caller waits for the next report; for ever, if there is none.
    pub stall_timeout: Option<Duration>,
}

/// Why a job ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobError<F> {
    /// Because of itself.
    Failed(F),
    /// Because another has failed.
    Cancelled,
    /// Because somebody asked for it.
    Stopped,
}

/// What went wrong in a step.
pub enum Fault<A, F> {
    /// A job failed.
    Failed {
        /// The worker.
        worker: usize,
        /// The action that it was in, if it had begun one.
        action: Option<A>,
        /// Why.
        cause: Cause<F>,
    },
    /// Nothing was reported for longer than the caller's stall_timeout.
    Stalled,
    /// Somebody asked to stop.
    Stopped,
    /// A worker ended without a word.
    Lost,
}

/// Why a job failed.
pub enum Cause<F> {
    /// It said so.
    Error(F),
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

/// A job's side of a step.
pub struct JobContext<'a, A> {
    at: &'a mut Option<A>,
    cancel: CancelToken,
    stop: StopHandle,
    did: &'a dyn Fn(A),
}

impl<A: Copy> JobContext<'_, A> {
    /// Does the next action, unless the step has ended, and reports that it is done.
    ///
    /// # Errors
    ///
    /// Those of `work`, and why the step has ended.
    pub fn act<T, F>(
        &mut self,
        action: A,
        work: impl FnOnce(&CancelToken) -> Result<T, JobError<F>>,
    ) -> Result<T, JobError<F>> {
        *self.at = Some(action);
        if self.stop.is_stopped() {
            return Err(JobError::Stopped);
        }
        if self.cancel.is_cancelled() {
            return Err(JobError::Cancelled);
        }
        let done = work(&self.cancel)?;
        (self.did)(action);
        Ok(done)
    }
}

enum Report<A, R, F> {
    Did {
        worker: usize,
        action: A,
    },
    Ended {
        worker: usize,
        at: Option<A>,
        end: End<R, F>,
    },
}

enum End<R, F> {
    Done(R),
    Early(JobError<F>),
    Panicked(Box<dyn Any + Send>),
}

/// Runs a step: one job on each worker. Returns what each left behind, when all have ended.
///
/// `tell` hears of each action that is done, on the caller's thread; an error of its own ends the
/// step. `explain` makes an error of what went wrong, at the moment when it is known and before the
/// step is called off for the others. A failure takes precedence over all else, and the first over
/// later ones.
///
/// ```
/// use stovepipe_runtime::{JobError, Fault, JobContext, StopHandle, StepOptions, Worker, mailbox, step};
///
/// let workers = [Worker::spawn("left", || Ok(()))?, Worker::spawn("right", || Ok(()))?];
/// let (outbox, mut inbox) = mailbox();
/// type Job = Box<dyn FnOnce(&mut JobContext<'_, &str>) -> Result<i32, JobError<String>> + Send>;
/// let jobs: Vec<Job> = vec![
///     Box::new(move |context| {
///         context.act("send", |_| Ok(drop(outbox.send((0, 20)))))?;
///         Ok(1)
///     }),
///     Box::new(move |context| {
///         context.act("receive", |cancel| inbox.receive(0, cancel).map_err(|_| JobError::Cancelled))
///     }),
/// ];
/// let options = StepOptions { stop: &StopHandle::new(), stall_timeout: None };
/// let mut told = Vec::new();
/// let tell = |worker, action| Ok(told.push((worker, action)));
/// let done = step(&workers, jobs, options, tell, |_fault| "failed");
/// assert_eq!(done, Ok(vec![1, 20]));
/// assert_eq!(told, [(0, "send"), (1, "receive")]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// What `tell` and `explain` returned.
pub fn step<A, R, F, E, J>(
    workers: &[Worker],
    jobs: Vec<J>,
    options: StepOptions<'_>,
    tell: impl FnMut(usize, A) -> Result<(), E>,
    explain: impl FnMut(Fault<A, F>) -> E,
) -> Result<Vec<R>, E>
where
    A: Copy + Send + 'static,
    R: Send + 'static,
    F: Send + 'static,
    J: FnOnce(&mut JobContext<'_, A>) -> Result<R, JobError<F>> + Send + 'static,
{
    let (reports, inbox) = queue();
    let mut cancel_source = CancelSource::new();
    let mut waited_for = Vec::new();
    for ((index, worker), job) in workers.iter().enumerate().zip(jobs) {
        let (cancel, stop, reports) =
            (cancel_source.token(), options.stop.clone(), reports.clone());
        worker.run(move || work(index, job, cancel, stop, &reports));
        waited_for.push(true);
    }
    // Only the workers' senders are left: a queue without senders is one without workers.
    drop(reports);
    Coordinator {
        workers,
        inbox,
        cancel_source,
        waited_for,
        stall_timeout: options.stall_timeout,
        tell,
        explain,
    }
    .wait()
}

/// Runs a worker's job, and reports its end whatever it is.
fn work<A: Copy, R, F>(
    worker: usize,
    job: impl FnOnce(&mut JobContext<'_, A>) -> Result<R, JobError<F>>,
    cancel: CancelToken,
    stop: StopHandle,
    reports: &Sender<Report<A, R, F>>,
) {
    let mut at = None;
    let did = |action| {
        let _ = reports.send(Report::Did { worker, action });
    };
    let mut context = JobContext {
        at: &mut at,
        cancel,
        stop,
        did: &did,
    };
    // All that the job holds is dropped by the time it returns or unwinds, which is before the
    // report: its outboxes, so that others end too, and all that the caller may then want for
    // itself.
    let end = match catch_unwind(AssertUnwindSafe(|| job(&mut context))) {
        Ok(Ok(done)) => End::Done(done),
        Ok(Err(early)) => End::Early(early),
        Err(panic) => End::Panicked(panic),
    };
    let _ = reports.send(Report::Ended { worker, at, end });
}

/// The caller's side of a step.
struct Coordinator<'a, A, R, F, Tell, Explain> {
    workers: &'a [Worker],
    inbox: Receiver<Report<A, R, F>>,
    cancel_source: CancelSource,
    waited_for: Vec<bool>,
    stall_timeout: Option<Duration>,
    tell: Tell,
    explain: Explain,
}

/// Why a step will fail.
enum Failure<E> {
    /// A worker failed.
    OfWork(E),
    /// Anything else.
    Other(E),
}

impl<A, R, F, E, Tell, Explain> Coordinator<'_, A, R, F, Tell, Explain>
where
    Tell: FnMut(usize, A) -> Result<(), E>,
    Explain: FnMut(Fault<A, F>) -> E,
{
    fn wait(mut self) -> Result<Vec<R>, E> {
        let mut results: Vec<Option<R>> = self.waited_for.iter().map(|_| None).collect();
        let mut failure = None;
        while self.waited_for.contains(&true) {
            match self.next_report() {
                Ok(Report::Did { worker, action }) => {
                    if let Err(error) = (self.tell)(worker, action) {
                        failure.get_or_insert(Failure::Other(error));
                    }
                }
                Ok(Report::Ended { worker, at, end }) => {
                    self.waited_for[worker] = false;
                    let cause = match end {
                        End::Done(result) => {
                            results[worker] = Some(result);
                            continue;
                        }
                        End::Early(JobError::Cancelled) => None,
                        End::Early(JobError::Stopped) => {
                            let stopped = || Failure::Other((self.explain)(Fault::Stopped));
                            failure.get_or_insert_with(stopped);
                            None
                        }
                        End::Early(JobError::Failed(cause)) => Some(Cause::Error(cause)),
                        End::Panicked(panic) => Some(Cause::Panicked(panic)),
                    };
                    // A second failure of the same step may well come of the first.
                    if let Some(cause) = cause
                        && !matches!(failure, Some(Failure::OfWork(_)))
                    {
                        let action = at;
                        failure = Some(Failure::OfWork((self.explain)(Fault::Failed {
                            worker,
                            action,
                            cause,
                        })));
                    }
                    self.cancel_source.cancel();
                }
                Err(ReceiveError::TimedOut) => {
                    let stalled = || Failure::Other((self.explain)(Fault::Stalled));
                    failure.get_or_insert_with(stalled);
                    self.give_up();
                    break;
                }
                Err(ReceiveError::Disconnected | ReceiveError::Cancelled) => break,
            }
            if failure.is_some() {
                self.cancel_source.cancel();
            }
        }
        match failure {
            Some(Failure::OfWork(error) | Failure::Other(error)) => Err(error),
            None => {
                let results: Option<Vec<_>> = results.into_iter().collect();
                results.ok_or_else(|| (self.explain)(Fault::Lost))
            }
        }
    }

    fn next_report(&self) -> Result<Report<A, R, F>, ReceiveError> {
        (self.inbox).receive_until(self.stall_timeout.and_then(Deadline::after))
    }

    /// Nothing was heard for too long: lets those go that only wait, and gives up the rest.
    fn give_up(&mut self) {
        self.cancel_source.cancel();
        let grace = self
            .stall_timeout
            .map_or(GRACE, |stall_timeout| stall_timeout.min(GRACE));
        let deadline = Deadline::after(grace);
        while self.waited_for.contains(&true) {
            match self.inbox.receive_until(deadline) {
                Ok(Report::Ended { worker, .. }) => self.waited_for[worker] = false,
                Ok(Report::Did { .. }) => {}
                Err(_) => break,
            }
        }
        for (worker, waited_for) in self.workers.iter().zip(&self.waited_for) {
            if *waited_for {
                worker.give_up();
            }
        }
    }
}
