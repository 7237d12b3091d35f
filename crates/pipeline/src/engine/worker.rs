//! One long-lived thread, with a CPU pool of its own.
//!
//! A worker owns everything that must stay on one thread: Burn locks an autodiff graph as a whole,
//! keeps running statistics by thread, and runs CPU kernels in the pool of the thread that asks.
//! So the worker's thread *is* a member of its pool (`use_current_thread`): whatever a job does
//! directly is done by one thread, always the same, and only kernels spread over the pool.
//!
//! Life: `spawn` returns once the pool stands. Jobs run in the order in which they are given; a job
//! that panics ends itself alone. Dropping the worker closes its queue, waits for the job at hand
//! and joins every thread, unless the worker is stuck in a job, which nothing can end from outside:
//! then its threads are let go, and end by themselves when the job does.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use rayon::{ThreadPool, ThreadPoolBuilder};

type Job = Box<dyn FnOnce() + Send>;

pub(crate) struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    busy: Arc<AtomicBool>,
    given_up: Arc<AtomicBool>,
}

impl Worker {
    /// Starts a worker whose kernels use `threads` threads, its own among them.
    pub(crate) fn spawn(name: &str, threads: usize) -> io::Result<Self> {
        let (jobs, queue) = unbounded::<Job>();
        let (ready, started) = bounded(1);
        let busy = Arc::new(AtomicBool::new(false));
        let given_up = Arc::new(AtomicBool::new(false));
        let own_name = name.to_owned();
        let flags = (busy.clone(), given_up.clone());
        let thread =
            Builder::new()
                .name(name.to_owned())
                .spawn(move || match pool(&own_name, threads) {
                    Ok((pool, helpers)) => {
                        let _ = ready.send(Ok(()));
                        serve(&queue, &flags.0, &flags.1);
                        drop(pool);
                        for helper in helpers {
                            let _ = helper.join();
                        }
                    }
                    Err(error) => {
                        let _ = ready.send(Err(error));
                    }
                })?;
        started
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the worker ended before it began")))?;
        Ok(Self {
            jobs: Some(jobs),
            thread: Some(thread),
            busy,
            given_up,
        })
    }

    /// Queues a job. Returns false if the worker is no more.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> bool {
        self.jobs
            .as_ref()
            .is_some_and(|jobs| jobs.send(Box::new(job)).is_ok())
    }

    /// Stops counting on the job at hand to end.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Whether the job that was given up is still being run.
    pub(crate) fn is_stuck(&self) -> bool {
        self.given_up.load(Ordering::Acquire) && self.busy.load(Ordering::Acquire)
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

fn serve(queue: &Receiver<Job>, busy: &AtomicBool, given_up: &AtomicBool) {
    for job in queue {
        busy.store(true, Ordering::Release);
        // Jobs report their own panics; this only keeps the worker alive.
        let _ = catch_unwind(AssertUnwindSafe(job));
        busy.store(false, Ordering::Release);
        given_up.store(false, Ordering::Release);
    }
}

/// A pool of which the calling thread is a member, and the handles of its other threads. Rayon
/// does not join the threads of a pool, so they are spawned by hand.
fn pool(name: &str, threads: usize) -> io::Result<(ThreadPool, Vec<JoinHandle<()>>)> {
    let mut helpers = Vec::new();
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .use_current_thread()
        .spawn_handler(|thread| {
            let name = format!("{name}.{}", thread.index());
            helpers.push(Builder::new().name(name).spawn(move || thread.run())?);
            Ok(())
        })
        .build()
        .map_err(io::Error::other)?;
    Ok((pool, helpers))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn jobs_run_in_order_on_one_thread_with_the_pool_they_were_given() {
        let worker = Worker::spawn("w", 3).unwrap();
        let (send, receive) = unbounded();
        for index in 0..4 {
            let send = send.clone();
            worker.run(move || {
                let here = std::thread::current().id();
                send.send((index, here, rayon::current_num_threads()))
                    .unwrap();
            });
        }
        drop(send);
        let seen: Vec<_> = receive.iter().collect();
        assert_eq!(seen.iter().map(|s| s.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        assert!(seen.iter().all(|s| s.1 == seen[0].1 && s.2 == 3));
    }

    #[test]
    fn a_panic_ends_the_job_alone() {
        let worker = Worker::spawn("w", 1).unwrap();
        worker.run(|| panic!("on purpose"));
        let (send, receive) = bounded(1);
        worker.run(move || send.send(1).unwrap());
        assert_eq!(receive.recv(), Ok(1));
    }
}
