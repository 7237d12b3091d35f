//! One step: a job for each worker, and a caller that waits until all jobs have ended.
//!
//! Workers send reports through one queue. The first failure cancels the step for all. The caller
//! still waits for every worker, so nothing of a step outlives it. If no report arrives within the
//! stall timeout, the caller gives up the workers that have not ended, and the step fails.
//!
//! A worker that waits for a message is woken by the message, by the end of the sender (which drops
//! its outboxes), or by the cancelled step. The caller is woken by reports; the last report of each
//! worker says that it has ended, for whatever reason. A request to stop wakes nobody: a worker sees
//! it before its next action, and some worker always has one.

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

/// How long the other workers may take to end when a step has stalled.
const GRACE: Duration = Duration::from_secs(1);

/// When a step ends early.
#[derive(Clone, Copy, Debug)]
pub struct StepOptions<'a> {
    /// Ends the step on request.
    pub stop: &'a StopHandle,
    /// How long the caller waits for the next report; without a limit if `None`.
    pub stall_timeout: Option<Duration>,
}

/// Why a job ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobError<F> {
    /// It failed.
    Failed(F),
    /// Another job failed.
    Cancelled,
    /// A stop was requested.
    Stopped,
}

/// What went wrong in a step.
pub enum Fault<A, F> {
    /// A job failed.
    Failed {
        /// The worker.
        worker: usize,
        /// The action that failed, if the job had begun one.
        action: Option<A>,
        /// The reason.
        cause: Cause<F>,
    },
    /// No report arrived within the stall timeout.
    Stalled,
    /// A stop was requested.
    Stopped,
    /// A worker ended without a report.
    Lost,
}

/// Why a job failed.
pub enum Cause<F> {
    /// It returned an error.
    Error(F),
    /// It panicked.
    Panicked(Box<dyn Any + Send>),
}

/// What a job needs to take part in a step.
pub struct JobContext<'a, A> {
    current: &'a mut Option<A>,
    cancel: CancelToken,
    stop: StopHandle,
    report_done: &'a dyn Fn(A),
}

impl<A: Copy> JobContext<'_, A> {
    /// Runs the next action, unless the step has ended, and reports that it is done.
    ///
    /// # Errors
    ///
    /// Those of `work`, and why the step has ended.
    pub fn act<T, F>(
        &mut self,
        action: A,
        work: impl FnOnce(&CancelToken) -> Result<T, JobError<F>>,
    ) -> Result<T, JobError<F>> {
        *self.current = Some(action);
        if self.stop.is_stopped() {
            return Err(JobError::Stopped);
        }
        if self.cancel.is_cancelled() {
            return Err(JobError::Cancelled);
        }
        let done = work(&self.cancel)?;
        (self.report_done)(action);
        Ok(done)
    }
}

enum Report<A, R, F> {
    ActionDone {
        worker: usize,
        action: A,
    },
    JobEnded {
        worker: usize,
        action: Option<A>,
        end: JobEnd<R, F>,
    },
}

enum JobEnd<R, F> {
    Done(R),
    Error(JobError<F>),
    Panicked(Box<dyn Any + Send>),
}

