//! A worker's thread, with its own CPU pool.
//!
//! Burn locks an autodiff graph as a whole, keeps running statistics per thread, and runs CPU kernels in the
//! pool of the calling thread. So the worker's thread is the first of its pool, and jobs run on that thread
//! alone; only kernels use the whole pool.
//!
//! On a GPU, a thread is also a stream: CubeCL 0.11 numbers streams by thread (`StreamId::current`), up to
//! 128 per device (`streaming.max_streams`). On CUDA each is a stream of the driver, so workers on one card
//! run side by side. On wgpu each has its own memory and encoders, and all share one queue. A kernel that
//! reads what another stream writes waits for it, so workers on one device need no copies.

use std::{
    io,
    sync::{Mutex, PoisonError},
    thread::Builder,
    time::{Duration, Instant},
};

use burn::tensor::Device;
use rayon::ThreadPoolBuilder;
use stovepipe_runtime::JobError;
pub(crate) use stovepipe_runtime::Worker;

use crate::{
    api::error::{BoxedError, BuildError, FailureCause},
    engine::panic::caught,
};

/// Why an action of a worker failed.
pub(crate) type ActionError = JobError<FailureCause>;

/// How long an idle worker may take to answer.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// The default time limit of one action: the first kernels of a device may compile for minutes.
pub(crate) const STALL_TIMEOUT: Duration = Duration::from_secs(600);

/// Starts a worker whose kernels use `threads` threads, its own among them.
pub(crate) fn spawn(name: &str, threads: usize) -> io::Result<Worker> {
    let own_name = name.to_owned();
    Worker::spawn_in(name, move |serve| serve_in_pool(&own_name, threads, serve))
}

/// Starts a worker outside of a pipeline.
pub(crate) fn spawn_alone(name: &str, threads: usize) -> Result<Worker, BuildError> {
    spawn(name, threads).map_err(|source| BuildError::Worker { worker: 0, source })
}

/// Queues work on a stage's worker whose result goes to another thread: what it launched there is sent to the device.
pub(crate) fn run_for<R>(
    worker: &Worker,
    device: Device,
    work: impl FnOnce() -> Result<R, BoxedError> + Send + 'static,
    done: impl FnOnce(Result<R, BoxedError>) + Send + 'static,
) {
    worker.run(move || {
        let found = caught(work).map_err(BoxedError::from).flatten();
        done(found.and_then(|found| {
            device.flush()?;
            Ok(found)
        }));
    });
}

/// Waits until all workers have finished their queued jobs: at most `stall_timeout` in total, and at least
/// [`GRACE`] each. Gives up the others.
pub(crate) fn settle<'a>(
    workers: impl IntoIterator<Item = &'a Worker>,
    stall_timeout: Option<Duration>,
) {
    let began = Instant::now();
    for worker in workers {
        let left = stall_timeout.map(|limit| limit.saturating_sub(began.elapsed()).max(GRACE));
        worker.settle(left);
    }
}

/// The same when a step has failed; only briefly if it has stalled.
pub(crate) fn settle_after<'a>(
    workers: impl IntoIterator<Item = &'a Worker>,
    stall_timeout: Option<Duration>,
    has_stalled: bool,
) {
    let limit = match stall_timeout {
        Some(limit) if has_stalled => Some(limit.min(GRACE)),
        limit => limit,
    };
    settle(workers, limit);
}

/// Runs `serve` on this thread, as the first of a pool.
///
/// Not by Rayon's `use_current_thread`, which never frees the pool: instead, this thread does what a thread of a pool
/// does, and `serve` is its only job. The pool is told to end at once, which it does after that job; Rayon joins no
/// threads, so this does.
fn serve_in_pool(name: &str, threads: usize, serve: Box<dyn FnOnce() + Send>) -> io::Result<()> {
    let (mut own, mut helpers) = (None, Vec::new());
    let pool = ThreadPoolBuilder::new()
        .num_threads(threads)
        .panic_handler(|_| ()) // the worker's jobs report their own
        .spawn_handler(|thread| {
            if thread.index() == 0 {
                own = Some(thread);
                return Ok(());
            }
            let name = format!("{name}.{}", thread.index());
            helpers.push(Builder::new().name(name).spawn(move || thread.run())?);
            Ok(())
        })
        .build();
    let serve = Mutex::new(Some(serve));
    let queued = pool.map_err(io::Error::other).map(|pool| {
        pool.spawn_broadcast(move |thread| {
            let take = || serve.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(serve) = (thread.index() == 0).then(take).flatten() {
                serve();
            }
        });
    });
    if let (Ok(()), Some(own)) = (&queued, own) {
        own.run();
    }
    helpers.into_iter().for_each(|helper| drop(helper.join()));
    queued
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn jobs_run_in_order_on_one_thread_with_the_pool_they_were_given() {
        let worker = spawn("w", 3).unwrap();
        let (send, receive) = channel();
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
}
