//! One direction between two ranks of a process, at a given speed.

use std::{
    io,
    time::{Duration, Instant},
};

use crate::sync::{
    mpsc::{Sender, channel},
    thread::{self, Builder, JoinHandle},
};

/// What is on its way. It is dropped when all of it has arrived.
pub(crate) struct SlowLink<T> {
    queue: Option<Sender<Queued<T>>>,
    thread: Option<JoinHandle<()>>,
}

struct Queued<T> {
    sent: Instant,
    bytes: usize,
    what: T,
}

impl<T: Send + 'static> SlowLink<T> {
    pub(crate) fn start(
        name: String,
        bytes_per_second: u64,
        deliver: impl Fn(T) + Send + 'static,
    ) -> io::Result<Self> {
        let (queue, queued) = channel::<Queued<T>>();
        let thread = Builder::new().name(name).spawn(move || {
            let mut free = Instant::now();
            while let Ok(next) = queued.recv() {
                // From when it was sent, and not from now: a thread that wakes late is no slower link.
                free = free.max(next.sent) + seconds(next.bytes, bytes_per_second);
                thread::sleep(free.saturating_duration_since(Instant::now()));
                deliver(next.what);
            }
        })?;
        Ok(Self {
            queue: Some(queue),
            thread: Some(thread),
        })
    }

    /// Queues what has so many bytes; never waits.
    pub(crate) fn send(&self, bytes: usize, what: T) {
        let sent = Instant::now();
        if let Some(queue) = &self.queue {
            // The thread takes everything until the queue is dropped.
            let _ = queue.send(Queued { sent, bytes, what });
        }
    }
}

impl<T> Drop for SlowLink<T> {
    fn drop(&mut self) {
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn seconds(bytes: usize, bytes_per_second: u64) -> Duration {
    // At most some centuries, which the clock can hold.
    const MOST: f64 = 1e10;
    let seconds = bytes as f64 / bytes_per_second as f64;
    Duration::from_secs_f64(seconds.min(MOST))
}
