use serde::{Serialize, de::DeserializeOwned};

use crate::{communicator::Communicator, process_error::ProcessError};

/// How long a gather waits.
#[derive(Clone, Copy, Debug)]
pub enum Wait {
    /// As long as the communicator allows: all processes are about to make the same call.
    ForTheSameCall,
    /// Others may have more to do before.
    WhileAllLive,
}

/// The values of all processes, by rank, in their serialised form `S` and as `D`.
///
/// # Errors
///
/// If the gather fails, or a value cannot be read.
///
/// ```
/// use std::thread::spawn;
/// use stovepipe_comm::{Wait, gather};
///
/// let ranks = stovepipe_comm::local(2, None)?.into_iter();
/// let ranks = ranks.map(|comm| {
///     spawn(move || gather::<_, String>(&comm, ["a", "b"][comm.rank()], Wait::ForTheSameCall))
/// });
/// for rank in ranks.collect::<Vec<_>>() {
///     assert_eq!(rank.join().unwrap()?, ["a", "b"]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn gather<S: Serialize + ?Sized, D: DeserializeOwned>(
    comm: &Communicator,
    own: &S,
    wait: Wait,
) -> Result<Vec<D>, ProcessError> {
    let own = rmp_serde::to_vec(own).map_err(|error| ProcessError::Unreadable(error.into()))?;
    let all = match wait {
        Wait::ForTheSameCall => comm.all_gather(own)?,
        Wait::WhileAllLive => comm.all_gather_within(own, None)?,
    };
    let read = |bytes: Vec<u8>| rmp_serde::from_slice(&bytes);
    let all = all.into_iter().map(read).collect::<Result<_, _>>();
    all.map_err(|error| ProcessError::Unreadable(error.into()))
}
