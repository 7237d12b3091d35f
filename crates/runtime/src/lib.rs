//! Worker threads that run one step together.
//!
//! In a step, each worker runs a list of actions and sends values to other workers. If a worker
//! fails, panics or hangs, the others must not wait for it, and the next step must still work. This
//! crate does that and nothing else: it knows no tensors, stages or schedules.
//!
//! * [`Worker`]: a thread that runs jobs in order.
//! * [`mailbox`]: sends values from worker to worker.
//! * [`step`]: gives each worker a job and waits for all of them.
//! * [`StopHandle`]: asks a step to stop.
//! * [`CancelHandle`]: ends a step from another thread, for a reason.
//!
//! The tests run this code under a model checker, which tries the orders in which threads can run.

mod cancel;
mod mailbox;
mod parker;
mod queue;
mod step;
mod stop;
mod sync;
mod worker;

#[cfg(all(test, not(feature = "shuttle")))]
mod checks;

pub use cancel::{CancelHandle, CancelToken};
pub use mailbox::{Cancelled, Inbox, Outbox, mailbox};
pub use queue::{Disconnected, Sender};
pub use step::{Cause, Fault, JobContext, JobError, StepOptions, step};
pub use stop::StopHandle;
pub use worker::Worker;
