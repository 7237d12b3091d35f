//! What every group must do whose sums are MPI's.

use std::{
    fmt::Debug,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use half::bf16;
use stovepipe_collective::{AllReduce, CollectiveError, Group, Number, Reduction};
use stovepipe_comm::Communicator;

/// Of sums by MPI, relative to the sum of absolute values.
const TOLERANCE: f64 = 1e-5;

pub fn run(comm: &Arc<Communicator>) {
    let size = comm.size();
    let all: Vec<_> = (0..size).collect();
    let mut group = group(comm, 1, &all);
    for lengths in [
        vec![],
        vec![0],
        vec![1],
        vec![size - 1, 0, size + 1],
        vec![1000; 17],
        vec![3, 2_100_003, 12],
    ] {
        for reduction in [Reduction::Sum, Reduction::Mean] {
            check::<f32>(&mut group, &lengths, reduction);
            check::<f64>(&mut group, &lengths, reduction);
        }
    }
    between_other_calls(&mut group);
    nothing_is_left_of_a_cancelled_run(comm, &mut group);
    what_it_cannot(comm, &mut group);
    groups_at_once(comm);
}

fn group(comm: &Arc<Communicator>, channel: u32, ranks: &[usize]) -> Group {
    let mut group = Group::new(comm.clone(), channel, ranks).unwrap();
    group.set_all_reduce(AllReduce::Mpi).unwrap();
    group
}

/// A number of a rank.
fn given(rank: usize, tensor: usize, index: usize) -> f64 {
    let seed = (rank * 31 + tensor * 7 + index + 1) as u64;
    // Knuth's generator; its upper bits are good.
    let state = seed.wrapping_mul(6_364_136_223_846_793_005) ^ (seed << 40);
    (state >> 40) as f64 / f64::from(1 << 23) - 1.0
}

trait Tested: Number {
    fn of(number: f64) -> Self;
    fn wide(self) -> f64;
}

impl Tested for f32 {
    fn of(number: f64) -> Self {
        number as Self
    }
    fn wide(self) -> f64 {
        self.into()
    }
}

impl Tested for f64 {
    fn of(number: f64) -> Self {
        number
    }
    fn wide(self) -> f64 {
        self
    }
}

/// The results are those of a plain loop.
fn check<T: Tested>(group: &mut Group, lengths: &[usize], reduction: Reduction) {
    let (own, size) = (group.rank(), group.size());
    let tensor = |(tensor, length): (usize, &usize)| {
        let numbers = (0..*length).map(|index| T::of(given(own, tensor, index)));
        numbers.collect::<Vec<_>>()
    };
    let mut tensors: Vec<_> = lengths.iter().enumerate().map(tensor).collect();
    let mut bucket: Vec<_> = tensors.iter_mut().map(Vec::as_mut_slice).collect();
    group.all_reduce(7, &mut bucket, reduction).unwrap();
    for (tensor, numbers) in tensors.iter().enumerate() {
        for (index, number) in numbers.iter().enumerate() {
            let all = || (0..size).map(|rank| T::of(given(rank, tensor, index)).wide());
            let count = match reduction {
                Reduction::Sum => 1.0,
                Reduction::Mean => size as f64,
            };
            let sum = all().sum::<f64>() / count;
            let most = TOLERANCE * all().map(f64::abs).sum::<f64>();
            let off = (number.wide() - sum).abs();
            assert!(off <= most, "{reduction:?}, {tensor}, {index}: {off}");
        }
    }
}

/// The other calls stay in the ring, and a rank may be a call ahead.
fn between_other_calls(group: &mut Group) {
    let (own, size) = (group.rank(), group.size());
    for round in 0..20 {
        if round % size == own {
            thread::sleep(Duration::from_millis(2));
        }
        check::<f32>(group, &[100, 20_000], Reduction::Sum);
        let mut tensor = [own as f64; 3];
        group.broadcast(1, &mut [&mut tensor], 1).unwrap();
        assert_eq!(tensor, [1.0; 3]);
    }
    group.set_all_reduce(AllReduce::Ring).unwrap();
    check::<f32>(group, &[100], Reduction::Sum);
    group.set_all_reduce(AllReduce::Mpi).unwrap();
    check::<f32>(group, &[100], Reduction::Sum);
}

/// A run in which one rank does not take part is cancelled, before MPI adds up: the next one is right.
fn nothing_is_left_of_a_cancelled_run(comm: &Arc<Communicator>, group: &mut Group) {
    for absent in 0..group.size() {
        let run = 2 * absent as u64;
        group.begin(run);
        check::<f64>(group, &[10], Reduction::Sum);
        let cancel = group.cancel_handle();
        let canceller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            cancel.cancel(run);
        });
        if group.rank() != absent {
            let ended = group.all_reduce(8, &mut [&mut [1.0_f32; 5]], Reduction::Sum);
            assert_eq!(ended, Err(CollectiveError::Cancelled));
        }
        canceller.join().unwrap();
        comm.all_gather(Vec::new()).unwrap();
        group.begin(run + 1);
        check::<f64>(group, &[10], Reduction::Sum);
        comm.all_gather(Vec::new()).unwrap();
    }
}

