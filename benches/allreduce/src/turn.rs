//! The turn of a side: all sizes, one after the other. The first rank prints the seconds of one all-reduce.

use std::{sync::Arc, thread, time::Instant};

use stovepipe_collective::{AllReduce, CollectiveError, Group, Reduction};
use stovepipe_comm::{Communicator, local};

use crate::failure::Failure;

/// A size is reduced until this many bytes are, within these limits; the same at all sides.
const BYTES: usize = 512 << 20;
const TIMES: [usize; 2] = [4, 2000];

/// The mean seconds of an all-reduce, after two that warm up.
fn measure<E>(size: usize, mut all_reduce: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    let times = (BYTES / size).clamp(TIMES[0], TIMES[1]);
    let mut began = Instant::now();
    for time in 0..times + 2 {
        if time == 2 {
            began = Instant::now();
        }
        all_reduce()?;
    }
    Ok(began.elapsed().as_secs_f64() / times as f64)
}

fn ours(comm: Communicator, sizes: &[usize], by: AllReduce) -> Result<(), CollectiveError> {
    let all: Vec<_> = (0..comm.size()).collect();
    let mut group = Group::new(Arc::new(comm), 1, &all)?;
    group.set_all_reduce(by)?;
    for size in sizes {
        let mut tensor = vec![1.0_f32; size / size_of::<f32>()];
        let seconds = measure(*size, || {
            group.all_reduce(0, &mut [&mut tensor], Reduction::Sum)
        })?;
        if group.rank() == 0 {
            println!("{seconds}");
        }
    }
    Ok(())
}

pub fn threads(sizes: &[usize], ranks: usize) -> Result<(), Failure> {
    let ranks = local(ranks, None)?;
    thread::scope(|scope| {
        let ranks = ranks.into_iter();
        let ranks: Vec<_> = ranks
            .map(|comm| scope.spawn(|| ours(comm, sizes, AllReduce::Ring)))
            .collect();
        let mut ranks = ranks.into_iter();
        ranks.try_for_each(|rank| {
            rank.join()
                .map_err(|_| "a rank panicked")?
                .map_err(Failure::from)
        })
    })
}

#[cfg(feature = "mpi")]
pub fn in_job(sizes: &[usize], by: AllReduce) -> Result<(), Failure> {
    Ok(ours(stovepipe_comm_mpi::init(None)?, sizes, by)?)
}

#[cfg(feature = "mpi")]
pub fn mpi(sizes: &[usize]) -> Result<(), Failure> {
    use mpi::{
        collective::SystemOperation,
        traits::{Communicator as _, CommunicatorCollectives},
    };

    let universe = mpi::initialize().ok_or("MPI cannot be initialized")?;
    let world = universe.world();
    for size in sizes {
        let own = vec![1.0_f32; size / size_of::<f32>()];
        let mut sum = own.clone();
        let seconds = measure(*size, || {
            world.all_reduce_into(&own[..], &mut sum[..], SystemOperation::sum());
            Ok::<_, Failure>(())
        })?;
        if world.rank() == 0 {
            println!("{seconds}");
        }
    }
    Ok(())
}

#[cfg(not(feature = "mpi"))]
pub fn in_job(_: &[usize], _: AllReduce) -> Result<(), Failure> {
    Err("ranks under mpirun need a build with `--features mpi`".into())
}

#[cfg(not(feature = "mpi"))]
pub fn mpi(sizes: &[usize]) -> Result<(), Failure> {
    in_job(sizes, AllReduce::Mpi)
}
