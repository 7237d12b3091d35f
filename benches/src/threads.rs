//! Threads that compute alone.

use rayon::ThreadPoolBuilder;

use crate::Failure;

/// Makes the calling thread a pool of one for the rest of its life: kernels that it runs find no
/// other thread to spread to. Fails if the thread is in a pool already.
pub fn compute_alone() -> Result<(), Failure> {
    let pool = ThreadPoolBuilder::new().num_threads(1);
    std::mem::forget(pool.use_current_thread().build()?);
    Ok(())
}
