//! Ranks under `mpirun`. Each test starts this program again, as the ranks of a job.
//!
//! Without the feature `mpi` or without `mpirun` they are left out, and say so; with
//! `STOVEPIPE_REQUIRE_MPI=1` that is a failure.
#![allow(clippy::unwrap_used, missing_docs)]

use std::env;

#[cfg(feature = "mpi")]
#[path = "../../../collective/tests/conformance/mod.rs"]
mod collective_conformance;
#[cfg(feature = "mpi")]
#[path = "../../../comm/tests/conformance/mod.rs"]
mod conformance;
#[cfg(feature = "mpi")]
mod processes {
    mod faults;
    pub mod job;
    mod ranks;
    mod sums;
}

#[test]
fn mpi_is_tested_where_it_is_required() {
    let is_required = env::var("STOVEPIPE_REQUIRE_MPI").is_ok_and(|value| value == "1");
    #[cfg(feature = "mpi")]
    let is_tested = processes::job::has_mpirun();
    #[cfg(not(feature = "mpi"))]
    let is_tested = false;
    let message = "tests under mpirun are left out: they need --features mpi and Open MPI";
    assert!(is_tested || !is_required, "{message}");
    if !is_tested {
        eprintln!("{message}");
    }
}
