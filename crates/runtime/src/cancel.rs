//! Cancels a step.
//!
//! The caller holds the source, each worker a token with its own parker. Cancelling sets a flag and
//! then unparks every worker. A worker checks the flag before it parks, so it either sees the flag or
//! is woken to see it. Dropping the source cancels too, so no worker waits for a caller that is gone.
//!
//! A handle cancels from outside. One lock guards its reasons and a clone of the last step's source, so a
//! reason that arrives early is there when its step begins, and any other finds the source. It wakes workers
//! only: their reports wake the caller, which then looks for a reason.

use std::collections::BTreeMap;

use crate::{
    parker::Parker,
    sync::{Arc, AtomicBool, Mutex, Ordering, lock},
};

#[derive(Clone, Debug)]
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

/// Ends a step from another thread, for a reason `C`: another process has failed, for example.
///
/// Steps have ascending [numbers](crate::StepOptions::number), so a reason that arrives early or late
/// cannot end another step than its own.
///
/// ```
/// use stovepipe_runtime::CancelHandle;
///
/// let cancel = CancelHandle::new();
/// // On another thread, which has a clone:
/// cancel.clone().cancel(7, "rank 1 has failed");
/// ```
#[derive(Debug)]
pub struct CancelHandle<C>(Arc<Mutex<HandleState<C>>>);

#[derive(Debug)]
struct HandleState<C> {
    /// The last step that began.
    last: Option<(u64, CancelSource)>,
    /// By step.
    reasons: BTreeMap<u64, C>,
}

impl<C> CancelHandle<C> {
    /// A handle for all steps of the same workers.
    #[must_use]
    pub fn new() -> Self {
        let (last, reasons) = (None, BTreeMap::new());
        Self(Arc::new(Mutex::new(HandleState { last, reasons })))
    }

    /// Cancels a step: its workers stop waiting, and stop before their next action. One that has not
    /// begun ends when it begins. If the step has returned, nothing happens.
    ///
    /// The reason wins over success: it counts until the step's caller takes the last worker's result, even
    /// if all workers have succeeded by then. A failed job takes precedence over it, and so does an earlier
    /// reason. A stop, a stall or an error of the callback does so only if the caller saw it first.
    pub fn cancel(&self, step: u64, reason: C) {
        let mut state = lock(&self.0);
        state.reasons.entry(step).or_insert(reason);
        if let Some((_, source)) = state.last.as_ref().filter(|(last, _)| *last == step) {
            source.cancel();
        }
    }

    /// A step begins: from now on, a reason cancels the source.
    pub(crate) fn begin(&self, step: u64, source: &CancelSource) {
        let mut state = lock(&self.0);
        state.reasons = state.reasons.split_off(&step); // the others came too late
        if state.reasons.contains_key(&step) {
            source.cancel();
        }
        state.last = Some((step, source.clone()));
    }

    /// The reason to end a step, if one has come since it began, also after its end.
    pub fn take_reason(&self, step: u64) -> Option<C> {
        lock(&self.0).reasons.remove(&step)
    }
}

impl<C> Clone for CancelHandle<C> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<C> Default for CancelHandle<C> {
    fn default() -> Self {
        Self::new()
    }
}
