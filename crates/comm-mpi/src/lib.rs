//! Messages between the ranks of a job, over MPI.
//!
//! With the feature `mpi`, `init` joins the job that `mpirun` or `srun` started, and returns its
//! communicator. The feature needs Open MPI or MPICH, with `mpicc`, and libclang (on Debian:
//! `openmpi-bin libopenmpi-dev libclang-dev`). Without it, this crate only knows what has started a
//! process, as [`launcher`], and how to start a job, [`mpirun()`].
//!
//! | feature | what it adds |
//! |---|---|
//! | `mpi` | MPI itself |

#[cfg(feature = "mpi")]
mod backoff;
#[cfg(feature = "mpi")]
mod engine;
#[cfg(feature = "mpi")]
mod init;
mod launcher;
mod mpirun;
#[cfg(feature = "mpi")]
mod watch;
#[cfg(feature = "mpi")]
mod wire;

#[cfg(feature = "mpi")]
pub use init::{InitError, init};
pub use launcher::{launched, launched_rank, launcher};
pub use mpirun::mpirun;
