//! What calls a step off.
//!
//! The caller holds the siren, each worker an alarm with a bell of its own. To raise the siren is
//! to set a flag, and then to ring every bell: a worker that looks at the flag and then sleeps by
//! its bell either sees the flag or is woken to see it. A siren that is dropped has been raised, so
//! that no end of the caller's leaves workers behind that wait.

use crate::{
    bell::Bell,
    sync::{Arc, AtomicBool, Ordering},
};

pub(crate) struct Siren {
    raised: Arc<AtomicBool>,
    bells: Vec<Arc<Bell>>,
}

/// Tells a worker that the step it works on is called off.
#[derive(Debug)]
pub struct Alarm {
    raised: Arc<AtomicBool>,
    pub(crate) bell: Arc<Bell>,
}

impl Siren {
    pub(crate) fn new() -> Self {
        Self {
            raised: Arc::new(AtomicBool::new(false)),
            bells: Vec::new(),
        }
    }

    /// An alarm for one more worker.
    pub(crate) fn alarm(&mut self) -> Alarm {
        let bell = Arc::new(Bell::default());
        self.bells.push(bell.clone());
        let raised = self.raised.clone();
        Alarm { raised, bell }
    }

    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            self.bells.iter().for_each(|bell| bell.ring());
        }
    }
}

impl Drop for Siren {
    fn drop(&mut self) {
        self.raise();
    }
}

impl Alarm {
    /// Whether the step was called off.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.raised.load(Ordering::Acquire)
    }
}
