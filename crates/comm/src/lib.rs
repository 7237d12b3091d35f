//! Messages between the ranks of a job: the processes that train one model together.
//!
//! * [`Communicator`]: sends messages to other ranks, exchanges small values with all of them, and
//!   ends the job.
//! * [`Agreement`]: ranks that make the same calls, and end each run together: all succeed or none.
//! * [`local`], [`local_on`], [`local_throttled`]: ranks in one process, for tests and examples.
//!   `stovepipe-comm-mpi` has those of MPI.
//! * [`transport`]: what an implementation needs.
//!
//! The tests run this code under a model checker, which tries the orders in which threads can run.

mod agreement;
mod communicator;
mod error;
mod gather;
mod local;
mod port;
mod process_error;
mod slow_link;
mod sync;
pub mod transport;

#[cfg(all(test, not(feature = "shuttle")))]
mod checks;

pub use agreement::{Agreement, RunFailure, Terms};
pub use communicator::Communicator;
pub use error::{CommError, Peer};
pub use gather::{Wait, gather};
pub use local::{local, local_on, local_throttled};
pub use process_error::ProcessError;
pub use transport::{GroupId, Message, Numbers};