fn what_it_cannot(comm: &Arc<Communicator>, group: &mut Group) {
    let bits = group.all_reduce(9, &mut [&mut [bf16::ONE]], Reduction::Sum);
    assert_eq!(bits, Err(CollectiveError::Type("bf16")));
    let own = comm.rank();
    let mut several = Group::with_place(comm.clone(), 100, &[own, own], 0).unwrap();
    let set = several.set_all_reduce(AllReduce::Mpi);
    assert_eq!(set, Err(CollectiveError::SeveralPlaces(own)));
    comm.all_gather(Vec::new()).unwrap();
}

/// All ranks, and each rank with the next one, in threads that begin when they like, beside large messages.
fn groups_at_once(comm: &Arc<Communicator>) {
    let (own, size) = (comm.rank(), comm.size());
    let all: Vec<_> = (0..size).collect();
    let mut groups = vec![group(comm, 10, &all), group(comm, 11, &all)];
    for first in 0..size {
        let mut pair = [first, (first + 1) % size];
        if first % 2 == 1 {
            pair.reverse();
        }
        if pair.contains(&own) {
            groups.push(group(comm, 12 + first as u32, &pair));
        }
    }
    comm.set_sink(50, |_| {});
    let threads = groups.into_iter().enumerate().map(|(place, mut group)| {
        thread::spawn(move || {
            for call in 0..30 {
                let pause = (own * 7 + place * 13 + call * 5) % 4;
                thread::sleep(Duration::from_millis(pause as u64));
                let lengths = [[1, 300_000], [20_000, 7]][call % 2];
                check::<f32>(&mut group, &lengths, Reduction::Sum);
            }
        })
    });
    let threads: Vec<_> = threads.collect();
    let began = Instant::now();
    while threads.iter().any(|thread| !thread.is_finished()) {
        comm.send((own + 1) % size, 50, 0, vec![vec![0; 1 << 20]])
            .unwrap();
        thread::sleep(Duration::from_millis(10));
        assert!(began.elapsed() < Duration::from_secs(300), "it hangs");
    }
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
    // Others may still send to this rank.
    comm.all_gather(Vec::new()).unwrap();
}

/// Reduces by MPI without an end.
pub fn reduce(comm: Communicator) -> (Group, CollectiveError) {
    let all: Vec<_> = (0..comm.size()).collect();
    let mut group = group(&Arc::new(comm), 1, &all);
    for number in 0.. {
        let mut tensor = vec![1.0_f32; [1 << 20, 100, 300_000][number % 3]];
        let reduced = group.all_reduce(number as u64, &mut [&mut tensor], Reduction::Sum);
        if let Err(error) = reduced {
            return (group, error);
        }
        assert!(tensor.iter().all(|number| *number == group.size() as f32));
        if number == 3 {
            println!("\nMPI adds up");
        }
    }
    unreachable!()
}

/// Reduces twice; the second time rank 1 does something else.
pub fn differ<R: Debug>(
    comm: Communicator,
    different: impl FnOnce(&mut Group) -> Result<R, CollectiveError>,
) -> (Group, CollectiveError) {
    let all: Vec<_> = (0..comm.size()).collect();
    let mut group = group(&Arc::new(comm), 1, &all);
    let usual = |group: &mut Group| {
        let tensors: &mut [&mut [f32]] = &mut [&mut [1.0; 10], &mut [1.0; 4]];
        group.all_reduce(3, tensors, Reduction::Sum)
    };
    usual(&mut group).unwrap();
    let error = if group.rank() == 1 {
        different(&mut group).unwrap_err()
    } else {
        usual(&mut group).unwrap_err()
    };
    (group, error)
}

/// Rank 1 agrees, but never adds up, and rank 0 is cancelled.
pub fn cancel(comm: Communicator) -> (Group, CollectiveError) {
    let mut group = group(&Arc::new(comm), 1, &[0, 1]);
    group.begin(5);
    let cancel = group.cancel_handle();
    thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        cancel.cancel(5);
    });
    let error = group.all_reduce(0, &mut [&mut [1.0_f32; 10]], Reduction::Sum);
    (group, error.unwrap_err())
}
