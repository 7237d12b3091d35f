//! One step: a job for each worker, and a caller that waits until all jobs have ended.
//!
//! Workers send reports through one queue. The first failure cancels the step for all. The caller still
//! waits for every worker, so nothing of a step outlives it. If no report arrives within the stall timeout,
//! the caller gives up the workers that have not ended, and the step fails.
//!
//! A worker that waits for a message is woken by the message, by the end of the sender (which drops its
//! outboxes), or by the cancelled step, from inside or outside. The caller is woken by reports; the last
//! report of each worker says that it has ended. A request to stop wakes nobody: a worker sees it before its
//! next action, and some worker always has one.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    cancel::{CancelHandle, CancelSource, CancelToken},
    queue::{ReceiveError, Receiver, Sender, queue},
    stop::StopHandle,
    sync::Deadline,
    worker::Worker,
};

/// How long the other workers may take to end when a step has stalled.
const GRACE: Duration = Duration::from_secs(1);

/// When a step ends early.
#[derive(Debug)]
pub struct StepOptions<'a, C> {
    /// Ends the step on request.
    pub stop: &'a StopHandle,
    /// Ends the step for a reason from outside.
    pub cancel: &'a CancelHandle<C>,
    /// The step's number for `cancel`, greater than those of earlier steps.
    pub number: u64,
    /// How long the caller waits for the next report; without a limit if `None`. If reports are late, a
    /// stall may be found after twice as long.
    pub stall_timeout: Option<Duration>,
    /// Whether reports of finished actions may be late: they wake nobody then. Only the end of a job does.
    pub late_reports: bool,
}

/// Why a job ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobError<F> {
    /// It failed.
    Failed(F),
    /// Another job failed, or the step was cancelled from outside.
    Cancelled,
    /// A stop was requested.
    Stopped,
}

