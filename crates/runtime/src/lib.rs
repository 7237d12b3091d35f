//! Threads that run a step together, and end it together.
//!
//! A step of a pipeline is a list of actions for each of a few workers, which send each other
//! values. One that fails, panics, or does not come back must not leave the others waiting, and
//! what it leaves must not harm the next step. This crate is that part of the engine and nothing
//! else: it knows no tensors, no stages and no schedules. [`Worker`] is a thread, [`mailbox`] is
//! what workers send each other values by, [`step`] hands a job to each worker and waits for all of
//! them, and [`StopHandle`] asks for an early end.
//!
//! It is small so that it can be checked: its tests run it under a model checker, which tries the
//! orders in which threads can run instead of hoping for the bad ones.

mod cancel;
mod mailbox;
mod parker;
mod queue;
mod step;
mod stop;
mod sync;
mod worker;

#[cfg(test)]
mod checks;

pub use cancel::CancelToken;
pub use mailbox::{Cancelled, Inbox, Outbox, mailbox};
pub use queue::{Disconnected, Sender};
pub use step::{Cause, Fault, JobContext, JobError, StepOptions, step};
pub use stop::StopHandle;
pub use worker::Worker;
