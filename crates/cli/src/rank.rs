//! Which process of its job this one is, before it joins it.

use std::sync::LazyLock;

/// Whether this is the first process, or the only one: no other prints.
pub fn is_first() -> bool {
    static RANK: LazyLock<usize> = LazyLock::new(|| {
        let is_job = stovepipe_comm_mpi::launcher().is_some();
        let rank = stovepipe_comm_mpi::launched_rank().filter(|_| is_job);
        rank.unwrap_or(0)
    });
    *RANK == 0
}
