//! Checkpoints that are written while training goes on.

use std::{
    io, panic,
    thread::{self, JoinHandle},
};

use crate::error::TrainError;

/// A checkpoint that a thread of the first process writes. The other processes only know of it.
pub(super) struct Saving(Option<JoinHandle<Saved>>);

/// What came of it.
pub(super) struct Saved {
    /// Lines for the user.
    pub(super) said: Vec<String>,
    pub(super) result: Result<(), TrainError>,
}

impl Saving {
    pub(super) fn elsewhere() -> Self {
        Self(None)
    }

    pub(super) fn begin(write: impl FnOnce() -> Saved + Send + 'static) -> io::Result<Self> {
        let thread = thread::Builder::new().name("checkpoint".to_owned());
        let thread = thread.spawn(|| {
            yield_to_training();
            write()
        });
        Ok(Self(Some(thread?)))
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Waits for its end.
    pub(super) fn end(mut self) -> Option<Saved> {
        let ended = self.0.take()?.join();
        Some(ended.unwrap_or_else(|panicked| panic::resume_unwind(panicked)))
    }
}

/// Gives this thread the lowest priority, so that it uses what cores are left: where Linux has priorities of threads.
fn yield_to_training() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::setpriority_process(None, LOWEST);
}

#[cfg(target_os = "linux")]
const LOWEST: i32 = 19;

/// Nothing writes to a run's folder after its training.
impl Drop for Saving {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
