//! Checkpoints that are written while training goes on.

use std::{
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use crate::error::TrainError;

const POLL: Duration = Duration::from_millis(5);

/// A checkpoint that the first process writes. The other processes only know of it.
pub(super) enum Saving {
    Elsewhere,
    By(JoinHandle<Saved>),
    Over(Saved),
}

/// What came of it.
pub(super) struct Saved {
    /// Lines for the user.
    pub(super) said: Vec<String>,
    pub(super) result: Result<(), TrainError>,
}

impl Saving {
    /// Writes on a thread; on this one if the system has none.
    pub(super) fn begin(write: impl Fn() -> Saved + Send + Sync + 'static) -> Self {
        let write = Arc::new(write);
        let own = write.clone();
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(move || {
            yield_to_training();
            own()
        });
        thread.map_or_else(|_| Self::Over(write()), Self::By)
    }

    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Elsewhere => false,
            Self::By(thread) => thread.is_finished(),
            Self::Over(_) => true,
        }
    }

    /// Waits in this process alone. Returns whether it had to.
    pub(super) fn wait(&self) -> bool {
        let Self::By(thread) = self else {
            return false;
        };
        let waits = !thread.is_finished();
        while !thread.is_finished() {
            thread::sleep(POLL);
        }
        waits
    }

    pub(super) fn end(self) -> Option<Saved> {
        match self {
            Self::Elsewhere => None,
            // What writes catches its own panics.
            Self::By(thread) => thread.join().ok(),
            Self::Over(saved) => Some(saved),
        }
    }
}

/// Gives this thread the lowest priority, so that it uses what cores are left: where Linux has priorities of threads.
fn yield_to_training() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, LOWEST);
}

#[cfg(target_os = "linux")]
const LOWEST: i32 = 19;
