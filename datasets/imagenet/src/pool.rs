//! Worker threads that work ahead, and results in the order of the jobs.
//!
//! The consumer sends the jobs: at first as many as may be in progress, then one for each result it takes. So the number of
//! waiting results is limited, and workers never block when they send a result. Results that arrive early are kept. A panic
//! becomes the result of its job. Dropping the pool closes the queue of jobs, stops the work in progress, and joins the
//! threads.

use std::{
    collections::BTreeMap,
    io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{Builder, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::error::panic_message;

#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The results of jobs 0 to `end`, in order.
pub(crate) struct OrderedPool<R> {
    jobs: Option<Sender<usize>>,
    results: Receiver<(usize, Result<R, String>)>,
    early: BTreeMap<usize, Result<R, String>>,
    /// The next job to send, and the next result to return.
    next_job: usize,
    next_result: usize,
    end: usize,
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

impl<R: Send + 'static> OrderedPool<R> {
    /// Starts jobs 0 to `end` on `threads` threads, at most `at_once` before a result is taken. Each thread calls `make`
    /// once for its worker.
    pub fn start<W>(
        end: usize,
        threads: usize,
        at_once: usize,
        make: impl Fn(Stop) -> W + Send + Sync + 'static,
    ) -> io::Result<Self>
    where
        W: FnMut(usize) -> R,
    {
        let (jobs, receiver) = unbounded();
        let (done, results) = unbounded();
        let mut pool = Self {
            jobs: Some(jobs),
            results,
            early: BTreeMap::new(),
            next_job: 0,
            next_result: 0,
            end,
            stop: Stop::default(),
            threads: Vec::new(),
        };
        let make = Arc::new(make);
        for number in 0..threads.clamp(1, end.max(1)) {
            let (receiver, done) = (receiver.clone(), done.clone());
            let (make, stop) = (make.clone(), pool.stop.clone());
            let thread = Builder::new().name(format!("images-{number}"));
            let thread = thread.spawn(move || work(&receiver, &done, || make(stop.clone())))?;
            pool.threads.push(thread);
        }
        (0..at_once.max(1)).for_each(|_| pool.send_job());
        Ok(pool)
    }

    fn send_job(&mut self) {
        if let Some(jobs) = &self.jobs
            && self.next_job < self.end
        {
            // Workers live longer than the sender.
            let _ = jobs.send(self.next_job);
            self.next_job += 1;
        }
    }
}

fn work<R, W: FnMut(usize) -> R>(
    jobs: &Receiver<usize>,
    results: &Sender<(usize, Result<R, String>)>,
    make: impl Fn() -> W,
) {
    let mut worker = None;
    for job in jobs {
        let result = catch_unwind(AssertUnwindSafe(|| worker.get_or_insert_with(&make)(job)));
        let result = result.map_err(|panic| {
            // Its state may be inconsistent.
            worker = None;
            panic_message(&*panic).to_owned()
        });
        if results.send((job, result)).is_err() {
            return;
        }
    }
}

impl<R: Send + 'static> Iterator for OrderedPool<R> {
    type Item = Result<R, String>;

    /// The next result, or the message of a panic.
    fn next(&mut self) -> Option<Self::Item> {
        if self.next_result == self.end {
            return None;
        }
        let result = loop {
            if let Some(result) = self.early.remove(&self.next_result) {
                break result;
            }
            match self.results.recv() {
                Ok((job, result)) => _ = self.early.insert(job, result),
                Err(_) => break Err("the worker threads have ended".to_owned()),
            }
        };
        self.next_result += 1;
        self.send_job();
        Some(result)
    }
}

impl<R> Drop for OrderedPool<R> {
    fn drop(&mut self) {
        self.jobs = None;
        self.stop.0.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicUsize, thread, time::Duration};

    use super::*;

    /// Some jobs take longer than those after them.
    fn slow(job: usize) -> usize {
        thread::sleep(Duration::from_millis(((job * 7) % 5) as u64));
        job * job
    }

    #[test]
    fn results_are_in_order() {
        for threads in [1, 2, 5, 40] {
            let pool = OrderedPool::start(30, threads, threads + 2, |_| slow).unwrap();
            let results: Vec<_> = pool.map(Result::unwrap).collect();
            assert!(results.into_iter().eq((0..30).map(|job| job * job)));
        }
        assert_eq!(OrderedPool::start(0, 3, 3, |_| slow).unwrap().count(), 0);
    }

    #[test]
    fn the_work_ahead_is_limited() {
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let mut pool = OrderedPool::start(100, 3, 5, move |_| {
            let count = count.clone();
            move |job| {
                count.fetch_add(1, Ordering::SeqCst);
                job
            }
        })
        .unwrap();
        for taken in 0..20 {
            thread::sleep(Duration::from_millis(2));
            assert!(begun.load(Ordering::SeqCst) <= taken + 5);
            assert_eq!(pool.next(), Some(Ok(taken)));
        }
    }

    #[test]
    fn a_panic_is_the_result_of_its_job_only() {
        let pool = OrderedPool::start(6, 2, 4, |_| {
            |job| {
                if job == 2 {
                    panic!("job {job} is bad")
                } else {
                    job
                }
            }
        });
        let results: Vec<_> = pool.unwrap().collect();
        assert_eq!(results.len(), 6);
        for (job, result) in results.into_iter().enumerate() {
            let bad = || Err("job 2 is bad".to_owned());
            assert_eq!(result, if job == 2 { bad() } else { Ok(job) });
        }
    }

    #[test]
    fn dropping_the_pool_stops_the_threads() {
        let running = Arc::new(AtomicUsize::new(0));
        let count = running.clone();
        let pool = OrderedPool::start(100, 3, 100, move |stop| {
            let count = count.clone();
            move |_| {
                count.fetch_add(1, Ordering::SeqCst);
                while !stop.is_set() {
                    thread::yield_now();
                }
                count.fetch_sub(1, Ordering::SeqCst);
            }
        });
        while running.load(Ordering::SeqCst) < 3 {
            thread::yield_now();
        }
        drop(pool);
        assert_eq!(running.load(Ordering::SeqCst), 0);
        assert_eq!(Arc::strong_count(&running), 1);
    }
}