/// What went wrong in a step.
pub enum Fault<A, F, C> {
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
    /// The step was cancelled from outside, for this reason.
    Cancelled(C),
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
    /// What ends the waits of this job if the step is cancelled.
    #[must_use]
    pub fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

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

/// What a worker reports.
enum Report<A, R, F> {
    ActionDone(A),
    /// The job has ended, in this action.
    JobEnded(Option<A>, Result<R, JobError<Cause<F>>>),
}

/// The reports of all workers, by their index.
type Reports<A, R, F> = Sender<(usize, Report<A, R, F>)>;

/// Runs a step: one job on each worker. Returns their results when all have ended.
///
/// `on_action` is called for each finished action, on the caller's thread; if it fails, the step
/// ends. `to_error` turns a fault into an error, before the caller cancels the other workers. A failed
/// job takes precedence over any other fault, and the first failure over later ones.
///
/// ```
/// use stovepipe_runtime::{
///     CancelHandle, JobContext, JobError, StepOptions, StopHandle, Worker, mailbox, step,
/// };
///
/// let workers = [Worker::spawn("left")?, Worker::spawn("right")?];
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
/// let (stop, cancel) = (StopHandle::new(), CancelHandle::<String>::new());
/// let options = StepOptions { stop: &stop, cancel: &cancel, number: 0, stall_timeout: None, late_reports: false };
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
pub fn step<A, R, F, C, E, J>(
    workers: &[Worker],
    jobs: Vec<J>,
    options: StepOptions<'_, C>,
    on_action: impl FnMut(usize, A) -> Result<(), E>,
    to_error: impl FnMut(Fault<A, F, C>) -> E,
) -> Result<Vec<R>, E>
where
    A: Copy + Send + 'static,
    R: Send + 'static,
    F: Send + 'static,
    J: FnOnce(&mut JobContext<'_, A>) -> Result<R, JobError<F>> + Send + 'static,
{
    let (reports, inbox) = queue();
    let mut cancel_source = CancelSource::new();
    let jobs: Vec<_> = (workers.iter().zip(jobs))
        .map(|(worker, job)| (worker, job, cancel_source.token()))
        .collect();
    let running = vec![true; jobs.len()];
    options.cancel.begin(options.number, &cancel_source);
    for (index, (worker, job, cancel)) in jobs.into_iter().enumerate() {
        let (stop, reports) = (options.stop.clone(), reports.clone());
        let late = options.late_reports;
        worker.run(move || work(index, job, cancel, stop, (&reports, late)));
    }
    // Only the workers hold senders now: when all have ended, the queue is disconnected.
    drop(reports);
    Coordinator {
        workers,
        inbox,
        cancel_source,
        running,
        options,
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
    (reports, late): (&Reports<A, R, F>, bool),
) {
    let mut current = None;
    let report_done = |action| {
        let report = (worker, Report::ActionDone(action));
        match late {
            true => reports.send_quietly(report),
            false => drop(reports.send(report)),
        }
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
        Ok(Ok(done)) => Ok(done),
        Ok(Err(JobError::Failed(error))) => Err(JobError::Failed(Cause::Error(error))),
        Ok(Err(JobError::Cancelled)) => Err(JobError::Cancelled),
        Ok(Err(JobError::Stopped)) => Err(JobError::Stopped),
        Err(panic) => Err(JobError::Failed(Cause::Panicked(panic))),
    };
    let _ = reports.send((worker, Report::JobEnded(current, end)));
}

/// The caller's side of a step.
struct Coordinator<'a, A, R, F, C, OnAction, ToError> {
    workers: &'a [Worker],
    inbox: Receiver<(usize, Report<A, R, F>)>,
    cancel_source: CancelSource,
    /// Whether each worker's job has not ended yet.
    running: Vec<bool>,
    options: StepOptions<'a, C>,
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

impl<A, R, F, C, E, OnAction, ToError> Coordinator<'_, A, R, F, C, OnAction, ToError>
where
    OnAction: FnMut(usize, A) -> Result<(), E>,
    ToError: FnMut(Fault<A, F, C>) -> E,
{
    fn wait(mut self) -> Result<Vec<R>, E> {
        let mut results: Vec<Option<R>> = self.running.iter().map(|_| None).collect();
        let mut failure = None;
        while self.running.contains(&true) {
            let deadline = self.options.stall_timeout.and_then(Deadline::after);
            let report = self.inbox.receive_until(deadline);
            if let Some(reason) = self.options.cancel.take_reason(self.options.number) {
                failure.get_or_insert_with(|| {
                    Failure::Other((self.to_error)(Fault::Cancelled(reason)))
                });
            }
            match report {
                Ok((worker, Report::ActionDone(action))) => {
                    if let Err(error) = (self.on_action)(worker, action) {
                        failure.get_or_insert(Failure::Other(error));
                    }
                }
                Ok((worker, Report::JobEnded(action, end))) => {
                    self.running[worker] = false;
                    match end {
                        Ok(result) => results[worker] = Some(result),
                        Err(error) => {
                            self.job_failed(worker, action, error, &mut failure);
                            self.cancel_source.cancel();
                        }
                    }
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
        error: JobError<Cause<F>>,
        failure: &mut Option<Failure<E>>,
    ) {
        match error {
            JobError::Stopped => {
                failure.get_or_insert_with(|| Failure::Other((self.to_error)(Fault::Stopped)));
            }
            JobError::Failed(cause) if !matches!(failure, Some(Failure::Job(_))) => {
                let fault = Fault::Failed {
                    worker,
                    action,
                    cause,
                };
                *failure = Some(Failure::Job((self.to_error)(fault)));
            }
            JobError::Failed(_) | JobError::Cancelled => {}
        }
    }

    /// No report arrived in time: cancels the workers that only wait, and gives up the others.
    fn give_up(&mut self) {
        self.cancel_source.cancel();
        let grace = (self.options.stall_timeout).map_or(GRACE, |limit| limit.min(GRACE));
        let deadline = Deadline::after(grace);
        while self.running.contains(&true) {
            match self.inbox.receive_until(deadline) {
                Ok((worker, Report::JobEnded(..))) => self.running[worker] = false,
                Ok((_, Report::ActionDone(_))) => {}
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
