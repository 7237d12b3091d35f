//! Threads that compute alone.

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::Failure;

/// Makes the calling thread a pool of one: kernels that it runs find no other thread to spread to.
/// Lasts for the thread's life, also after the returned pool is dropped.
///
/// # Errors
///
/// If the thread is in a pool already.
pub fn compute_alone() -> Result<ThreadPool, Failure> {
    let pool = ThreadPoolBuilder::new().num_threads(1);
    Ok(pool.use_current_thread().build()?)
}
