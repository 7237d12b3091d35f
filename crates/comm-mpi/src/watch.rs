use std::{
    process,
    sync::mpsc::{RecvTimeoutError, channel},
    thread::Builder,
    time::Duration,
};

/// Makes a call of MPI that waits for other processes. If that takes longer than the limit, this process says
/// why and ends, and so does the job: nothing else ends such a call.
pub(crate) fn watched<T>(limit: Option<Duration>, reason: String, call: impl FnOnce() -> T) -> T {
    let (done, watch) = channel::<()>();
    let watch = move || {
        let waited = limit.map(|limit| watch.recv_timeout(limit));
        if waited == Some(Err(RecvTimeoutError::Timeout)) {
            eprintln!("{reason}");
            process::exit(1);
        }
    };
    let _watched = Builder::new().name("mpi-watch".to_owned()).spawn(watch);
    let result = call();
    drop(done);
    result
}
