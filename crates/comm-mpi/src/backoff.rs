use std::{
    hint, thread,
    time::{Duration, Instant},
};

/// How long a wait spins, for an answer that is on its way.
const SPIN: Duration = Duration::from_micros(5);
/// How long it lets other threads run, and looks whenever they have.
const YIELD: Duration = Duration::from_micros(200);
/// How long it sleeps at a time after that: a small share of the wait so far, within these limits. So what
/// arrives is hardly late, and a long wait costs nothing.
const SLEEP: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
const SHARE: u32 = 64;

/// Waits between looks at MPI, whose own waits would take a core.
pub(crate) struct Backoff(Instant);

impl Backoff {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Something happened: looks often again.
    pub(crate) fn reset(&mut self) {
        self.0 = Instant::now();
    }

    /// How long nothing has happened.
    pub(crate) fn idle(&self) -> Duration {
        self.0.elapsed()
    }

    /// Waits a moment. `sleep` may return early.
    pub(crate) fn wait(&self, sleep: impl FnOnce(Duration)) {
        match self.idle() {
            idle if idle < SPIN => hint::spin_loop(),
            idle if idle < YIELD => thread::yield_now(),
            idle => sleep((idle / SHARE).clamp(SLEEP[0], SLEEP[1])),
        }
    }
}
