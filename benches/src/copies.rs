//! Independent copies of the plain loop at once, each on its own thread. Only the machine limits
//! them, so no pipeline on as many threads can be faster.

use std::{
    sync::{
        Arc, Barrier,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use crate::{
    Failure,
    bench_model::BenchModel,
    measure::{TurnCost, compute_alone, count, processor_seconds},
    plain::PlainLoop,
};

/// Loops that wait to take a turn together.
pub struct LoopCopies {
    copies: Vec<LoopCopy>,
}

struct LoopCopy {
    /// The minimum length of a turn. The thread ends when this is dropped.
    requests: Sender<Duration>,
    /// The number of its steps, and the seconds of all.
    answers: Receiver<Result<(f64, f64), Failure>>,
}

impl LoopCopies {
    /// Starts `count` copies, each with its own model and `micro_batches` micro-batches.
    pub fn start(
        model: &dyn BenchModel,
        count: usize,
        micro_batches: usize,
    ) -> Result<Self, Failure> {
        let barrier = Arc::new(Barrier::new(count));
        let copies = (0..count).map(|_| {
            let plain = model.plain(micro_batches)?;
            Ok(LoopCopy::start(plain, barrier.clone()))
        });
        let copies = copies.collect::<Result<_, Failure>>()?;
        Ok(Self { copies })
    }

    /// All work at once for at least `minimum`. The seconds of a mini-batch are one over the number
    /// of mini-batches that all copies together finish in a second.
    pub fn turn(&mut self, minimum: Duration) -> Result<TurnCost, Failure> {
        let before = processor_seconds();
        for copy in &self.copies {
            copy.requests.send(minimum)?;
        }
        let (mut rate, mut all) = (0.0, 0.0);
        for copy in &self.copies {
            let (steps, seconds) = copy.answers.recv()??;
            rate += steps / seconds;
            all += steps;
        }
        Ok(TurnCost {
            seconds: 1.0 / rate,
            processor: (processor_seconds() - before) / all,
        })
    }
}

impl LoopCopy {
    fn start(mut plain: Box<dyn PlainLoop>, barrier: Arc<Barrier>) -> Self {
        let (requests, inbox) = channel::<Duration>();
        let (outbox, answers) = channel();
        thread::spawn(move || {
            let mut alone = compute_alone();
            for minimum in inbox {
                barrier.wait();
                let alone = std::mem::replace(&mut alone, Ok(()));
                let counted = alone.and_then(|()| count(minimum, || plain.step()));
                if outbox.send(counted).is_err() {
                    break;
                }
            }
        });
        Self { requests, answers }
    }
}
