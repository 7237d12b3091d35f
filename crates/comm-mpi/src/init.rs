use std::{
    io,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread::{Builder, JoinHandle},
    time::Duration,
};

use mpi::{
    Threading,
    environment::processor_name,
    topology::SimpleCommunicator,
    traits::{Communicator as _, CommunicatorCollectives},
};
use stovepipe_comm::{
    Communicator,
    transport::{GroupId, Numbers, Packet, Port, TakeSums, Transport},
};

use crate::{
    engine::{Engine, Job},
    launcher::{launched, launcher},
    watch::watched,
};

/// Longer names of hosts are cut.
const HOST_LENGTH: usize = 64;

/// Why this process could not join its job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// A process can join a job once.
    #[error("this process has already initialized MPI")]
    Initialized,
    /// The library cannot be used by a program with threads.
    #[error("this MPI library was built without support for threads (MPI_THREAD_FUNNELED)")]
    Threads,
    /// The launcher started several processes, but MPI does not connect them.
    #[error(
        "{launcher} started {processes} processes, but each is alone in MPI: under Slurm start them \
         with `srun --mpi=pmix`, elsewhere with the mpirun of the MPI library that this program uses"
    )]
    Apart {
        /// What started them.
        launcher: &'static str,
        /// How many it started.
        processes: usize,
    },
    /// Other processes of the job do not start, or do not get on.
    #[error("the other processes have not joined the job for {0:?}")]
    NotJoined(Duration),
    /// No thread for MPI.
    #[error("the thread for MPI could not be started")]
    Thread(#[from] io::Error),
}

struct Mpi {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

/// Joins the job that `mpirun` or `srun` started; without one, the job is this process alone. `limit`
/// is how long a rank may exchange no data or keep others waiting before the job is aborted; one that is
/// silent counts as dead after 30 seconds. `None` is no limit for either.
///
/// Keep the communicator until all is done, and drop it before the process ends, not by
/// `std::process::exit`. Dropping it waits until the other ranks drop theirs, no longer than `limit`. A
/// process that ends otherwise ends the job.
///
/// After a failure, print the error and then drop the communicator. That aborts the job and does not
/// return; the exit status is not 0. A rank that does neither within ten seconds is aborted, too.
///
/// # Errors
///
/// If MPI was initialized before, cannot be used with threads, or does not connect the processes that a
/// launcher has started. If MPI itself fails, it prints why
/// and ends the process.
///
/// ```
/// let comm = stovepipe_comm_mpi::init(None)?;
/// assert_eq!((comm.rank(), comm.size()), (0, 1)); // not under mpirun
/// # Ok::<(), stovepipe_comm_mpi::InitError>(())
/// ```
pub fn init(limit: Option<Duration>) -> Result<Communicator, InitError> {
    let (jobs, queue) = channel();
    let (ready, started) = channel();
    // MPI may set such variables itself when it is initialized.
    let launched = launcher().zip(launched());
    let thread = Builder::new().name("mpi".to_owned());
    let thread = thread.spawn(move || run(queue, (launched, limit), &ready))?;
    let ended = || InitError::Thread(io::Error::other("it ended"));
    let port = match limit {
        None => started.recv().map_err(|_| ended())?,
        Some(limit) => started.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => InitError::NotJoined(limit),
            RecvTimeoutError::Disconnected => ended(),
        })?,
    }?;
    let transport = Mpi {
        jobs: Some(jobs),
        thread: Some(thread),
    };
    Ok(Communicator::new(port, Box::new(transport)))
}

/// The thread that owns MPI: it alone calls it, as `Funneled` asks.
fn run(
    queue: Receiver<Job>,
    (launched, limit): (Option<(&'static str, usize)>, Option<Duration>),
    ready: &Sender<Result<Port, InitError>>,
) {
    let Some((universe, threading)) = mpi::initialize_with_threading(Threading::Funneled) else {
        let _ = ready.send(Err(InitError::Initialized));
        return;
    };
    if threading < Threading::Funneled {
        let _ = ready.send(Err(InitError::Threads));
        return;
    }
    let world = universe.world();
    let apart = launched.filter(|(_, started)| *started > 1 && world.size() == 1);
    if let Some((launcher, processes)) = apart {
        let _ = ready.send(Err(InitError::Apart {
            launcher,
            processes,
        }));
        return;
    }
    let rank = world.rank().unsigned_abs() as usize;
    let port = Port::new(rank, hosts(&world), limit);
    let _ = ready.send(Ok(port.clone()));
    Engine::new(&world, port, queue).run();
    // Other processes have to finalize MPI, too. One that is stopped must not hold up this one.
    let reason = "a process did not leave the job".to_owned();
    watched(limit, reason, || drop(universe));
}

fn hosts(world: &SimpleCommunicator) -> Vec<String> {
    let mut own = processor_name().unwrap_or_default().into_bytes();
    own.resize(HOST_LENGTH, 0);
    let mut all = vec![0; HOST_LENGTH * world.size().unsigned_abs() as usize];
    world.all_gather_into(&own[..], &mut all[..]);
    let name = |host: &[u8]| {
        String::from_utf8_lossy(host)
            .trim_end_matches('\0')
            .to_owned()
    };
    all.chunks(HOST_LENGTH).map(name).collect()
}

impl Transport for Mpi {
    fn send(&self, to: usize, packet: Packet) {
        self.queue(Job::Send(to, packet));
    }

    fn can_all_reduce(&self) -> bool {
        true
    }

    fn make_group(&self, group: GroupId, ranks: &[usize]) {
        self.queue(Job::MakeGroup(group, ranks.to_vec()));
    }

    fn all_reduce(&self, group: GroupId, numbers: Numbers, take: TakeSums) {
        self.queue(Job::AllReduce(group, numbers, take));
    }
}

impl Mpi {
    fn queue(&self, job: Job) {
        // The thread ends only with this, or with the process.
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        self.jobs = None;
        self.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