/// Runs a step: one job on each worker. Returns their results when all have ended.
///
/// `on_action` is called for each finished action, on the caller's thread; if it fails, the step
/// ends. `to_error` turns a fault into an error, before the other workers are cancelled. A failed job
/// takes precedence over any other fault, and the first failure over later ones.
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
/// let mut actions = Vec::new();
/// let on_action = |worker, action| Ok(actions.push((worker, action)));
/// let done = step(&workers, jobs, options, on_action, |_fault| "failed");
/// assert_eq!(done, Ok(vec![1, 20]));
/// assert_eq!(actions, [(0, "send"), (1, "receive")]);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
///
/// Those of `on_action` and `to_error`.
pub fn step<A, R, F, E, J>(
    workers: &[Worker],
    jobs: Vec<J>,
    options: StepOptions<'_>,
    on_action: impl FnMut(usize, A) -> Result<(), E>,
    to_error: impl FnMut(Fault<A, F>) -> E,
) -> Result<Vec<R>, E>
where
    A: Copy + Send + 'static,
    R: Send + 'static,
    F: Send + 'static,
    J: FnOnce(&mut JobContext<'_, A>) -> Result<R, JobError<F>> + Send + 'static,
{
    let (reports, inbox) = queue();
    let mut cancel_source = CancelSource::new();
    let mut running = Vec::new();
    for ((index, worker), job) in workers.iter().enumerate().zip(jobs) {
        let (cancel, stop, reports) =
            (cancel_source.token(), options.stop.clone(), reports.clone());
        worker.run(move || work(index, job, cancel, stop, &reports));
        running.push(true);
    }
    // Only the workers hold senders now: when all have ended, the queue is disconnected.
    drop(reports);
    Coordinator {
        workers,
        inbox,
        cancel_source,
        running,
        stall_timeout: options.stall_timeout,
        on_action,
        to_error,
    }
    .wait()
}

/// Runs a worker's job and reports how it ended.
fn work<A: Copy, R, F>(
    worker: usize,
    job: impl FnOnce(&mut JobContext<'_, A>) -> Result<R, JobError<F>>,
    cancel: CancelToken,
    stop: StopHandle,
    reports: &Sender<Report<A, R, F>>,
) {
    let mut current = None;
    let report_done = |action| {
        let _ = reports.send(Report::ActionDone { worker, action });
    };
    let mut context = JobContext {
        current: &mut current,
        cancel,
        stop,
        report_done: &report_done,
    };
    // When the job returns or unwinds, all that it holds is dropped before the report is sent: its
    // outboxes, so that others end too, and what the caller may then need.
    let end = match catch_unwind(AssertUnwindSafe(|| job(&mut context))) {
        Ok(Ok(done)) => JobEnd::Done(done),
        Ok(Err(error)) => JobEnd::Error(error),
        Err(panic) => JobEnd::Panicked(panic),
    };
    let action = current;
    let _ = reports.send(Report::JobEnded {
        worker,
        action,
        end,
    });
}

/// The caller's side of a step.
struct Coordinator<'a, A, R, F, OnAction, ToError> {
    workers: &'a [Worker],
    inbox: Receiver<Report<A, R, F>>,
    cancel_source: CancelSource,
    /// Whether each worker's job has not ended yet.
    running: Vec<bool>,
    stall_timeout: Option<Duration>,
    on_action: OnAction,
    to_error: ToError,
}

/// Why a step will fail.
enum Failure<E> {
    /// A job failed.
    Job(E),
    /// Anything else.
    Other(E),
}

impl<A, R, F, E, OnAction, ToError> Coordinator<'_, A, R, F, OnAction, ToError>
where
    OnAction: FnMut(usize, A) -> Result<(), E>,
    ToError: FnMut(Fault<A, F>) -> E,
{
    fn wait(mut self) -> Result<Vec<R>, E> {
        let mut results: Vec<Option<R>> = self.running.iter().map(|_| None).collect();
        let mut failure = None;
        while self.running.contains(&true) {
            let deadline = self.stall_timeout.and_then(Deadline::after);
            match self.inbox.receive_until(deadline) {
                Ok(Report::ActionDone { worker, action }) => {
                    if let Err(error) = (self.on_action)(worker, action) {
                        failure.get_or_insert(Failure::Other(error));
                    }
                }
                Ok(Report::JobEnded {
                    worker,
                    action,
                    end,
                }) => {
                    self.running[worker] = false;
                    if let JobEnd::Done(result) = end {
                        results[worker] = Some(result);
                        continue;
                    }
                    self.job_failed(worker, action, end, &mut failure);
                    self.cancel_source.cancel();
                }
                Err(ReceiveError::TimedOut) => {
                    failure.get_or_insert_with(|| Failure::Other((self.to_error)(Fault::Stalled)));
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
            Some(Failure::Job(error) | Failure::Other(error)) => Err(error),
            None => {
                let results: Option<Vec<_>> = results.into_iter().collect();
                results.ok_or_else(|| (self.to_error)(Fault::Lost))
            }
        }
    }

    /// Remembers why a job ended early. The first failed job counts: later ones may follow from it.
    fn job_failed(
        &mut self,
        worker: usize,
        action: Option<A>,
        end: JobEnd<R, F>,
        failure: &mut Option<Failure<E>>,
    ) {
        let cause = match end {
            JobEnd::Done(_) | JobEnd::Error(JobError::Cancelled) => return,
            JobEnd::Error(JobError::Stopped) => {
                failure.get_or_insert_with(|| Failure::Other((self.to_error)(Fault::Stopped)));
                return;
            }
            JobEnd::Error(JobError::Failed(cause)) => Cause::Error(cause),
            JobEnd::Panicked(panic) => Cause::Panicked(panic),
        };
        if !matches!(failure, Some(Failure::Job(_))) {
            *failure = Some(Failure::Job((self.to_error)(Fault::Failed {
                worker,
                action,
                cause,
            })));
        }
    }

    /// No report arrived in time: cancels the workers that only wait, and gives up the others.
    fn give_up(&mut self) {
        self.cancel_source.cancel();
        let grace = self.stall_timeout.map_or(GRACE, |limit| limit.min(GRACE));
        let deadline = Deadline::after(grace);
        while self.running.contains(&true) {
            match self.inbox.receive_until(deadline) {
                Ok(Report::JobEnded { worker, .. }) => self.running[worker] = false,
                Ok(Report::ActionDone { .. }) => {}
                Err(_) => break,
            }
        }
        for (worker, running) in self.workers.iter().zip(&self.running) {
            if *running {
                worker.give_up();
            }
        }
    }
}
