//! Other load on the machine, on purpose.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long it computes, and then sleeps.
const PERIOD: Duration = Duration::from_millis(5);

/// A thread of this process that takes half of a core while it is on. Contenders have processes of
/// their own, so to them it is another process.
#[derive(Debug, Default)]
pub struct HalfACore {
    on: Arc<AtomicBool>,
}

impl HalfACore {
    /// Does the work next to this load.
    pub fn beside<R>(&self, work: impl FnOnce() -> R) -> R {
        self.on.store(true, Ordering::Relaxed);
        let on = Arc::clone(&self.on);
        let thread = thread::spawn(move || {
            while on.load(Ordering::Relaxed) {
                let began = Instant::now();
                while began.elapsed() < PERIOD {
                    std::hint::spin_loop();
                }
                thread::sleep(PERIOD);
            }
        });
        let result = work();
        self.on.store(false, Ordering::Relaxed);
        let _ = thread.join();
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_ends_with_the_work() {
        let load = HalfACore::default();
        assert!(load.beside(|| load.on.load(Ordering::Relaxed)));
        assert!(!load.on.load(Ordering::Relaxed));
        assert_eq!(Arc::strong_count(&load.on), 1); // its thread is gone
    }
}
