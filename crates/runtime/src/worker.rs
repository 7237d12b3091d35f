//! A thread that lives as long as the pipeline.
//!
//! Jobs run in the order in which they are queued. A job that panics ends only itself. Dropping the worker
//! closes its queue, waits for the current job and joins the thread. If the worker is stuck in a job, the
//! thread is detached instead and ends when the job does.
//!
//! A worker is stuck if it was given up and has not finished the jobs that were queued before. It counts
//! queued and finished jobs; giving up stores the number of queued ones. There is no flag to reset, so none
//! can be reset too late.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::{
    queue::{ReceiveError, Receiver, Sender, queue},
    sync::{
        Arc, Deadline, Mutex, lock,
        thread::{Builder, JoinHandle},
    },
};

type Job = Box<dyn FnOnce() + Send>;

/// A thread that runs one job after another.
///
/// ```
/// use std::{sync::mpsc::channel, time::Duration};
/// use stovepipe_runtime::Worker;
///
/// let worker = Worker::spawn("waiter")?;
/// let (open, gate) = channel::<()>();
/// worker.run(move || drop(gate.recv()));
/// worker.settle(Some(Duration::from_millis(10)));
/// assert!(worker.is_stuck());
/// drop(open);
/// worker.settle(None);
/// assert!(!worker.is_stuck());
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tally: Arc<Mutex<Tally>>,
}

#[derive(Debug, Default)]
struct Tally {
    queued: u64,
    finished: u64,
    /// How many must be finished before the worker is no longer stuck.
    given_up: u64,
}

impl Worker {
    /// Starts a worker.
    ///
    /// # Errors
    ///
    /// If the thread cannot be started.
    pub fn spawn(name: &str) -> io::Result<Self> {
        Self::spawn_in(name, |serve| {
            serve();
            Ok(())
        })
    }

    /// Starts a worker whose jobs run within `surround`, which gets a function that runs them until the worker is
    /// dropped, and calls it on the thread that it wants them on.
    ///
    /// ```
    /// use std::sync::mpsc::channel;
    /// use stovepipe_runtime::Worker;
    ///
    /// let (send, said) = channel();
    /// let own = send.clone();
    /// let worker = Worker::spawn_in("guarded", move |serve| {
    ///     serve();
    ///     own.send("after the last job").map_err(std::io::Error::other)
    /// })?;
    /// worker.run(move || drop(send.send("a job")));
    /// drop(worker);
    /// assert_eq!(said.iter().collect::<Vec<_>>(), ["a job", "after the last job"]);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the thread cannot be started, or `surround` fails before the first job.
    pub fn spawn_in(
        name: &str,
        surround: impl FnOnce(Job) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = queue::<Job>();
        let (ready, started) = crate::queue::queue();
        let tally = Arc::<Mutex<Tally>>::default();
        let own_tally = tally.clone();
        let builder = Builder::new().name(name.to_owned());
        let thread = builder.spawn(move || {
            let is_ready = ready.clone();
            let serve = move || {
                let _ = is_ready.send(Ok(()));
                serve(&queue, &own_tally);
            };
            if let Err(error) = surround(Box::new(serve)) {
                let _ = ready.send(Err(error));
            }
        })?;
        let ended = |_| Err(io::Error::other("the thread ended during set-up"));
        started.receive().unwrap_or_else(ended)?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tally,
        })
    }

    /// Queues a job. Returns false if the thread has ended.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        lock(&self.tally).queued += 1;
        let jobs = self.jobs.as_ref();
        jobs.is_some_and(|jobs| jobs.send(Box::new(job)).is_ok())
    }

    /// Waits until the jobs that are queued now have finished. After `stall_timeout`, gives the worker
    /// up.
    pub fn settle(&self, stall_timeout: Option<Duration>) {
        let (last, ended) = queue::<()>();
        // Dropped with the job, or at once if the thread has ended.
        self.run(move || drop(last));
        let deadline = stall_timeout.and_then(Deadline::after);
        if ended.receive_until(deadline) == Err(ReceiveError::TimedOut) {
            self.give_up();
        }
    }

    /// Stops waiting for the jobs that are queued now.
    pub(crate) fn give_up(&self) {
        let mut tally = lock(&self.tally);
        tally.given_up = tally.queued;
    }

    /// Whether a job that was given up is still running.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let tally = lock(&self.tally);
        tally.finished < tally.given_up
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take().filter(|_| !self.is_stuck()) {
            let _ = thread.join();
        }
    }
}

fn serve(queue: &Receiver<Job>, tally: &Mutex<Tally>) {
    while let Ok(job) = queue.receive() {
        // Jobs report their own panics; this keeps the worker alive.
        let _ = catch_unwind(AssertUnwindSafe(job));
        lock(tally).finished += 1;
    }
}
