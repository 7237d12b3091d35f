//! The program's allocator.

use cap::Cap;
use mimalloc::MiMalloc;

/// The system's allocator returns large blocks to the kernel, which clears them again under a lock that all stages share:
/// two stages would run no faster than one. It counts, so that layers can be measured.
#[global_allocator]
static ALLOCATOR: Cap<MiMalloc> = Cap::new(MiMalloc, usize::MAX);

/// Bytes that are allocated now.
pub fn allocated() -> usize {
    ALLOCATOR.allocated()
}
