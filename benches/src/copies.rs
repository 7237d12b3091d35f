//! Independent copies of the plain loop at once, each on a thread of its own: what so many threads
//! reach together when nothing holds them back but the machine. No pipeline can be faster.

use std::{
    sync::{
        Arc, Barrier,
        mpsc::{Receiver, Sender, channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::{
    Failure,
    measure::{Cost, count, processor_seconds},
    measured::Measured,
    plain::PlainLoop,
    threads::compute_alone,
};

/// Loops that wait to take a turn together.
pub struct Copies {
    copies: Vec<Copy>,
}

struct Copy {
    /// How long to work; dropped to end the thread.
    orders: Option<Sender<Duration>>,
    /// How many steps it made, and the seconds of all.
    answers: Receiver<Result<(f64, f64), Failure>>,
    thread: Option<JoinHandle<()>>,
}

impl Copies {
    /// Starts `count` copies, each with a model of its own and `micro_batches` micro-batches.
    ///
    /// # Errors
    ///
    /// If there is no such model.
    pub fn start(
        model: &dyn Measured,
        count: usize,
        micro_batches: usize,
    ) -> Result<Self, Failure> {
        let barrier = Arc::new(Barrier::new(count));
        let copies = (0..count).map(|_| {
            let plain = model.plain(micro_batches)?;
            Ok(Copy::start(plain, barrier.clone()))
        });
        let copies = copies.collect::<Result<_, Failure>>()?;
        Ok(Self { copies })
    }

    /// All work at once for at least `least`. The seconds of a mini-batch are one over the number
    /// that they finish in a second together.
    ///
    /// # Errors
    ///
    /// If a copy failed.
    pub fn turn(&mut self, least: Duration) -> Result<Cost, Failure> {
        let before = processor_seconds();
        for copy in &self.copies {
            if let Some(orders) = &copy.orders {
                orders.send(least)?;
            }
        }
        let (mut rate, mut all) = (0.0, 0.0);
        for copy in &self.copies {
            let (steps, seconds) = copy.answers.recv()??;
            rate += steps / seconds;
            all += steps;
        }
        Ok(Cost {
            seconds: 1.0 / rate,
            processor: (processor_seconds() - before) / all,
        })
    }
}

impl Copy {
    fn start(mut plain: Box<dyn PlainLoop>, barrier: Arc<Barrier>) -> Self {
        let (orders, inbox) = channel::<Duration>();
        let (outbox, answers) = channel();
        let thread = thread::spawn(move || {
            let pool = compute_alone();
            for least in inbox {
                barrier.wait();
                let seconds = match &pool {
                    Ok(_) => count(least, || plain.step()),
                    Err(error) => Err(error.to_string().into()),
                };
                if outbox.send(seconds).is_err() {
                    break;
                }
            }
        });
        Self {
            orders: Some(orders),
            answers,
            thread: Some(thread),
        }
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
