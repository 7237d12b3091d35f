//! A thread that lives as long as the pipeline.
//!
//! Life: `spawn` returns once the thread is set up. Jobs run in the order in which they are given;
//! a job that panics ends itself alone. Dropping the worker closes its queue, waits for the job at
//! hand and joins the thread, unless the worker is stuck in a job, which nothing can end from
//! outside: then the thread is let go, and ends by itself when the job does.
//!
//! Stuck is a worker that was given up and has not ended all that it had been given by then. Jobs
//! are counted when they are handed over and when they have ended, and to give up is to remember
//! how many were handed over: no flag needs to be reset, and so none is set too late.

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

/// A thread that runs one job after the other.
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    tally: Arc<Mutex<Tally>>,
}

#[derive(Debug, Default)]
struct Tally {
    handed: u64,
    ended: u64,
    /// How many must have ended before the worker is not stuck.
    given_up: u64,
}

impl Worker {
    /// Starts a worker. `set_up` runs on its thread before all jobs; what it returns stays there,
    /// and is dropped after the last.
    ///
    /// ```
    /// use stovepipe_runtime::Worker;
    ///
    /// let worker = Worker::spawn("adder", || Ok("what the jobs need on their thread"))?;
    /// let (sum, found) = std::sync::mpsc::channel();
    /// worker.run(move || sum.send(1 + 2).unwrap());
    /// assert_eq!(found.recv(), Ok(3));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no thread to be had, or the set-up fails.
    pub fn spawn<G>(
        name: &str,
        set_up: impl FnOnce() -> io::Result<G> + Send + 'static,
    ) -> io::Result<Self> {
        let (jobs, queue) = queue::<Job>();
        let (ready, started) = crate::queue::queue();
        let tally = Arc::<Mutex<Tally>>::default();
        let own_tally = tally.clone();
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || match set_up() {
                Ok(kept) => {
                    let _ = ready.send(Ok(()));
                    serve(&queue, &own_tally);
                    drop(kept);
                }
                Err(error) => {
                    let _ = ready.send(Err(error));
                }
            })?;
        started
            .receive()
            .unwrap_or_else(|_| Err(io::Error::other("the worker ended before it began")))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            tally,
        })
    }

    /// Queues a job. Returns false if the worker is no more.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        lock(&self.tally).handed += 1;
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(Box::new(job)).is_ok())
    }

    /// Waits until the jobs that it was handed so far have ended, but no longer than `stall_timeout`: then
    /// it is given up.
    ///
    /// ```
    /// use std::{sync::mpsc::channel, time::Duration};
    ///
    /// use stovepipe_runtime::Worker;
    ///
    /// let worker = Worker::spawn("waiter", || Ok(()))?;
    /// let (open, gate) = channel::<()>();
    /// worker.run(move || drop(gate.recv()));
    /// worker.settle(Some(Duration::from_millis(10)));
    /// assert!(worker.is_stuck());
    /// drop(open);
    /// worker.settle(None);
    /// assert!(!worker.is_stuck());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn settle(&self, stall_timeout: Option<Duration>) {
        let (last, ended) = queue::<()>();
        // Not sent, but dropped: with the job, and if there is nobody to run it, at once.
        self.run(move || drop(last));
        let deadline = stall_timeout.and_then(Deadline::after);
        if ended.receive_until(deadline) == Err(ReceiveError::TimedOut) {
            self.give_up();
        }
    }

    /// Stops counting on the jobs that it has to end.
    pub(crate) fn give_up(&self) {
        let mut tally = lock(&self.tally);
        tally.given_up = tally.handed;
    }

    /// Whether a job that was given up is still being run.
    #[must_use]
    pub fn is_stuck(&self) -> bool {
        let tally = lock(&self.tally);
        tally.ended < tally.given_up
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
        // Jobs report their own panics; this only keeps the worker alive.
        let _ = catch_unwind(AssertUnwindSafe(job));
        lock(tally).ended += 1;
    }
}
