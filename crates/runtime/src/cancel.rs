//! Cancels a step.
//!
//! The caller holds the source, each worker a token with its own parker. Cancelling sets a flag and
//! then unparks every worker. A worker checks the flag before it parks, so it either sees the flag or
//! is woken to see it. Dropping the source cancels too, so no worker waits for a caller that is gone.

use crate::{
    parker::Parker,
    sync::{Arc, AtomicBool, Ordering},
};

pub(crate) struct CancelSource {
    cancelled: Arc<AtomicBool>,
    parkers: Vec<Arc<Parker>>,
}

/// Tells a worker that its step was cancelled.
#[derive(Debug)]
pub struct CancelToken {
    cancelled: Arc<AtomicBool>,
    pub(crate) parker: Arc<Parker>,
}

impl CancelSource {
    pub(crate) fn new() -> Self {
        Self {
            cancelled: Arc::new(AtomicBool::new(false)),
            parkers: Vec::new(),
        }
    }

    /// A token for one more worker.
    pub(crate) fn token(&mut self) -> CancelToken {
        let parker = Arc::new(Parker::default());
        self.parkers.push(parker.clone());
        let cancelled = self.cancelled.clone();
        CancelToken { cancelled, parker }
    }

    pub(crate) fn cancel(&self) {
        if !self.cancelled.swap(true, Ordering::AcqRel) {
            self.parkers.iter().for_each(|parker| parker.unpark());
        }
    }
}

impl Drop for CancelSource {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl CancelToken {
    /// Whether the step was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }
}
