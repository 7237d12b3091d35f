//! How much memory the process uses.

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};

/// The memory of this process.
pub(super) struct OwnMemory {
    system: System,
    process: Option<Pid>,
}

impl OwnMemory {
    pub(super) fn new() -> Self {
        Self {
            system: System::new(),
            process: get_current_pid().ok(),
        }
    }

    /// Bytes of main memory that it holds.
    pub(super) fn resident(&mut self) -> Option<u64> {
        let own = self.process?;
        let memory = ProcessRefreshKind::nothing().with_memory();
        let only = ProcessesToUpdate::Some(&[own]);
        (self.system).refresh_processes_specifics(only, false, memory);
        Some(self.system.process(own)?.memory())
    }
}
